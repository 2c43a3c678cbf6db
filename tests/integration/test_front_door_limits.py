"""The bounds of the Thrift port: slow, silent, greedy and deaf peers, with the limits shortened."""

from __future__ import annotations

import asyncio
import resource
from contextlib import AsyncExitStack

import pytest

from foqs.bootstrap import Host
from foqs.config import HostConfig
from foqs.model import limits
from foqs.model.errors import OverloadedError
from foqs.transport import connection_table
from foqs.transport.bounds import TransportLimits
from foqs.transport.fair_scheduler import PenaltyLimits, SchedulerLimits
from foqs.transport.server import FILES_BESIDE_CONNECTIONS, allowed_connections
from foqs.wire.codec import structs
from foqs.wire.frames import FrameTimes
from tests.support.front_door import dequeue_request, enqueue_request, until, world
from tests.support.loops import on_each_loop, on_uvloop
from tests.support.raw_client import RawClient

SHORT_MS = 50
LONG_MS = 60_000


@on_uvloop
async def test_a_first_frame_is_not_put_off_by_its_first_bytes() -> None:
    bounds = TransportLimits(frame_times=FrameTimes(first_frame_ms_max=SHORT_MS, header_ms_max=LONG_MS), sweep_ms=5)
    async with world(bounds) as w, w.connect() as client:
        await client.send_bytes(b"\0\0")
        assert await client.is_closed()
        assert w.counts.errors == ["first_frame_deadline"]


@on_uvloop
async def test_an_idle_connection_is_closed_without_being_called_an_error() -> None:
    async with world(TransportLimits(idle_ms_max=SHORT_MS, sweep_ms=5)) as w, w.connect() as client:
        await client.call("getHostStatus", structs.HostStatusRequest())
        assert await client.is_closed()
        assert w.counts.errors == []


@on_uvloop
async def test_a_long_poll_is_not_idle() -> None:
    async with world(TransportLimits(idle_ms_max=SHORT_MS, sweep_ms=5)) as w, w.connect() as client:
        client.send("dequeue", dequeue_request(1, wait_ms=4 * SHORT_MS), seqid=3)
        assert (await client.receive()).response.items == []


@on_uvloop
async def test_no_deadline_runs_for_bytes_that_the_server_itself_does_not_read() -> None:
    bounds = TransportLimits(
        frame_times=FrameTimes(body_ms_min=SHORT_MS, header_ms_max=SHORT_MS), calls_in_flight_max=1, sweep_ms=5
    )
    async with world(bounds) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        frame = w.codec.encode_call("enqueue", enqueue_request(b"x" * 9_000), 1)
        await client.send_bytes(frame + frame[:5_000])
        await w.queue.until_running(1)
        assert not await client.closes_within(4 * SHORT_MS / 1000)
        await client.send_bytes(frame[5_000:])
        w.queue.gate.set()
        assert [(await client.receive()).error for _ in range(2)] == [None, None]


@on_uvloop
async def test_all_connections_together_are_bounded() -> None:
    async with world(TransportLimits(connections_max=1)) as w, w.connect() as client:
        await client.call("getHostStatus", structs.HostStatusRequest())
        async with w.connect() as second:
            assert await second.is_closed()
        assert w.counts.refused == ["connections_max"]


@on_uvloop
async def test_many_that_break_the_protocol_at_once_are_all_hung_up_on_and_counted() -> None:
    count = 5 * connection_table.HANG_UPS_PER_TURN_MAX
    async with world() as w, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(w.connect()) for _ in range(count)]
        await w.until_open(count)
        for client in clients:
            await client.send_bytes(b"\0\0\0\0" * 2)
        for client in clients:
            assert await client.is_closed()
        assert w.counts.errors == ["frame_length"] * count
        assert await w.is_healthy()


@on_uvloop
async def test_deadlines_hold_for_more_connections_than_one_turn_looks_at() -> None:
    count = 3 * connection_table.CONNECTIONS_PER_SWEEP_TURN
    async with (
        world(
            TransportLimits(frame_times=FrameTimes(header_ms_max=SHORT_MS, first_frame_ms_max=10 * LONG_MS), sweep_ms=5)
        ) as w,
        AsyncExitStack() as stack,
    ):
        for _ in range(count):
            await stack.enter_async_context(w.connect())
        last = await stack.enter_async_context(w.connect())
        await last.call("getHostStatus", structs.HostStatusRequest())
        await last.send_bytes(b"\0")
        assert await last.is_closed()
        assert w.counts.errors == ["header_deadline"]
        assert len(w.connections()) == count


