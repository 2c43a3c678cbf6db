"""A Thrift server in front of a fake queue, for the tests of the front door."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, cast

from foqs.transport.bounds import TransportLimits
from foqs.transport.connection import Connection
from foqs.transport.server import ThriftServer
from foqs.wire.codec import Codec, structs
from tests.support.fake_queue import FakeQueue
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_S


class Counts:
    def __init__(self) -> None:
        self.finished: list[tuple[str, str]] = []
        self.errors: list[str] = []
        self.refused: list[str] = []
        self.handshakes: list[str] = []
        self.open = 0
        self.changed = asyncio.Event()

    def connection_opened(self) -> None:
        self.open += 1
        self.changed.set()

    def connection_closed(self) -> None:
        self.open -= 1
        self.changed.set()

    def connection_refused(self, reason: str) -> None:
        self.refused.append(reason)

    def protocol_error(self, reason: str) -> None:
        self.errors.append(reason)
        self.changed.set()

    def handshake_ended(self, outcome: str) -> None:
        self.handshakes.append(outcome)
        self.changed.set()

    async def until_handshakes(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while len(self.handshakes) < count:
                self.changed.clear()
                await self.changed.wait()

    async def until_error(self, reason: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while reason not in self.errors:
                self.changed.clear()
                await self.changed.wait()

    def call_finished(self, method: str, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.finished.append((method, outcome))

    def long_poll_finished(self, outcome: str, seconds: float) -> None:
        assert seconds >= 0
        self.finished.append(("dequeue", outcome))


class World:
    """A running server with its queue and counts."""

    def __init__(self, server: ThriftServer, queue: FakeQueue, counts: Counts) -> None:
        self.server = server
        self.queue = queue
        self.counts = counts
        self.codec = Codec()

    def connect(
        self, own_address: str | None = None, tls: ssl.SSLContext | None = None
    ) -> AbstractAsyncContextManager[RawClient]:
        return RawClient.connect("127.0.0.1", self.server.port, own_address, tls)

    async def is_healthy(self, own_address: str | None = None) -> bool:
        """Whether a client of its own gets an answer."""
        async with self.connect(own_address) as client:
            reply = await client.call("getHostStatus", structs.HostStatusRequest())
            return bool(reply.response.host == "fake")

    def connections(self) -> list[Connection]:
        assert self.server._table is not None
        return [cast(Connection, connection) for connection in self.server._table.connections]

    async def until_open(self, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.counts.open != count:
                self.counts.changed.clear()
                await self.counts.changed.wait()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not holds():  # noqa: ASYNC110 - nobody tells of what is within the server
            await asyncio.sleep(0)


@asynccontextmanager
async def world(bounds: TransportLimits | None = None) -> AsyncIterator[World]:
    queue, counts = FakeQueue(), Counts()
    server = ThriftServer(
        queue.call,
        address="127.0.0.1",
        port=0,
        namespaces=queue,
        metrics=counts,
        bounds=bounds,
    )
    await server.start()
    try:
        yield World(server, queue, counts)
    finally:
        await server.stop()
        assert counts.open == 0


def enqueue_request(*payloads: bytes) -> Any:
    return structs.EnqueueRequest("ns", [structs.NewItem("topic", payload) for payload in payloads])


def dequeue_request(count: int, wait_ms: int = 0) -> Any:
    return structs.DequeueRequest("ns", [structs.TopicDemand("topic", count)], None, wait_ms)
