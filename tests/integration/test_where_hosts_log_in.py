"""Hosts log in at servers that their configuration names or allows, whatever callers and the meta database say."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from foqs.host.verbs import place_check
from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError, UnavailableError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from tests.integration.test_cli_local import run
from tests.support.certificates import write_certificate
from tests.support.false_server import FULL_LOGIN, FalseServer, Talk
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import eventually, longer, until

pytestmark = pytest.mark.database
PASSWORD = "geheimnis"
LOGIN = f"mysql://app:{PASSWORD}@anywhere"


@pytest.fixture
def false_server(tmp_path: Path) -> Iterator[FalseServer]:
    """It wants the password in clear, inside TLS that nobody verifies."""
    write_certificate(tmp_path)

    def ask(talk: Talk) -> None:
        talk.greet("caching_sha2_password", tmp_path)
        talk.say(FULL_LOGIN)
        talk.hear()

    with FalseServer(ask) as server:
        yield server


def place_at(server: FalseServer, database: str = "s9") -> str:
    return f"mysql://127.0.0.1:{server.port}/{database}"


@pytest.fixture
async def host(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningHost]:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    async with running_host(meta_url, {0: shard_urls[0]}, name="host-1", shard_login=LOGIN) as host:
        await until(lambda: host.host.owned_count == 1)
        yield host


def forge(meta_url: str, shard_id: int, place: str) -> None:
    """Write a row past all hosts, as an older one or a stranger would."""
    with closing(MetaStore(meta_url)) as meta:
        meta.shards.add(shard_id, place, "")


async def refusal(host: RunningHost, place: str, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """What the caller hears of a shard that is not added, and what the log says."""

    async def refused() -> FoqsError:
        with pytest.raises(FoqsError) as refused:
            await host.admin.add_shard(9, place)
        return refused.value

    for check_ms in longer(500):
        monkeypatch.setattr(place_check, "PLACE_CHECK_MS", check_ms)
        with capture_logs() as logs:
            # The try before may be under way still.
            error = await eventually(refused, lambda error: not isinstance(error, UnavailableError))
        (log,) = [log for log in logs if log["event"] == "shard_place_refused"]
        if "was not open after" not in log["error"]:
            break
    assert isinstance(error, InvalidArgumentError)
    return error.message, log["error"]


async def test_no_caller_makes_a_host_call_a_server_that_nobody_named(
    host: RunningHost, false_server: FalseServer
) -> None:
    for place in (
        place_at(false_server), f"mysql://localhost:{false_server.port}/s9",
        "mysql://localhost/s9?unix_socket=%2Ftmp%2Fother.sock",
    ):  # fmt: skip
        with pytest.raises(InvalidArgumentError, match="names its server; list it in shard_places of the hosts"):
            await host.admin.add_shard(9, place)
    assert false_server.talks == []
    assert [one.shard_id for one in await host.admin.list_shards()] == [0]


async def test_a_row_names_its_server_for_callers_and_the_password_stays_here(
    host: RunningHost, meta_url: str, false_server: FalseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(meta_url, 8, place_at(false_server, "s8"))
    await until(lambda: len(false_server.talks) > 0)
    await until(lambda: "full login" in host.host._shards.writers[8].detail)
    assert "unix socket" in host.host._shards.writers[8].detail
    message, reason = await refusal(host, place_at(false_server), monkeypatch)
    assert message == (
        f"the database of shard 9 at {place_at(false_server)} could not be opened: nothing was done, see the log "
        "of host host-1"
    )
    assert "full login of caching_sha2_password" in reason
    assert PASSWORD.encode() not in false_server.heard
    assert b"app\0" in false_server.heard


async def test_a_forged_row_outside_the_list_leads_to_no_session(
    meta_url: str, shard_urls: dict[int, str], false_server: FalseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    socket = "mysql://localhost/s7?unix_socket=%2Ftmp%2Fother.sock"
    for shard_id, place in ((6, "nonsense"), (7, socket), (8, place_at(false_server, "s8"))):
        forge(meta_url, shard_id, place)
    listed = ["db-*.example:3306"]
    async with running_host(
        meta_url, {0: shard_urls[0]}, name="host-1", shard_login=LOGIN, shard_places=listed, namespace=None
    ) as host:
        await until(lambda: host.host.owned_count == 1)
        await until(lambda: {6, 7, 8} <= host.host._shards.writers.keys())
        for shard_id in (6, 7, 8):
            await until(lambda shard_id=shard_id: "was not called" in host.host._shards.writers[shard_id].detail)
        with pytest.raises(InvalidArgumentError, match="list it in shard_places"):
            await host.admin.add_shard(9, place_at(false_server))
    assert false_server.talks == []


async def test_what_is_listed_is_called_once_the_configuration_is_read_again(
    host: RunningHost, shard_urls: dict[int, str], false_server: FalseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = host.host._config
    host.host.use_urls(before.model_copy(update={"shard_places": ("127.0.0.*:" + str(false_server.port),)}))
    message, _ = await refusal(host, place_at(false_server), monkeypatch)
    assert "could not be opened: nothing was done, see the log of host host-1" in message
    assert false_server.talks
    assert PASSWORD.encode() not in false_server.heard


def test_commands_call_no_server_that_is_not_allowed(
    meta_url: str, shard_urls: dict[int, str], false_server: FalseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    forge(meta_url, 8, place_at(false_server, "s8"))
    monkeypatch.setenv("FOQS_SHARD_LOGIN", LOGIN)
    arguments = ["--meta-url", meta_url, "--shard-places", "db-*.example:3306"]
    for command in ("status", "apply"):
        ended = run("schema", command, *arguments)
        assert ended.exit_code != 0
        assert f"127.0.0.1:{false_server.port} was not called" in ended.stderr
    assert false_server.talks == []
    ended = run("schema", "status", *arguments[:-2])
    assert "full login of caching_sha2_password" in ended.stderr
    assert false_server.talks
    assert PASSWORD.encode() not in false_server.heard


async def test_a_place_at_a_server_of_the_configuration_needs_no_list(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    async with running_host(meta_url, {0: shard_urls[0]}, shard_places=["db-*.example:3306"]) as host:
        await host.admin.add_shard(2, place_of(shard_urls[2]))
        await until(lambda: host.host.owned_count == 2)
