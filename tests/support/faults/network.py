"""A TCP proxy that is a bad network: slow, cut at any byte, or gone without a word (half-open).

After toxiproxy (Shopify), in one thread and one process with those who use it; kernels without netem can run it too.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from types import TracebackType
from typing import Self

from tests.support.faults import FaultError
from tests.support.waiting import PATIENCE_S

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect = Callable[[], Awaitable[Streams]]
_CHUNK_BYTES = 64 * 1024
_RESET_AT_CLOSE = struct.pack("ii", 1, 0)


class _Link:
    """One connection: both its ends."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.ends = (near, far)
        self.bytes_to_cut: int | None = None
        """So many bytes more are passed on, in either direction, then both ends see a reset."""
        self.has_lost_bytes = False

    def reset(self) -> None:
        for end in self.ends:
            with suppress(OSError):  # It is closed already.
                end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_AT_CLOSE)
            end.transport.abort()


class BadNetwork:
    """Listens on a port of `address`; `connect` opens a connection to the far side. A context manager.

    Its methods are for one other thread; they return at once.
    """

    def __init__(self, connect: Connect, name: str, address: str = "127.0.0.1") -> None:
        self.address = address
        self.port = 0
        self._connect = connect
        self._loop = asyncio.new_event_loop()
        self._links: set[_Link] = set()
        self._delay_s = 0.0
        self._is_gone = False
        self._thread = threading.Thread(target=self._run, name=f"network-{name}")
        self._started: Future[int] = Future()
        self._stop = asyncio.Event()

    def slow_down(self, delay_ms: int) -> None:
        """Every piece of data takes so much longer, each way; 0 for no delay."""
        self._delay_s = delay_ms / 1000

    def cut(self, link_count: int, bytes_max: int, rng: random.Random) -> None:
        """Reset so many connections, each after some number of bytes more, drawn up to the given one."""
        after = [rng.randrange(bytes_max + 1) for _ in range(link_count)]

        def arm() -> None:
            links = sorted(self._links, key=id)
            for link, count in zip(rng.sample(links, min(link_count, len(links))), after, strict=False):
                link.bytes_to_cut = count

        self._loop.call_soon_threadsafe(arm)

    def lose(self) -> None:
        """From now on nothing arrives on the other side, and nobody is told."""
        self._is_gone = True

    def find(self) -> None:
        """The end of `lose`: connections that lost something on the way are reset, as their peers would."""

        def back() -> None:
            self._is_gone = False
            for link in self._links:
                if link.has_lost_bytes:
                    link.reset()

        self._loop.call_soon_threadsafe(back)

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = self._started.result(PATIENCE_S)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(PATIENCE_S)
        if self._thread.is_alive():
            raise FaultError(f"{self._thread.name} does not end")

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._listen())

    async def _listen(self) -> None:
        server = await asyncio.start_server(self._serve, self.address, 0)
        self._started.set_result(server.sockets[0].getsockname()[1])
        await self._stop.wait()
        server.close()
        for link in self._links:
            link.reset()
        serving = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if serving:
            await asyncio.wait(serving, timeout=PATIENCE_S)

    async def _serve(self, near_reader: asyncio.StreamReader, near: asyncio.StreamWriter) -> None:
        try:
            far_reader, far = await self._connect()
        except OSError:
            near.transport.abort()
            return
        link = _Link(near, far)
        self._links.add(link)
        pumps = [
            asyncio.create_task(self._pump(link, near_reader, far), name="asking"),
            asyncio.create_task(self._pump(link, far_reader, near), name="answering"),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._links.discard(link)
            # What was read before the end is on its way to the other side; then both are closed.
            near.close()
            far.close()
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _pump(self, link: _Link, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        """One direction, until its source ends or either side is reset."""
        try:
            while data := await source.read(_CHUNK_BYTES):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                if self._is_gone:
                    link.has_lost_bytes = True
                    continue
                if link.bytes_to_cut is not None:
                    passed, link.bytes_to_cut = data[: link.bytes_to_cut], link.bytes_to_cut - len(data)
                    target.write(passed)
                    if link.bytes_to_cut <= 0:
                        await target.drain()
                        link.reset()
                        return
                    continue
                target.write(data)
                await target.drain()
        except OSError:
            return  # A reset is the end of a connection like any other.
