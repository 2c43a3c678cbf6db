"""A proxy that ends TLS and passes the bytes on to a port of this machine, as users put one in front of a host."""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.waiting import PATIENCE_S

_READ_BYTES = 64 * 1024


@contextmanager
def tls_proxy(directory: Path, port: int) -> Iterator[int]:
    """Yield the port at which it speaks TLS, with `cert.pem` and `key.pem` of the directory."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    ready = threading.Event()
    told: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, int]] = []

    async def passed(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(_READ_BYTES):
                writer.write(data)
                await writer.drain()
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ssl.SSLError):
            from_host, to_host = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.gather(passed(reader, to_host), passed(from_host, writer), return_exceptions=True)

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
        stop = asyncio.Event()
        told.append((asyncio.get_running_loop(), stop, server.sockets[0].getsockname()[1]))
        ready.set()
        async with server:
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=[run()], name="tls-proxy")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S), "the proxy did not start"
        yield told[0][2]
    finally:
        for loop, stop, _ in told:
            loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