@on_uvloop
async def test_calls_of_all_connections_together_are_bounded() -> None:
    async with world(TransportLimits(all_calls_in_flight_max=1)) as w, w.connect() as first, w.connect() as second:
        w.queue.gate = asyncio.Event()
        first.send("enqueue", enqueue_request(b"first"), seqid=1)
        await w.queue.until_running(1)
        refused = await second.call("enqueue", enqueue_request(b"second"))
        assert isinstance(refused.error, OverloadedError)
        assert refused.error.retry_after_ms
        w.queue.gate.set()
        assert (await first.receive()).response.ids == ["1-1"]
        assert (await second.call("enqueue", enqueue_request(b"second"))).response.ids == ["1-2"]


@on_each_loop
async def test_a_flood_of_frames_of_every_kind_is_answered_in_turns() -> None:
    async with (
        world(TransportLimits(scheduling=SchedulerLimits(turn_work_max=4))) as w,
        w.connect() as client,
        w.connect() as other,
    ):
        unknown = w.codec.encode_application_error(b"nobody", 1, "x", 1)
        call = bytearray(unknown)
        call[7] = 1
        flood = bytes(call) + w.codec.encode_call("enqueue", enqueue_request(b"p"), 2)
        sending = [asyncio.ensure_future(one.send_bytes(flood * 500)) for one in (client, other)]
        assert await w.is_healthy()
        for one in (client, other):
            replies = [await one.receive() for _ in range(1_000)]
            assert {reply.seqid for reply in replies} == {1, 2}
        await asyncio.gather(*sending)
        assert w.counts.errors == []


@pytest.mark.parametrize("ending", ["answered", "reset", "half-closed"])
@on_uvloop
async def test_long_polls_of_one_address_are_bounded_by_their_topics(ending: str) -> None:
    async with (
        world(TransportLimits(long_poll_topics_per_address_max=3)) as w,
        w.connect() as first,
        w.connect() as second,
    ):
        topics = [structs.TopicDemand("topic", 1), structs.TopicDemand("other", 1)]
        long_poll = structs.DequeueRequest("ns", topics, None, 30_000)
        first.send("dequeue", long_poll, seqid=1)
        await w.queue.long_poll_began.wait()
        assert isinstance((await second.call("dequeue", long_poll)).error, OverloadedError)
        assert (await second.call("dequeue", dequeue_request(1))).error is None
        if ending == "answered":
            assert (await second.call("enqueue", enqueue_request(b"x"))).error is None
            assert len((await first.receive()).response.items) == 1
        elif ending == "half-closed":
            first.end_sending()
            assert (await first.receive()).response.items == []
        else:
            first.reset()
            await w.queue.long_poll_cancelled.wait()
            await w.until_open(1)
        w.queue.long_poll_began.clear()
        second.send("dequeue", long_poll, seqid=3)
        await w.queue.long_poll_began.wait()


def test_a_server_raises_the_bound_on_open_files_and_admits_no_more_than_it_gets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[tuple[int, int]] = []
    beside = FILES_BESIDE_CONNECTIONS
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (1_024, 20_000))
    monkeypatch.setattr(resource, "setrlimit", lambda kind, bounds: asked.append(bounds))
    assert allowed_connections(10_000) == 10_000
    assert allowed_connections(100_000) == 20_000 - beside
    assert asked == [(10_000 + beside, 20_000), (20_000, 20_000)]
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (65_536, 65_536))
    assert allowed_connections(10_000) == 10_000
    assert len(asked) == 2


async def test_a_host_takes_the_bounds_of_its_configuration(meta_url: str, shard_urls: dict[int, str]) -> None:
    config = HostConfig(meta_url=meta_url, shards=shard_urls, port=0, host_name="narrow", connections_per_address_max=1)
    host = Host(config)
    await host.start()
    try:
        async with RawClient.connect("127.0.0.1", host.port) as first:
            assert (await first.call("getHostStatus", structs.HostStatusRequest())).error is None
            async with RawClient.connect("127.0.0.1", host.port) as second:
                assert await second.is_closed()
    finally:
        await host.stop()


