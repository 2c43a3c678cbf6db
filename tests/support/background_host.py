"""A fake queue behind the real Thrift server, on a thread of its own: for blocking clients and commands."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvloop

from tests.support.fake_queue import FakeQueue
from tests.support.front_door import world
from tests.support.waiting import PATIENCE_S


@contextmanager
def background_host() -> Iterator[tuple[str, FakeQueue]]:
    """The address of a running host and its queue."""
    started = threading.Event()
    found: list[tuple[str, FakeQueue]] = []
    stop: list[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = []

    async def serve() -> None:
        stop_requested = asyncio.Event()
        async with world() as running:
            found.append((f"127.0.0.1:{running.server.port}", running.queue))
            stop.append((asyncio.get_running_loop(), stop_requested))
            started.set()
            await stop_requested.wait()

    def run() -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve())

    thread = threading.Thread(target=run, name="background-host")
    thread.start()
    try:
        assert started.wait(PATIENCE_S), "the host did not start"
        yield found[0]
    finally:
        for loop, stop_requested in stop:
            loop.call_soon_threadsafe(stop_requested.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
