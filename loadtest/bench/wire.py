"""A thin client: the library's codec on a socket, many calls in flight, so that the host is what is measured."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from struct import Struct
from typing import Any, cast

from foqs.model.errors import OverloadedError, UnavailableError
from foqs.wire.codec import Codec, for_seqid, structs
from loadtest.bench.clients import process_number
from loadtest.peers.adapter import Offer

NAMESPACE = "bench"
_length = Struct("!I").unpack_from


class Wire(asyncio.Protocol):
    """One connection; answers are told apart by seqid."""

    def __init__(self) -> None:
        self.codec = Codec()
        self._buffer = bytearray()
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._seqid = 0
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, port: int, address: str | None = None, tls: ssl.SSLContext | None = None) -> Wire:
        """Each client process has an address of its own, as on a machine of its own: hosts are fair to addresses.

        `address` is another one, which it may share.
        """
        place = (address or f"127.0.0.{2 + process_number() % 200}", 0)
        _, wire = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port, local_addr=place, ssl=tls)
        return wire

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= 4:
            end = 4 + _length(self._buffer)[0]
            if len(self._buffer) < end:
                return
            reply = self.codec.decode_reply(bytes(self._buffer[4:end]))
            del self._buffer[:end]
            call = self._calls.pop(reply.seqid)
            if call.cancelled():
                continue
            if reply.error is None:
                call.set_result(reply.response)
            else:
                call.set_exception(reply.error)

    def connection_lost(self, error: Exception | None) -> None:
        for call in [call for call in self._calls.values() if not call.done()]:
            call.set_exception(ConnectionError("the host closed the connection"))

    def call(self, method: str, request: Any) -> asyncio.Future[Any]:
        """Raises ConnectionError when the host has closed the connection."""
        return self.send(self.codec.encode_call(method, request, 0))

    def send(self, frame: bytes) -> asyncio.Future[Any]:
        """A call that was encoded before, maybe for another connection."""
        if self._transport.is_closing():
            raise ConnectionError("the host closed the connection")
        self._seqid += 1
        self._calls[self._seqid] = done = asyncio.get_running_loop().create_future()
        self._transport.write(for_seqid(frame, self._seqid))
        return done

    @property
    def is_closed(self) -> bool:
        return self._transport.is_closing()

    def close(self) -> None:
        self._transport.close()

    def abort(self) -> None:
        """At once, whatever is still to be sent or to come."""
        self._transport.abort()

    async def enqueue(self, offers: Sequence[Offer]) -> None:
        """Every one must be taken. What a host is too busy for is sent again when it says."""
        news = [
            structs.NewItem(
                offer.topic, offer.payload, offer.priority, None, offer.delay_ms or None, dedup_id=offer.dedup_id
            )
            for offer in offers
        ]
        request = structs.EnqueueRequest(NAMESPACE, news)
        while True:
            try:
                response = await self.call("enqueue", request)
                break
            except OverloadedError as error:
                await asyncio.sleep((error.retry_after_ms or 0) / 1_000)
        assert not response.errors, response.errors
        assert not response.duplicates, response.duplicates

    async def dequeue(self, topics: Sequence[str], count: int, wait_ms: int, lease_ms: int) -> list[Any]:
        """`count` is shared out among the topics, with at least one of each."""
        each = -(-count // len(topics))
        demand = [structs.TopicDemand(topic, each) for topic in topics]
        response = await self.call("dequeue", structs.DequeueRequest(NAMESPACE, demand, lease_ms, wait_ms))
        items: list[Any] = response.items
        return items

    async def ack(self, receipts: list[str]) -> None:
        response = await self.call("ack", structs.AckRequest(NAMESPACE, receipts))
        assert not response.errors, response.errors

    async def nack(self, receipts: list[str], delay_ms: int) -> None:
        nacks = [structs.Nack(receipt, delay_ms) for receipt in receipts]
        response = await self.call("nack", structs.NackRequest(NAMESPACE, nacks))
        assert not response.errors, response.errors

    async def ready_count(self, topic: str) -> int:
        """Exact: waits until the host has counted what it found when it started."""
        while True:
            try:
                response = await self.call("getActiveTopics", structs.ActiveTopicsRequest(NAMESPACE, topic))
            except UnavailableError:
                continue  # The host has waited for its counts already, as long as a call may.
            return sum(stats.ready for stats in response.topics if stats.topic == topic)
