"""A server of MySQL that is far: a proxy before it, through which each answer takes as long as a round trip."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.support.waiting import PATIENCE_S

_CHUNK_BYTES = 1 << 16


class FarServer:
    """Runs on a thread and a loop of its own. `round_trip_s` may be changed at any time."""

    def __init__(self, socket_path: str, round_trip_s: float) -> None:
        self.round_trip_s = round_trip_s
        self.port = 0
        self._socket_path = socket_path
        self._loop = asyncio.new_event_loop()
        self._is_ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        self._thread.start()
        assert self._is_ready.wait(PATIENCE_S)

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = server.sockets[0].getsockname()[1]
        self._is_ready.set()
        self._loop.run_forever()
        server.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._loop.run_until_complete(asyncio.sleep(0))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        to_reader, to_writer = await asyncio.open_unix_connection(self._socket_path)
        await asyncio.gather(self._pass_on(reader, to_writer), self._pass_on(to_reader, writer))

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Half of the time lies on each way; what follows in the same stream is not held up more."""
        with suppress(OSError, asyncio.CancelledError):
            while chunk := await reader.read(_CHUNK_BYTES):
                await asyncio.sleep(self.round_trip_s / 2)
                writer.write(chunk)
        with suppress(OSError, RuntimeError):
            writer.close()


@contextmanager
def far_server(socket_path: str, round_trip_s: float) -> Iterator[FarServer]:
    """The server at this socket, but far."""
    server = FarServer(socket_path, round_trip_s)
    server.start()
    try:
        yield server
    finally:
        server.stop()
