"""`foqs dev --console` and `foqs console` as their users start them: with TLS, enforced access and tokens."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from foqs.client.sync import AdminClient, Client
from foqs.model.access import AccessGrant
from tests.support.faults.programs import FOQS, Program, free_port
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.deep]


def browser_at(netloc: str) -> httpx.Client:
    return httpx.Client(base_url=f"http://{netloc}", follow_redirects=True, timeout=30, trust_env=False)


@contextmanager
def entered(url: str) -> Iterator[httpx.Client]:
    """Open the URL that the console has printed in a browser."""
    found = urlsplit(url)
    with browser_at(found.netloc) as browser:
        answer = browser.get(f"{found.path}?{found.query}")
        assert answer.status_code == 200, answer.text[:1_000]
        yield browser


def url_in(line: str) -> str:
    found = re.search(r"http://\S+", line)
    assert found, line
    return found[0]


def test_the_console_of_dev_shows_and_changes_a_protected_queue(tmp_path: Path) -> None:
    data_dir, port = tmp_path / "data", free_port()
    words = ["dev", "--data-dir", str(data_dir), "--port", "0", "--tls", "--console", "--console-port", str(port)]
    program = Program(str(FOQS), *words, name="dev")
    try:
        address = re.search(r"ready on (127\.0\.0\.1:\d+)", program.wait_for_line("foqs is ready"))
        assert address, program.output
        ca_file = _ca_file(program.wait_for_line("It requires TLS"))
        trusted: dict[str, Any] = {"tls": True, "ca_file": ca_file, "token_file": str(data_dir / "admin.token")}
        with Client(address[1], **trusted) as client:
            client.enqueue("default", "letters", b"the first letter")
        with entered(url_in(program.wait_for_line("foqs console:"))) as browser:
            _pause_letters(browser, port)
            with AdminClient(address[1], **trusted) as admin:
                assert admin.get_topic_policy("default", "letters").reason == "rain"
                admin.create_principal("ana", [AccessGrant("other", ["viewer"])])
                anas = admin.create_token("ana").token
            _sign_in(anas, port)
            program.signal(signal.SIGTERM)
            assert program.wait() == 0, program.output
            with pytest.raises(httpx.ConnectError):
                browser.get("/")
    finally:
        program.close()


def _origin(port: int) -> dict[str, str]:
    return {"origin": f"http://127.0.0.1:{port}"}


def _pause_letters(browser: httpx.Client, port: int) -> None:
    until_true(lambda: "letters" in browser.get("/ns/default/topics").text)
    dialog = browser.get("/ns/default/act/pause?topic=letters").text
    token = re.search(r'name="token" value="([^"]+)"', dialog)
    assert token, dialog
    data = {"token": token[1], "ns": "default", "what": "--dequeue", "reason": "rain"}
    assert browser.post("/act", data=data, headers=_origin(port)).status_code == 200


def _sign_in(token: str, port: int) -> None:
    """Nothing is shown to a stranger, and only what she can observe to somebody with a token."""
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    with browser_at(f"127.0.0.1:{port}") as stranger:
        assert stranger.post("/sign-in", data={"token": wrong, "to": "/"}, headers=_origin(port)).status_code == 403
        text = stranger.post("/sign-in", data={"token": token, "to": "/"}, headers=_origin(port)).text
        assert "ana" in text
        assert "/ns/default" not in stranger.get("/").text
        assert stranger.get("/ns/default/topics").status_code == 404


def _ca_file(line: str) -> str:
    found = re.search(r"--ca-file (\S+)", line)
    assert found, line
    return found[1]


def test_a_console_that_would_let_strangers_in_does_not_start() -> None:
    program = Program(str(FOQS), "console", "--listen", "0.0.0.0:7680", name="console")
    try:
        assert program.wait() == 2
        assert "nobody would have to sign in" in program.output
    finally:
        program.close()


def test_a_console_without_hosts_says_so_and_ends_by_a_signal() -> None:
    port = free_port()
    words = ["console", "--address", f"127.0.0.1:{free_port()}", "--listen", f"127.0.0.1:{port}"]
    program = Program(str(FOQS), *words, name="console")
    try:
        url = url_in(program.wait_for_line("foqs console:"))
        answer = httpx.get(url, trust_env=False, timeout=30)
        assert answer.status_code == 503
        assert "the hosts of foqs do not answer" in answer.text
        program.signal(signal.SIGTERM)
        assert program.wait() in (0, -signal.SIGTERM), program.output
    finally:
        program.close()
