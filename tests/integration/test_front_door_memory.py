"""What peers can make the server keep: unfinished frames, running calls, and answers that are not read."""

from __future__ import annotations

import asyncio
import gc
import resource
import weakref
from contextlib import AsyncExitStack
from typing import Any

import pytest
import uvloop

from foqs.model.errors import OverloadedError
from foqs.model.limits import KIB, MIB
from foqs.transport import partial_frames
from foqs.transport.bounds import TransportLimits
from foqs.transport.fair_scheduler import SchedulerLimits
from foqs.wire.codec import Reply, structs
from foqs.wire.frames import FrameTimes
from tests.support.front_door import World, dequeue_request, enqueue_request, until, world
from tests.support.loops import on_uvloop, run
from tests.support.raw_client import RawClient

SHORT_MS = 50
LONG_MS = 60_000


@pytest.mark.deep
def test_two_thousand_silent_connections_leave_the_others_served() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8_192)), hard))

    async def main() -> None:
        async with (
            world(TransportLimits(frame_times=FrameTimes(first_frame_ms_max=LONG_MS))) as w,
            AsyncExitStack() as stack,
        ):
            before = _resident_bytes()
            for _ in range(2_000):
                await stack.enter_async_context(w.connect())
            await w.until_open(2_000)
            assert await w.is_healthy()
            assert _resident_bytes() - before < 100 * MIB
            await w.server.stop()

    try:
        run(main)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@on_uvloop
async def test_a_length_alone_makes_the_server_keep_nothing() -> None:
    async with world() as w, AsyncExitStack() as stack:
        before = _resident_bytes()
        for _ in range(100):
            client = await stack.enter_async_context(w.connect())
            await client.send_bytes((16 * MIB).to_bytes(4, "big") + b"x")
        assert await w.is_healthy()
        assert _resident_bytes() - before < 16 * MIB


@on_uvloop
async def test_too_many_bytes_of_unfinished_frames_close_the_oldest_of_them() -> None:
    bounds = TransportLimits(partial_frame_bytes_max=300 * KIB)
    async with world(bounds) as w, w.connect() as slow, w.connect() as newer:
        part = (16 * MIB).to_bytes(4, "big") + b"x" * 200 * KIB
        await slow.send_bytes(part)
        assert not await slow.closes_within(SHORT_MS / 1000)
        await newer.send_bytes(part)
        assert await slow.is_closed()
        assert w.counts.errors == ["partial_frame_bytes_max"]
        assert not await newer.closes_within(SHORT_MS / 1000)
        assert await w.is_healthy()


async def _called(client: RawClient, frame: bytes) -> Reply:
    await client.send_bytes(frame)
    return await client.receive()


@on_uvloop
async def test_large_frames_of_one_address_come_in_one_after_the_other() -> None:
    bounds = TransportLimits(partial_frame_bytes_per_address_max=MIB)
    async with world(bounds) as w, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(w.connect()) for _ in range(6)]
        await w.until_open(6)
        frame = w.codec.encode_call("enqueue", enqueue_request(*[b"x" * 400_000] * 10), 1)
        table = w.server._table
        assert table is not None
        calls = [asyncio.create_task(_called(client, frame)) for client in clients]
        paused_most = 0
        while not all(task.done() for task in calls):  # the kernel may hold whole frames
            await asyncio.sleep(0)
            paused_most = max(paused_most, sum(connection._deadline.is_paused for connection in w.connections()))
            most_bytes = MIB + len(frame) + len(clients) * partial_frames.READ_BYTES_MAX
            assert sum(connection.buffered_bytes for connection in table.connections) <= most_bytes
        assert paused_most >= 4
        assert [(await call).error for call in calls] == [None] * 6
        assert w.counts.errors == []
        assert not any(connection._deadline.is_paused for connection in w.connections())


@on_uvloop
async def test_a_small_frame_of_a_connection_that_is_held_up_does_not_end_it() -> None:
    bounds = TransportLimits(
        partial_frame_bytes_per_address_max=64 * KIB, scheduling=SchedulerLimits(enqueues_running_max=1)
    )
    async with world(bounds) as w, w.connect() as large, w.connect() as busy, w.connect() as small:
        w.queue.gate = asyncio.Event()
        frame = w.codec.encode_call("enqueue", enqueue_request(b"x" * 100_000), 1)
        await busy.send_bytes(w.codec.encode_call("enqueue", enqueue_request(b"1"), 1))
        await w.queue.until_running(1)
        await large.send_bytes(frame[:-1])
        await until(lambda: any(connection.buffered_bytes > 64 * KIB for connection in w.connections()))
        await small.send_bytes(w.codec.encode_call("enqueue", enqueue_request(b"2"), 1))
        await until(lambda: any(connection._deadline.is_paused for connection in w.connections()))
        w.queue.gate.set()
        assert (await small.receive()).error is None
        assert (await small.call("enqueue", enqueue_request(b"3"))).error is None


