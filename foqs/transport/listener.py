"""The listening sockets of a server, which accept only a few connections in each turn of the event loop."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Sequence
from typing import Any

import structlog

from foqs.background.tasks import Tasks
from foqs.model import limits

LISTEN_BACKLOG = 1_024
ACCEPTS_PER_TURN_MAX = 1
"""Connections that one turn of the event loop accepts. Each takes 0.25 ms."""
TURN_AWAYS_PER_ACCEPT = 4
"""Turning away this many connections counts as accepting one."""
ACCEPT_PAUSE_MS = 1 * limits.SECOND_MS
"""The pause in accepting connections after the system has run out of a resource that they need."""

_log = structlog.get_logger(__name__)

_NO_IPV6 = frozenset({errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL})
_Resolved = tuple[socket.AddressFamily, socket.SocketKind, int, str, tuple[Any, ...]]
_NONE_THERE = BlockingIOError, InterruptedError, ConnectionAbortedError


class Listener:
    """Owns the sockets that a server listens on, and makes connections from them. The server opens it.

    The event loops' own servers accept all waiting connections in one turn, which takes 30 ms for a hundred.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        make: Callable[[], asyncio.Protocol],
        turns_away: Callable[[str], bool],
    ) -> None:
        """`make` makes the protocol of a connection; `turns_away` is True for an address with too many connections.

        A connection that is turned away is closed before it has a transport, which costs less than a third of one.
        """
        self._loop = loop
        self._make = make
        self._turns_away = turns_away
        self._sockets: list[socket.socket] = []
        self._accepting = Tasks("accept")
        self._pause: asyncio.TimerHandle | None = None

    async def open(self, address: str, port: int) -> int:
        """Listen on all addresses of the name `address`; port 0 takes a free one. Returns the port. Raises OSError."""
        places = await self._resolve(address or None, port)
        unusable: OSError | None = None
        try:
            for family, place in dict.fromkeys((family, place) for family, _, _, _, place in places):
                if self._sockets:
                    place = (place[0], self._bound_port(), *place[2:])  # noqa: PLW2901 - all have one port
                try:
                    listening = socket.create_server(place, family=family, backlog=LISTEN_BACKLOG)
                except OSError as error:
                    if family != socket.AF_INET6 or error.errno not in _NO_IPV6:
                        raise
                    unusable = error
                    continue
                listening.setblocking(False)
                self._sockets.append(listening)
            if unusable is not None and not self._sockets:
                raise unusable
        except OSError:
            self.close()
            raise
        self._accept_from_now_on()
        return self._bound_port()

    def close(self) -> None:
        """Stop accepting. Accepted connections live on."""
        if self._pause is not None:
            self._pause.cancel()
        for listening in self._sockets:
            self._loop.remove_reader(listening)
            listening.close()
        self._sockets.clear()

    async def wait_closed(self) -> None:
        """Wait until all accepted sockets are connections. Call it after `close`."""
        await self._accepting.finish(limits.CALL_CANCEL_MS_MAX)

    async def _resolve(self, name: str | None, port: int) -> Sequence[_Resolved]:
        """Resolve a name, on another thread if it has to be looked up, because that can take long."""
        kind, flags = socket.SOCK_STREAM, socket.AI_PASSIVE
        try:
            return socket.getaddrinfo(name, port, type=kind, flags=flags | socket.AI_NUMERICHOST)
        except socket.gaierror:
            return await self._loop.getaddrinfo(name, port, type=kind, flags=flags)

    def _bound_port(self) -> int:
        return int(self._sockets[0].getsockname()[1])

    def _accept_from_now_on(self) -> None:
        self._pause = None
        for listening in self._sockets:
            self._loop.add_reader(listening, self._accept, listening)

    def _accept_later(self, pause_ms: int) -> None:
        for listening in self._sockets:
            self._loop.remove_reader(listening)
        if self._pause is not None:
            self._pause.cancel()
        self._pause = self._loop.call_later(pause_ms / 1000, self._accept_from_now_on)

    def _accept(self, listening: socket.socket) -> None:
        left = ACCEPTS_PER_TURN_MAX * TURN_AWAYS_PER_ACCEPT
        while left > 0:
            try:
                connection, place = listening.accept()
            except _NONE_THERE:
                return
            except OSError as error:
                _log.error("accept_failed", error=str(error), retry_after_ms=ACCEPT_PAUSE_MS)
                self._accept_later(ACCEPT_PAUSE_MS)
                return
            if self._turns_away(str(place[0])):
                connection.close()
                left -= 1
                continue
            left -= TURN_AWAYS_PER_ACCEPT
            connection.setblocking(False)
            welcome = self._loop.connect_accepted_socket(self._make, connection)
            self._accepting.lend(welcome).add_done_callback(_accepted)
        self._accept_later(limits.CHORE_PAUSE_MS)


def _accepted(task: asyncio.Task[Any]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.error("accept_failed", error=str(error), retry_after_ms=0)
