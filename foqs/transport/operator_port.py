"""The port for operators' tools: /livez, /readyz and /startupz for supervisors, /metrics for Prometheus.

It answers on threads of its own, so it works while the event loop is blocked. Each connection is one request and one
answer within limits.OPERATOR_CALL_MS_MAX. Only a few are open at a time, and a new one replaces the oldest, so a slow
watcher delays nobody. If the port has a token, only who shows it gets metrics and the reasons of probes.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from socketserver import TCPServer, ThreadingMixIn
from typing import Any

import structlog
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from foqs.background.service import Service
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.model.secret import Secret

_log = structlog.get_logger(__name__)

Probe = Callable[[], str | None]
"""None if all is well, otherwise the reason."""
_POLL_S = 0.1
"""Interval, in seconds, of the checks for overdue connections, and for the stop of the port."""


class OperatorPort(Service):
    """Serves `probes` by path; each answers 200, or 503 with its reason. Port 0 takes a free one, None disables it."""

    def __init__(
        self,
        address: str,
        port: int | None,
        probes: Mapping[str, Probe],
        registry: CollectorRegistry,
        token: Callable[[], Secret] | None = None,
    ) -> None:
        """`token` reads the token of each request; without one, everybody reads everything."""
        super().__init__("operator-port")
        self._address = address
        self._port = port
        self._probes = probes
        self._registry = registry
        self._token = token
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    @property
    def port(self) -> int | None:
        """The bound port; the requested one before `start`."""
        return self._port

    async def _start(self) -> None:
        """Bind the port. Raises OSError if that fails."""
        if self._port is None:
            return
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(
            self._address, self._port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
        family, _, _, _, place = found[0]
        self._server = server = _Server(family, place, self._probes, self._registry, self._token)
        self._port = server.server_address[1]
        self._thread = threading.Thread(target=server.serve_forever, args=(_POLL_S,), name=self.name, daemon=True)
        self._thread.start()

    async def _stop(self) -> None:
        server, thread = self._server, self._thread
        if server is None or thread is None:
            return
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        server.end_connections(older_than_ms=-1)
        await asyncio.to_thread(thread.join)


class _Server(ThreadingMixIn, TCPServer):
    """Serves each connection on a thread of its own. The operator port makes it, and it owns its connections.

    At most limits.OPERATOR_CONNECTIONS_MAX are open, and one more ends the oldest. As many can be ending: a running
    response is finished by its thread, though nobody gets it.
    """

    allow_reuse_address = True
    daemon_threads = True
    block_on_close = False
    request_queue_size = limits.OPERATOR_CONNECTIONS_MAX

    def __init__(
        self,
        family: int,
        place: Any,
        probes: Mapping[str, Probe],
        registry: CollectorRegistry,
        token: Callable[[], Secret] | None,
    ) -> None:
        self.address_family = family
        self.token = token
        self.probes = probes
        self.registry = registry
        self._open: dict[socket.socket, float] = {}
        """The time at which each connection was accepted, the oldest first."""
        self._ending: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(place, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._lock:
            is_admitted = len(self._ending) < limits.OPERATOR_CONNECTIONS_MAX
            if is_admitted:
                if len(self._open) >= limits.OPERATOR_CONNECTIONS_MAX:
                    self._end(next(iter(self._open)))
                self._open[request] = time.monotonic()
        if is_admitted:
            super().process_request(request, client_address)
        else:
            super().shutdown_request(request)

    def shutdown_request(self, request: Any) -> None:
        with self._lock:
            self._open.pop(request, None)
            self._ending.discard(request)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        self.end_connections(limits.OPERATOR_CALL_MS_MAX)

    def end_connections(self, older_than_ms: int) -> None:
        """End old connections. A timeout of the socket would not do, because it begins anew with each byte."""
        with self._lock:
            now_s = time.monotonic()
            for connection, since_s in list(self._open.items()):
                if (now_s - since_s) * 1000 > older_than_ms:
                    self._end(connection)

    def _end(self, connection: socket.socket) -> None:
        """End a connection; its thread notices that, and forgets it."""
        del self._open[connection]
        self._ending.add(connection)
        with suppress(OSError):  # It has ended by itself.
            connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        error = sys.exception()
        if isinstance(error, OSError):
            _log.debug("watcher_left", address=str(client_address[0]), error=str(error))
        else:
            _log.error("host_defect", work=self.__class__.__qualname__, exc_info=True)


class _Handler(BaseHTTPRequestHandler):
    """One request. HTTP/1.0, as the base class speaks by default: the connection ends with the answer."""

    server: _Server
    server_version = "foqs"
    sys_version = ""
    timeout = limits.OPERATOR_CALL_MS_MAX / 1000

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        probe = self.server.probes.get(path)
        if probe is not None:
            problem = probe()
            status = HTTPStatus.OK if problem is None else HTTPStatus.SERVICE_UNAVAILABLE
            # A reason has words of MySQL and ids of shards.
            reason = problem if problem is None or self._shows_token() else "not ok"
            self._answer(status, f"{reason or 'ok'}\n".encode(), "text/plain; charset=utf-8")
        elif path == "/metrics" and not self._shows_token():
            refusal = b"metrics need the token of this port\n"
            self._answer(HTTPStatus.UNAUTHORIZED, refusal, "text/plain; charset=utf-8")
        elif path == "/metrics":
            encode, content_type = self._encoder()
            self._answer(HTTPStatus.OK, encode(self.server.registry), content_type)
        else:
            known = ", ".join(["/metrics", *self.server.probes])
            self._answer(HTTPStatus.NOT_FOUND, f"there are {known}\n".encode(), "text/plain; charset=utf-8")

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing, because a probe every few seconds is no event."""

    def _shows_token(self) -> bool:
        """True if the request has the token of this port, or the port has none."""
        if self.server.token is None:
            return True
        scheme, _, shown = self.headers.get("Authorization", "").partition(" ")
        if scheme.lower() != "bearer":
            return False
        try:
            expected = self.server.token().reveal()
        except InvalidArgumentError as error:
            _log.error("secret_file_unusable", error=error.message)
            return False
        # Headers are read as Latin-1, whatever they are.
        return hmac.compare_digest(shown.strip(" \t").encode("latin1"), expected)

    def _encoder(self) -> tuple[Callable[[CollectorRegistry], bytes], str]:
        try:
            return choose_encoder(self.headers.get("Accept", ""))
        except (TypeError, ValueError):  # An invalid Accept counts as none.
            return choose_encoder("")

    def _answer(self, status: HTTPStatus, body: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        if status is HTTPStatus.UNAUTHORIZED:
            self.send_header("WWW-Authenticate", "Bearer")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
