"""Connections that misbehave, many at a time, from addresses of this machine's own."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from typing import cast

CONNECTS_PER_STEP_MAX = 100
STEP_S = 0.05


@dataclass
class Tally:
    """What became of a flood's connections; `all_opened` as soon as `wanted` have been open."""

    wanted: int = 0
    all_opened: asyncio.Event = field(default_factory=asyncio.Event)
    opened: int = 0
    ended: int = 0
    answer_bytes: int = 0
    peers: set[Peer] = field(default_factory=set)


class Peer(asyncio.Protocol):
    """Sends `first`, then `drip` now and then or `stream` for ever; not `reads`: takes no answer."""

    def __init__(self, tally: Tally, *, first: bytes, drip: bytes, stream: bytes, reads: bool) -> None:
        self._tally = tally
        self._first, self.drip, self._stream, self._reads = first, drip, stream, reads
        self.transport: asyncio.Transport | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._tally.opened += 1
        if self._tally.opened >= self._tally.wanted:
            self._tally.all_opened.set()
        self._tally.peers.add(self)
        if not self._reads:
            self.transport.pause_reading()
        if self._first:
            self.transport.write(self._first)
        if self._stream:
            self.transport.set_write_buffer_limits(high=len(self._stream))
            self._pump()

    def data_received(self, data: bytes) -> None:
        self._tally.answer_bytes += len(data)

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self._pump()

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._tally.ended += 1
        self._tally.peers.discard(self)

    def _pump(self) -> None:
        if self._stream and self.transport is not None and not self._paused and not self.transport.is_closing():
            self.transport.write(self._stream)
            asyncio.get_running_loop().call_soon(self._pump)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flood:
    """`count` connections over `addresses`, opened again when the host closes them.

    below_tls: what is sent is not encrypted, also where the others speak TLS.
    """

    name: str
    count: int
    addresses: tuple[str, ...] = ("127.0.0.2",)
    first: bytes = b""
    drip: bytes = b""
    drip_s: float = 0.5
    stream: bytes = b""
    reads: bool = True
    hangs_up: bool = False
    below_tls: bool = False

    async def run(self, port: int, tally: Tally, tls: ssl.SSLContext | None = None) -> None:
        """Until it is cancelled."""
        loop = asyncio.get_running_loop()
        dripped_s = loop.time()
        turn = 0
        context = None if self.below_tls else tls
        shaking: set[asyncio.Task[None]] = set()
        try:
            while True:
                wanted = min(self.count - len(tally.peers) - len(shaking), CONNECTS_PER_STEP_MAX)
                connects: list[Coroutine[object, object, object]] = []
                for _ in range(wanted):
                    turn += 1
                    address = self.addresses[turn % len(self.addresses)]
                    connects.append(
                        loop.create_connection(
                            self._peer(tally), "127.0.0.1", port, local_addr=(address, 0), ssl=context
                        )
                    )
                if context is None:
                    await asyncio.gather(*connects, return_exceptions=True)
                else:  # Handshakes wait for their turns; the rest of the flood goes on.
                    for connect in connects:
                        task = asyncio.ensure_future(_quietly(connect))
                        shaking.add(task)
                        task.add_done_callback(shaking.discard)
                if self.drip and loop.time() - dripped_s >= self.drip_s:
                    dripped_s = loop.time()
                    for peer in list(tally.peers):
                        if peer.transport is not None:
                            peer.transport.write(peer.drip)
                if self.hangs_up:
                    _abort(tally)
                await asyncio.sleep(STEP_S)
        finally:
            for task in list(shaking):
                task.cancel()
            await asyncio.gather(*shaking, return_exceptions=True)
            _abort(tally)

    def _peer(self, tally: Tally) -> Callable[[], Peer]:
        return lambda: Peer(tally, first=self.first, drip=self.drip, stream=self.stream, reads=self.reads)


async def _quietly(connect: Coroutine[object, object, object]) -> None:
    """A handshake that the host refuses or that takes too long is no failure of the flood."""
    with suppress(OSError):
        await connect


def _abort(tally: Tally) -> None:
    for peer in list(tally.peers):
        if peer.transport is not None:
            peer.transport.abort()
