"""How many files a reader has to open to follow a call through a host, counted on real shards and a real port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing

import pytest

from foqs.shard.mysql_server import COALESCE_TURNS_MAX
from foqs.wire.codec import Codec, structs
from foqs.wire.frames import LENGTH_BYTES
from tests.support.cluster import cluster, shards_of
from tests.support.flow_trace import Flow, traced
from tests.support.running_host import RunningHost, running_host, shard_of
from tests.support.waiting import PATIENCE_S, until

pytestmark = pytest.mark.interpreted

_TRIES = 5
_TRIES_OF_HOSTS = 50
"""On a busy machine hosts have more to tell each other while a call is under way."""


class _Peer:
    """A client on a thread of its own, so that nothing of it is traced."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)

    def exchange(self, frame: bytes) -> bytes:
        self._socket.sendall(frame)
        return self.receive()

    def send(self, frame: bytes) -> None:
        self._socket.sendall(frame)

    def receive(self) -> bytes:
        head = self._take(LENGTH_BYTES)
        return self._take(int.from_bytes(head, "big"))

    def close(self) -> None:
        self._socket.close()

    def _take(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._socket.recv(count - len(data))
            assert more, "the host closed the connection"
            data += more
        return data


async def _calm() -> None:
    """Let the event loop turn until nothing of the last call is left: its shard coalesces for some turns."""
    for _ in range(4 * COALESCE_TURNS_MAX):
        await asyncio.sleep(0)


async def _enqueue(host: RunningHost, peer: _Peer, codec: Codec) -> Flow:
    frame = codec.encode_call("enqueue", structs.EnqueueRequest("jobs", [structs.NewItem("a", b"x")]), 0)
    await _calm()
    with traced() as flow:
        answer = await asyncio.to_thread(peer.exchange, frame)
    reply = codec.decode_reply(answer)
    assert reply.error is None
    assert len(reply.response.ids) == 1
    return flow


async def _enqueue_for_a_waiting_consumer(host: RunningHost, peer: _Peer, codec: Codec) -> Flow:
    wanted = structs.DequeueRequest("jobs", [structs.TopicDemand("b", 1)], wait_ms=20_000)
    with closing(_Peer(host.host.port)) as consumer:
        await asyncio.to_thread(consumer.send, codec.encode_call("dequeue", wanted, 0))
        await until(lambda: bool(host.host._dispatcher.queues.waiting_count))
        frame = codec.encode_call("enqueue", structs.EnqueueRequest("jobs", [structs.NewItem("b", b"x")]), 0)
        await _calm()
        with traced() as flow:
            await asyncio.to_thread(peer.exchange, frame)
            answer = await asyncio.to_thread(consumer.receive)
    reply = codec.decode_reply(answer)
    assert len(reply.response.items) == 1
    return flow


async def _dequeue(host: RunningHost, peer: _Peer, codec: Codec) -> Flow:
    await host.client.enqueue("jobs", "d", b"x")
    return await _dequeued(peer, codec, "d")


async def _dequeued(peer: _Peer, codec: Codec, topic: str) -> Flow:
    wanted = structs.DequeueRequest("jobs", [structs.TopicDemand(topic, 1)], wait_ms=20_000)
    frame = codec.encode_call("dequeue", wanted, 0)
    await _calm()
    with traced() as flow:
        answer = await asyncio.to_thread(peer.exchange, frame)
    assert len(codec.decode_reply(answer).response.items) == 1
    return flow


async def _ack(host: RunningHost, peer: _Peer, codec: Codec) -> Flow:
    receipt = await _leased(host)
    frame = codec.encode_call("ack", structs.AckRequest("jobs", [receipt]), 0)
    await _calm()
    with traced() as flow:
        answer = await asyncio.to_thread(peer.exchange, frame)
    reply = codec.decode_reply(answer)
    assert not reply.response.errors
    return flow


async def _nack_with_delay(host: RunningHost, peer: _Peer, codec: Codec) -> Flow:
    receipt = await _leased(host)
    frame = codec.encode_call("nack", structs.NackRequest("jobs", [structs.Nack(receipt, 60_000)]), 0)
    await _calm()
    with traced() as flow:
        answer = await asyncio.to_thread(peer.exchange, frame)
    reply = codec.decode_reply(answer)
    assert not reply.response.errors
    return flow


async def _leased(host: RunningHost) -> str:
    await host.client.enqueue("jobs", "c", b"x")
    (item,) = await host.client.dequeue("jobs", "c", count=1, wait_ms=20_000)
    return item.receipt


@pytest.mark.parametrize(
    ("trace", "files_max", "returns_max"),
    [
        (_enqueue, 43, 66),
        (_enqueue_for_a_waiting_consumer, 58, 160),  # Two calls, and between them the dispatcher.
        (_dequeue, 35, 46),
        (_ack, 34, 38),
        (_nack_with_delay, 36, 46),
    ],
)
async def test_a_call_passes_through_few_files_and_seldom_comes_back_to_one(
    meta_url: str, shard_urls: dict[int, str], trace: Callable[..., object], files_max: int, returns_max: int
) -> None:
    codec = Codec()
    async with running_host(meta_url, {0: shard_urls[0]}) as host:
        with closing(_Peer(host.host.port)) as peer:
            await _enqueue(host, peer, codec)  # What is made on first use is made.
            # Whatever else the host has to do by the clock may come between: the least is the call's own.
            flows = [await trace(host, peer, codec) for _ in range(_TRIES)]
    fewest = min(flows, key=lambda flow: len(flow.entered))
    assert len(fewest.files) <= files_max, str(fewest)
    assert fewest.returns_count <= returns_max, str(fewest)


async def _routed_ack(hosts: list[RunningHost], peer: _Peer, codec: Codec) -> Flow:
    """The host that is asked hands the receipt on to the owner of its shard."""
    return await _ack(hosts[1], peer, codec)


async def _pulled_dequeue(hosts: list[RunningHost], peer: _Peer, codec: Codec) -> Flow:
    """The host that is asked gets the item from the host that has it."""
    item_id = await hosts[1].client.enqueue("jobs", "e", b"x")
    assert shard_of(item_id) in shards_of(hosts[1])
    return await _dequeued(peer, codec, "e")


@pytest.mark.parametrize(
    ("trace", "files_max", "returns_max"),
    [
        (_routed_ack, 50, 130),
        pytest.param(_pulled_dequeue, 66, 450, marks=pytest.mark.deep),
    ],
)
async def test_a_call_that_another_host_does_passes_through_few_files(
    meta_url: str, shard_urls: dict[int, str], trace: Callable[..., object], files_max: int, returns_max: int
) -> None:
    """Files that both hosts enter count once; what hosts do for themselves meanwhile counts, so the least is taken."""
    codec = Codec()
    async with cluster(meta_url, shard_urls, 2) as hosts:
        with closing(_Peer(hosts[0].host.port)) as peer:
            await trace(hosts, peer, codec)
            flows: list[Flow] = []
            for _ in range(_TRIES_OF_HOSTS):
                flows.append(await trace(hosts, peer, codec))
                fewest = min(flows, key=lambda flow: len(flow.files))
                returns_count = min(flow.returns_count for flow in flows)
                if len(fewest.files) <= files_max and returns_count <= returns_max:
                    return
    raise AssertionError(f"{returns_count} returns at least\n{fewest}")
