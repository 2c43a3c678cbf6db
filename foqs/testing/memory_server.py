"""The front of a host without a port: production's connections over a transport in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from foqs.background.service import Service
from foqs.client.dialogue import Dialogue, FrameReader
from foqs.client.flows import Call
from foqs.contract import verbs
from foqs.model.audit import AuditNote
from foqs.transport.bounds import Identities, KnownNamespaces, TransportLimits, TransportMetrics
from foqs.transport.connection import Connection
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.entrance import Entrance
from foqs.transport.sign_ins import SignIns
from foqs.transport.verb_table import Check, Verbs, request_ids
from foqs.wire.codec import Codec, Reply


class MemoryServer(Service):
    """Replaces foqs.transport.server.ThriftServer. It never closes idle connections."""

    def __init__(
        self,
        call: verbs.Call,
        *,
        address: str,
        port: int,
        is_living_peer: Callable[[str, str], bool],
        metrics: TransportMetrics,
        bounds: TransportLimits,
        namespaces: KnownNamespaces,
        identities: Identities,
        check: Check,
        wall_ms: Callable[[], int],
        tokens_without_tls: bool,
        note_refusal: Callable[[AuditNote], None] = lambda note: None,
        tls: object = None,
        peer_port: int | None = None,
        peer_tls: object = None,
        has_older_hosts: object = None,
    ) -> None:
        super().__init__("memory-server")
        self.port, self.peer_port = port, peer_port
        self._call = call
        self._is_living_peer = is_living_peer
        self._metrics = metrics
        self._bounds = bounds
        self._namespaces = namespaces
        self._identities = identities
        self._check = check
        self._wall_ms = wall_ms
        self._tokens_without_tls = tokens_without_tls
        self._note_refusal = note_refusal
        self._table: ConnectionTable | None = None

    async def _start(self) -> None:
        codec, wall_ms, now_s = Codec(), self._wall_ms, asyncio.get_running_loop().time
        served = Verbs(self._call, self._is_living_peer, codec, request_ids(wall_ms()), self._check)
        sign_ins = SignIns(
            self._identities, wall_ms, now_s, self._bounds,
            tokens_without_tls=self._tokens_without_tls, note_refusal=self._note_refusal,
        )  # fmt: skip
        entrance = Entrance(self._bounds, sign_ins)
        self._table = ConnectionTable(served, codec, self._metrics, self._bounds, self._namespaces, [entrance])

    def connect(self) -> MemoryDialogue:
        """Open a connection. Call it within the host's loop."""
        assert self._table is not None
        return MemoryDialogue(Connection(self._table), self._table.loop)

    async def _drain(self) -> None:
        if self._table is not None:
            self._table.calls.draining = True

    async def _stop(self) -> None:
        if self._table is not None:
            for connection in list(self._table.connections):
                connection.abort()
            await self._table.empty.wait()


class MemoryDialogue(asyncio.Transport):
    """Both ends of one connection: sends calls as frames, and collects replies."""

    def __init__(self, connection: Connection, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__({"peername": ("memory", 0), "socket": _NoSocket()})
        self.replies: dict[int, Reply] = {}
        """Replies that the caller has not taken yet, by seqid."""
        self._connection = connection
        self._loop = loop
        self._dialogue = Dialogue()
        self._reader = FrameReader()
        self._closing = False
        connection.connection_made(self)

    def send(self, call: Call) -> int:
        """Send a call to the host, and return its seqid. Raises errors of its arguments."""
        seqid, frame = self._dialogue.frame_of(call)
        self._connection.data_received(frame)
        return seqid

    def is_ended(self) -> bool:
        """Check if the caller is still connected, which a host does every second: True if it has to sign in again."""
        self._connection.calls.follow_identity()
        return self._closing or self._connection.calls.sign_in.is_dead

    # The interface that a connection expects of its transport.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        for message in self._reader.feed(bytes(data)):
            reply = self._dialogue.reply_in(message)
            self.replies[reply.seqid] = reply

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._connection.connection_lost, None)

    def abort(self) -> None:
        self.close()

    def is_closing(self) -> bool:
        return self._closing

    def pause_reading(self) -> None:
        """Do nothing, because the host gets each call as a whole, and the next one after the answer."""

    def resume_reading(self) -> None:
        """Do nothing, as above."""

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, because written data is taken at once."""

    def get_write_buffer_size(self) -> int:
        return 0


class _NoSocket:
    """Ignores the options of a socket."""

    def setsockopt(self, *_: Any) -> None:
        return None
