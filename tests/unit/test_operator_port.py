"""The port for operators: what it answers, and that nobody holds it up."""

from __future__ import annotations

import http.client
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, closing
from pathlib import Path
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry, Counter
from structlog.testing import capture_logs

from foqs.model import limits
from foqs.model.secret import Secret
from foqs.storage.sessions.secret_file import SecretFile
from foqs.transport.operator_port import OperatorPort, Probe
from tests.support.waiting import PATIENCE_S


class Watched:
    def __init__(self, token: Callable[[], Secret] | None = None) -> None:
        self.problem: str | None = None
        registry = CollectorRegistry()
        Counter("things", "Things that happened", registry=registry).inc(3)
        self.probes: dict[str, Probe] = {"/livez": lambda: None, "/readyz": lambda: self.problem}
        self.service = OperatorPort("127.0.0.1", 0, self.probes, registry, token)

    def ask(self, path: str, method: str = "GET") -> tuple[int, str]:
        assert self.service.port is not None
        with closing(http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=PATIENCE_S)) as connection:
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.service.port), PATIENCE_S)


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    found = Watched()
    await found.service.start()
    yield found
    await found.service.stop()


async def test_a_probe_is_200_or_503_with_its_reason(watched):
    assert watched.ask("/readyz") == (200, "ok\n")
    watched.problem = "none of the 4 shards is healthy here"
    assert watched.ask("/readyz?verbose") == (503, "none of the 4 shards is healthy here\n")
    assert watched.ask("/livez") == (200, "ok\n")


async def test_metrics_are_there_and_every_other_path_is_not_found(watched):
    status, text = watched.ask("/metrics")
    assert status == 200
    assert "things_total 3.0" in text
    for path in ("/", "/metrics/", "/favicon.ico", "/livez/x", "//"):
        assert watched.ask(path)[0] == 404, path


@pytest.mark.parametrize(
    ("request_line", "accept", "status"),
    [
        ("GET /metrics", "application/openmetrics-text; version=nope", 200),
        ("GET /metrics", "text/plain; version=", 200),
        ("GET /metrics", "application/openmetrics-text; version=1.0.0; escaping=nope", 200),
        ("GET /metrics", "*/*;q=x", 200),
        ("GET http://[x/metrics", "*/*", 404),
        ("GET /metrics?name[]=//[", "*/*", 200),
    ],
)
async def test_a_request_that_makes_no_sense_is_answered_and_is_no_defect_of_the_host(
    watched, request_line, accept, status
):
    with capture_logs() as logged, watched.connect() as connection:
        connection.sendall(f"{request_line} HTTP/1.0\r\nAccept: {accept}\r\n\r\n".encode())
        with connection.makefile("rb") as answer:
            assert answer.read().startswith(f"HTTP/1.0 {status} ".encode())
    assert logged == []


async def test_only_get_and_head_are_understood(watched):
    assert watched.ask("/livez", "HEAD") == (200, "")
    for method in ("POST", "DELETE", "BREW"):
        assert watched.ask("/livez", method)[0] == 501


async def test_it_answers_while_the_event_loop_does_not_turn(watched):
    # This call itself keeps the loop from turning: ask() blocks.
    assert watched.ask("/livez") == (200, "ok\n")


async def test_who_is_slow_is_cut_off_in_the_end_though_bytes_keep_coming(watched):
    with patch.object(limits, "OPERATOR_CALL_MS_MAX", 200), watched.connect() as slow:
        slow.settimeout(0.02)
        assert any(ends_after_one_more_byte(slow) for _ in range(3_000)), "it was heard out for a minute"


def ends_after_one_more_byte(connection: socket.socket) -> bool:
    try:
        connection.sendall(b"G")
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


async def test_past_the_bound_the_oldest_connection_makes_room_so_that_who_is_slow_keeps_nobody_out(watched):
    with ExitStack() as stack:
        held = [stack.enter_context(watched.connect()) for _ in range(limits.OPERATOR_CONNECTIONS_MAX)]
        assert watched.ask("/livez") == (200, "ok\n")
        assert is_closed(held[0])
        for connection in held[1:]:
            connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert b"200" in connection.recv(100)


async def test_connections_whose_threads_do_not_end_are_as_few(watched):
    called, answer = threading.Semaphore(0), threading.Event()

    def hang() -> None:
        called.release()
        answer.wait(PATIENCE_S)

    with ExitStack() as stack, patch.dict(watched.probes, {"/livez": hang}):
        stack.callback(answer.set)
        for _ in range(2 * limits.OPERATOR_CONNECTIONS_MAX):
            connection = stack.enter_context(watched.connect())
            connection.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert called.acquire(timeout=PATIENCE_S)
        assert is_closed(stack.enter_context(watched.connect()))