@on_uvloop
async def test_a_large_call_of_a_caller_with_a_penalty_is_done_after_it_and_the_others_do_not_wait() -> None:
    penalties = PenaltyLimits(factor=LONG_MS, ms_max=LONG_MS, memory_ms=LONG_MS)
    bounds = TransportLimits(scheduling=SchedulerLimits(penalties=penalties))
    async with world(bounds) as w, w.connect("127.0.0.2") as good, w.connect("127.0.0.3") as heavy:
        assert (await good.call("enqueue", enqueue_request(b"good"))).error is None
        heavy.send("enqueue", enqueue_request(*[b"heavy"] * limits.BATCH_ITEMS_MAX), seqid=2)
        await until(lambda: any(connection.calls.count for connection in w.connections()))
        for _ in range(3):
            reply = await good.call("dequeue", dequeue_request(2 * limits.BATCH_ITEMS_MAX))
            assert {item.payload for item in reply.response.items} <= {b"good"}, "the large call is not done yet"
        assert w.server._table is not None
        w.server._table.scheduler._penalties._end((w.queue.namespaces["ns"].number, "127.0.0.3"))
        assert len((await heavy.receive()).response.ids) == limits.BATCH_ITEMS_MAX


@on_uvloop
async def test_a_drain_does_what_was_read_and_put_off() -> None:
    penalties = PenaltyLimits(factor=LONG_MS, ms_max=SHORT_MS, memory_ms=LONG_MS)
    bounds = TransportLimits(scheduling=SchedulerLimits(penalties=penalties))
    async with world(bounds) as w, w.connect("127.0.0.2") as good, w.connect("127.0.0.3") as heavy:
        assert (await good.call("enqueue", enqueue_request(b"good"))).error is None
        heavy.send("enqueue", enqueue_request(*[b"heavy"] * limits.BATCH_ITEMS_MAX), seqid=2)
        await until(lambda: any(connection.calls.count for connection in w.connections()))
        await w.server.drain()
        assert len((await heavy.receive()).response.ids) == limits.BATCH_ITEMS_MAX


@on_uvloop
async def test_the_shards_of_one_server_share_its_scheduler(meta_url: str, shard_urls: dict[int, str]) -> None:
    urls = shard_urls | {99: "mysql+pymysql://root@elsewhere.example/foqs_99"}
    host = Host(HostConfig(meta_url=meta_url, shards=urls, port=0, host_name="h"))
    *here, elsewhere = [host._factory.make(shard_id, "").writer._permit._scheduler for shard_id in urls]
    assert len(here) > 1
    assert {id(scheduler) for scheduler in here} == {id(here[0])}
    assert elsewhere is not here[0]
    await host.stop()


@pytest.mark.parametrize(("enqueue_wait_ms_max", "outcome"), [(0, "OVERLOADED"), (LONG_MS, "OK")])
@on_uvloop
async def test_an_enqueue_that_waited_too_long_for_its_turn_is_refused_and_what_lessens_the_load_is_not(
    enqueue_wait_ms_max: int, outcome: str
) -> None:
    scheduling = SchedulerLimits(enqueues_running_max=1, enqueue_wait_ms_max=enqueue_wait_ms_max)
    async with world(TransportLimits(scheduling=scheduling)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        calls = [
            ("enqueue", enqueue_request(b"1")),
            ("enqueue", enqueue_request(b"2")),
            ("dequeue", dequeue_request(2)),
        ]
        # In one piece: the second waits from the moment in which the first begins.
        frames = [w.codec.encode_call(method, request, seqid) for seqid, (method, request) in enumerate(calls)]
        await client.send_bytes(b"".join(frames))
        await w.queue.until_running(1)
        dequeue = await client.receive()
        assert (dequeue.seqid, dequeue.error) == (2, None), "it does not wait behind enqueues"
        w.queue.gate.set()
        first, second = sorted([await client.receive() for _ in range(2)], key=lambda reply: reply.seqid)
        assert first.error is None
        if outcome == "OK":
            assert second.error is None
        else:
            assert isinstance(second.error, OverloadedError)
            assert second.error.retry_after_ms


@on_uvloop
async def test_calls_that_wait_for_a_sick_shard_do_not_hold_up_their_address_for_long() -> None:
    bounds = TransportLimits(scheduling=SchedulerLimits(enqueues_running_max=1), sweep_ms=20)
    async with world(bounds) as w, w.connect() as client, w.connect() as other:
        w.queue.gate = asyncio.Event()
        frame = w.codec.encode_call("enqueue", enqueue_request(b"1"), 1)
        await client.send_bytes(frame)
        await w.queue.until_running(1)
        await other.send_bytes(frame)
        await w.queue.until_running(2)
        w.queue.gate.set()
        for peer in (client, other):
            assert (await peer.receive()).error is None
