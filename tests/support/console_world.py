"""A console on a MemoryQueue: for Starlette's client in the process, and for browsers on a port."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

import uvicorn
from starlette.testclient import TestClient

from foqs.console.console_app import Console
from foqs.console.console_settings import ConsoleSettings
from foqs.console.reach import ClientPair
from foqs.model.errors import InvalidArgumentError, PermissionDeniedError
from foqs.testing import MemoryQueue

PORT = 7680
BASE = f"http://127.0.0.1:{PORT}"
_REQUEST_MS = 200
SAME_SITE = {"origin": BASE, "sec-fetch-site": "same-origin"}


class MemoryReach:
    """The clients of a console on a MemoryQueue. A token is `token of NAME`, and a token file the same."""

    def __init__(self, queue: MemoryQueue, own: str = "") -> None:
        """`own` is the principal of the console itself; "" for the queue's owner."""
        self._queue = queue
        self._own = own

    def own(self) -> ClientPair:
        clients = self._queue.as_principal(self._own) if self._own else self._queue
        return ClientPair(clients.async_admin(), clients.async_client())

    def by_token(self, token: str) -> ClientPair:
        name = token.removeprefix("token of ")
        if name == token:
            raise InvalidArgumentError("that is no token")
        try:
            clients = self._queue.as_principal(name)
        except Exception as error:
            raise PermissionDeniedError("the token proves nothing") from error
        return ClientPair(clients.async_admin(), clients.async_client())

    def by_token_file(self, path: str) -> ClientPair:
        return self.by_token(path)


class ConsoleWorld:
    """A console with its test client. Use it in a `with` statement; by default it signs in by its URL."""

    def __init__(
        self,
        queue: MemoryQueue,
        *,
        own: str = "",
        signs_in: bool = True,
        client: tuple[str, int] = ("127.0.0.1", 50_000),
        **settings: Any,
    ) -> None:
        self.queue = queue
        self.now_ms = 0
        self.console = Console(
            ConsoleSettings(**settings),
            MemoryReach(queue, own),
            now_ms=queue.clock.now_ms,
            monotonic_ms=lambda: self.now_ms,
            port=PORT,
        )
        self.http = TestClient(self.console.app(), base_url=BASE, follow_redirects=False, client=client)
        self._signs_in = signs_in

    def __enter__(self) -> Self:
        self.http.__enter__()
        if self._signs_in:
            self.sign_in_by_url()
        return self

    def __exit__(self, *error: Any) -> None:
        self.http.__exit__(*error)

    def sign_in_by_url(self) -> None:
        token = self.console.entrance.sessions.entry_token()
        answer = self.http.get(f"/enter?token={token}")
        assert answer.status_code == 303, answer.text

    def sign_in_by_token(self, name: str) -> Any:
        return self.http.post("/sign-in", data={"token": f"token of {name}", "to": "/"}, headers=SAME_SITE)

    def poll(self) -> None:
        """Let the poller look at all now."""
        portal = self.http.portal
        assert portal is not None, "it was entered"
        portal.call(self.console.poller.poll_cluster)
        portal.call(self.console.poller.poll_topics)

    def page(self, path: str, status: int = 200, **headers: str) -> str:
        """Return the text of a page after a look of the poller."""
        self.poll()
        answer = self.http.get(path, headers=headers)
        assert answer.status_code == status, f"{answer.status_code}: {answer.text[:2_000]}"
        return str(answer.text)

    def post(self, path: str, data: Mapping[str, str], **headers: str) -> Any:
        return self.http.post(path, data=dict(data), headers={**SAME_SITE, **headers})


@contextmanager
def served(queue: MemoryQueue, **settings: Any) -> Iterator[tuple[str, Console]]:
    """Serve a console on a free port for browsers, and yield its URL. Each request moves the clock of the queue."""

    def now_ms() -> int:
        queue.clock.advance(_REQUEST_MS)
        return queue.clock.now_ms()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        console = Console(
            ConsoleSettings(listen=f"127.0.0.1:{port}", **settings),
            MemoryReach(queue),
            now_ms=now_ms,
            monotonic_ms=queue.clock.now_ms,
            port=port,
        )
        server = uvicorn.Server(uvicorn.Config(console.app(), log_level="warning", lifespan="on"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="console")
        thread.start()
        try:
            yield f"http://127.0.0.1:{port}", console
        finally:
            server.should_exit = True
            thread.join()