async def test_stopping_ends_who_is_connected(watched):
    with watched.connect() as silent:
        await watched.service.stop()
        assert is_closed(silent)
    with pytest.raises(ConnectionRefusedError):
        watched.connect()


async def test_a_defect_while_metrics_are_collected_ends_one_scrape_alone(watched):
    broken = patch.object(watched.service._registry, "collect", side_effect=RuntimeError("broken"))
    with broken, pytest.raises(http.client.BadStatusLine):
        watched.ask("/metrics")
    assert watched.ask("/metrics")[0] == 200


async def test_a_port_that_is_taken_is_an_error_and_no_port_is_none(watched):
    with pytest.raises(OSError, match="in use"):
        await OperatorPort("127.0.0.1", watched.service.port, {}, CollectorRegistry()).start()
    nowhere = OperatorPort("127.0.0.1", None, {}, CollectorRegistry())
    await nowhere.start()
    assert nowhere.port is None
    await nowhere.stop()


class WatchedByToken(Watched):
    """A port whose metrics are for who shows the token in a file."""

    def __init__(self, file: Path) -> None:
        super().__init__(SecretFile(str(file)).read)

    def ask_with(self, authorization: str | bytes | None, path: str = "/metrics") -> tuple[int, str, str | None]:
        assert self.service.port is not None
        headers = {} if authorization is None else {"Authorization": authorization}
        with closing(http.client.HTTPConnection("127.0.0.1", self.service.port, timeout=PATIENCE_S)) as connection:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode(), answer.headers["WWW-Authenticate"]


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.write_text("planted-tök\n")
    file.chmod(0o600)
    return file


@pytest.fixture
async def by_token(token_file: Path) -> AsyncIterator[WatchedByToken]:
    found = WatchedByToken(token_file)
    await found.service.start()
    yield found
    await found.service.stop()


@pytest.mark.parametrize(
    "shown",
    [
        None, "", "Bearer", "Bearer ", "Bearer wrong", "Basic planted-tok", "Bearer planted-tok", "planted-tok",
        "Bearer " + "x" * 10_000, b"Bearer \xff\xfe", "Bearer planted-tök".encode() + b"x",
        "Bearer planted-tök".encode("latin1"),
    ],
)  # fmt: skip
async def test_metrics_are_refused_without_the_token(by_token: WatchedByToken, shown: str | bytes | None) -> None:
    status, text, asked = by_token.ask_with(shown)
    assert (status, asked) == (401, "Bearer")
    assert "things" not in text
    assert "planted" not in text


@pytest.mark.parametrize("scheme", [b"Bearer ", b"bearer ", b"BEARER  "])
async def test_metrics_are_shown_with_the_token(by_token: WatchedByToken, scheme: bytes) -> None:
    status, text, _ = by_token.ask_with(scheme + "planted-tök".encode())
    assert status == 200
    assert "things_total 3.0" in text


async def test_probes_answer_without_the_token_and_tell_their_reasons_with_it(by_token: WatchedByToken) -> None:
    assert by_token.ask_with(None, "/readyz")[:2] == (200, "ok\n")
    by_token.problem = "shard 4: words of MySQL"
    assert by_token.ask_with(None, "/readyz")[:2] == (503, "not ok\n")
    assert by_token.ask_with(None, "/livez")[:2] == (200, "ok\n")
    shown = "Bearer planted-tök".encode()
    assert by_token.ask_with(shown, "/readyz")[:2] == (503, "shard 4: words of MySQL\n")


async def test_a_new_token_is_taken_without_a_restart_and_the_old_one_no_more(
    by_token: WatchedByToken, token_file: Path
) -> None:
    assert by_token.ask_with("Bearer planted-tök".encode())[0] == 200
    new = token_file.with_suffix(".new")
    new.write_text("next")
    new.chmod(0o600)
    new.rename(token_file)
    assert by_token.ask_with("Bearer next")[0] == 200
    assert by_token.ask_with("Bearer planted-tök".encode())[0] == 401


async def test_a_token_that_cannot_be_read_lets_nobody_in_and_is_logged(
    by_token: WatchedByToken, token_file: Path
) -> None:
    os.chmod(token_file, 0o644)
    with capture_logs() as logs:
        assert by_token.ask_with("Bearer planted-tök".encode())[0] == 401
    assert [log["event"] for log in logs] == ["secret_file_unusable"]
    assert "planted-t" not in str(logs)