async def _fill_topic(w: World, item_count: int) -> None:
    async with w.connect() as producer:
        for _ in range(item_count // 500):
            await producer.call("enqueue", enqueue_request(*[b"x" * 10_000] * 500))


@on_uvloop
async def test_a_peer_that_never_reads_is_stopped_and_closed_and_takes_little() -> None:
    bounds = TransportLimits(
        calls_in_flight_max=2,
        write_buffer_bytes_max=64 * KIB,
        write_stall_ms_max=4 * SHORT_MS,
        sweep_ms=5,
    )
    async with world(bounds) as w:
        await _fill_topic(w, 2_500)
        async with w.connect() as deaf:
            deaf.pause_reading()
            for seqid in range(250):
                deaf.send("dequeue", dequeue_request(100), seqid)
            await w.counts.until_error("write_stall")
            assert len(w.queue.ready["ns", "topic"]) > 0
            assert await w.is_healthy()


@on_uvloop
async def test_too_many_bytes_of_unsent_answers_close_the_deafest() -> None:
    bounds = TransportLimits(unsent_bytes_max=1 * MIB, write_stall_ms_max=LONG_MS, sweep_ms=5)
    async with world(bounds) as w:
        await _fill_topic(w, 2_000)
        async with w.connect() as deaf:
            deaf.pause_reading()
            for seqid in range(20):
                deaf.send("dequeue", dequeue_request(100), seqid)
            await w.counts.until_error("unsent_bytes_max")
            assert await w.is_healthy()


@on_uvloop
async def test_a_peer_that_reads_late_gets_every_answer() -> None:
    bounds = TransportLimits(write_buffer_bytes_max=64 * KIB, calls_in_flight_max=4)
    async with world(bounds) as w:
        await _fill_topic(w, 2_000)
        async with w.connect() as client:
            client.pause_reading()
            for seqid in range(20):
                client.send("dequeue", dequeue_request(100), seqid)
            assert await w.is_healthy()
            client.resume_reading()
            replies = [await client.receive() for _ in range(20)]
            assert {reply.seqid for reply in replies} == set(range(20))
            assert sum(len(reply.response.items) for reply in replies) == 2_000


@pytest.mark.parametrize("loop_factory", [uvloop.new_event_loop, asyncio.new_event_loop])
def test_a_connection_that_is_lost_is_no_work_for_the_garbage_collector(loop_factory: Any) -> None:
    async def main() -> None:
        async with (
            world(TransportLimits(scheduling=SchedulerLimits(enqueues_running_max=2))) as w,
            w.connect() as client,
        ):
            assert (await client.call("enqueue", enqueue_request(b"x"))).error is None
            client.send("dequeue", dequeue_request(2, wait_ms=30_000), seqid=1)
            assert (await client.receive()).error is None
            client.send("dequeue", dequeue_request(2, wait_ms=30_000), seqid=2)
            await w.queue.long_poll_began.wait()
            w.queue.gate = asyncio.Event()
            for seqid in (3, 4, 5):
                client.send("enqueue", enqueue_request(b"y"), seqid)
            await w.queue.until_running(2)
            lost = [weakref.ref(connection) for connection in w.connections()]
            await until(lambda: w.connections()[0].calls.count == 4)  # Two run, one waits, and the long poll.
            client.reset()
            await w.until_open(0)
            async with w.connect() as other:  # By its response all that was cancelled has ended.
                assert (await other.call("getHostStatus", structs.HostStatusRequest())).error is None
            kept = [connection for ref in lost if (connection := ref()) is not None]
            assert not kept, gc.get_referrers(*kept)

    gc.collect()
    gc.disable()
    try:
        run(main, loop_factory)
    finally:
        gc.enable()


def _resident_bytes() -> int:
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("ending", ["answered", "reset"])
@on_uvloop
async def test_bytes_of_all_calls_together_are_bounded_and_given_back(ending: str) -> None:
    async with world(TransportLimits(all_call_bytes_max=12_000)) as w, w.connect() as first, w.connect() as second:
        w.queue.gate = asyncio.Event()
        first.send("enqueue", enqueue_request(b"x" * 9_000), seqid=1)
        await w.queue.until_running(1)
        assert isinstance((await second.call("enqueue", enqueue_request(b"x" * 9_000))).error, OverloadedError)
        assert (await second.call("getHostStatus", structs.HostStatusRequest())).error is None
        if ending == "answered":
            w.queue.gate.set()
            await first.receive()
        else:
            first.reset()
            await w.until_open(1)
            w.queue.gate.set()
        assert (await second.call("enqueue", enqueue_request(b"x" * 9_000))).error is None


@on_uvloop
async def test_a_connection_whose_calls_are_large_is_read_no_further() -> None:
    async with world(TransportLimits(call_bytes_max=10_000)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        for seqid in range(6):
            client.send("enqueue", enqueue_request(b"x" * 6_000), seqid)
        await w.queue.until_running(2)
        assert await w.is_healthy()
        assert w.queue.calls_running == 2
        w.queue.gate.set()
        assert {(await client.receive()).seqid for _ in range(6)} == set(range(6))


@on_uvloop
async def test_bytes_sent_in_advance_of_calls_that_wait_are_bounded_too() -> None:
    bounds = TransportLimits(calls_in_flight_max=1, partial_frame_bytes_max=64 * KIB)
    async with world(bounds) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        frame = w.codec.encode_call("enqueue", enqueue_request(b"x" * 9_000), 1)
        await client.send_bytes(frame * 20)
        assert await client.is_closed()
        assert w.counts.errors == ["partial_frame_bytes_max"]
        assert await w.is_healthy()
