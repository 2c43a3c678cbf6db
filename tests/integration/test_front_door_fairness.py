"""Whose calls wait behind whose: namespaces share, whatever connection and address their calls come from."""

from __future__ import annotations

import asyncio

import pytest

from foqs.model.errors import OverloadedError, UnknownNamespaceError
from foqs.transport.bounds import TransportLimits
from foqs.transport.fair_scheduler import SchedulerLimits
from foqs.wire.codec import structs
from tests.support.front_door import World, enqueue_request, until, world
from tests.support.loops import on_uvloop, run

ONE_RUNS = SchedulerLimits(enqueues_running_max=1)


class SkippingLoop(asyncio.SelectorEventLoop):
    """Its clock runs, and can be moved on."""

    skipped_s = 0.0

    def time(self) -> float:
        return super().time() + self.skipped_s


def enqueue_frame(w: World, namespace: str, seqid: int) -> bytes:
    return w.codec.encode_call("enqueue", structs.EnqueueRequest(namespace, [structs.NewItem("t", b"x")]), seqid)


@pytest.mark.parametrize("same_connection", [True, False])
@on_uvloop
async def test_calls_of_a_namespace_that_wait_hold_up_no_other_namespace_of_their_address(
    same_connection: bool,
) -> None:
    async with world(TransportLimits(scheduling=ONE_RUNS)) as w, w.connect() as first, w.connect() as second:
        await first.call("createNamespace", structs.CreateNamespaceRequest("other"))
        w.queue.gate = asyncio.Event()
        await first.send_bytes(b"".join([enqueue_frame(w, "ns", seqid) for seqid in range(20)]))
        await w.queue.until_running(1)
        client = first if same_connection else second
        await client.send_bytes(enqueue_frame(w, "other", 99))
        await w.queue.until_running(2)
        w.queue.gate.set()
        replies = [await first.receive() for _ in range(20)]
        replies.append(await client.receive())
        assert {reply.seqid for reply in replies} == {*range(20), 99}
        assert not any(reply.error for reply in replies)


@on_uvloop
async def test_invented_namespaces_make_no_flows_and_are_answered() -> None:
    async with world() as w, w.connect("127.0.0.2") as client:
        for number in range(600):
            reply = await client.call("enqueue", structs.EnqueueRequest(f"invented-{number}", []))
            assert isinstance(reply.error, UnknownNamespaceError)
        assert w.server._table is not None
        assert w.server._table.scheduler._flows.keys() == {(0, True)}


@pytest.mark.parametrize("skipped_s", [0.0, 2.0])
def test_calls_that_no_more_could_be_read_behind_are_as_old_as_the_bytes_that_hold_them(skipped_s: float) -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SkippingLoop)
        scheduling = SchedulerLimits(enqueues_running_max=1, calls_waiting_max=1)
        async with world(TransportLimits(scheduling=scheduling, sweep_ms=10**6)) as w, w.connect() as client:
            w.queue.gate = asyncio.Event()
            await client.send_bytes(b"".join([enqueue_frame(w, "ns", seqid) for seqid in range(6)]))
            await w.queue.until_running(1)
            (connection,) = w.connections()
            await until(lambda: connection.calls.count == 2 and connection._cutter.buffered_bytes > 0)
            loop.skipped_s += skipped_s
            w.queue.gate.set()
            replies = sorted([await client.receive() for _ in range(6)], key=lambda reply: reply.seqid)
            refused = [reply.seqid for reply in replies if isinstance(reply.error, OverloadedError)]
            assert refused == ([1, 2, 3, 4, 5] if skipped_s else [])
            assert (await client.call("enqueue", enqueue_request(b"later"))).error is None

    run(main, SkippingLoop)


@on_uvloop
async def test_calls_that_wait_are_gone_with_their_connection() -> None:
    async with world(TransportLimits(scheduling=ONE_RUNS)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        client.send("enqueue", enqueue_request(b"runs"), seqid=1)
        await w.queue.until_running(1)
        async with w.connect() as gone:
            await gone.send_bytes(b"".join([enqueue_frame(w, "ns", seqid) for seqid in range(9)]))
            await until(lambda: sum(connection.calls.count for connection in w.connections()) == 10)
            gone.reset()
        await w.until_open(1)
        w.queue.gate.set()
        assert (await client.receive()).error is None
        assert (await client.call("enqueue", enqueue_request(b"next"))).error is None
        assert len(w.queue.ready["ns", "topic"]) == 2
        assert not w.queue.ready["ns", "t"]


@pytest.mark.parametrize(
    ("bounds", "waiting_count"), [({"waiting_bytes_max": 10_000}, 2), ({"calls_in_flight_max": 4}, 3)]
)
@on_uvloop
async def test_only_so_many_calls_of_a_connection_wait_and_the_others_are_not_cut_out_yet(
    bounds: dict[str, int], waiting_count: int
) -> None:
    async with world(TransportLimits(scheduling=ONE_RUNS, **bounds)) as w, w.connect() as client:
        w.queue.gate = asyncio.Event()
        for seqid in range(9):
            client.send("enqueue", enqueue_request(b"x" * 6_000), seqid)
        await w.queue.until_running(1)
        (connection,) = w.connections()
        await until(lambda: connection.calls.count == 1 + waiting_count)
        assert await w.is_healthy("127.0.0.2")
        assert connection.calls.count == 1 + waiting_count
        w.queue.gate.set()
        assert {(await client.receive()).seqid for _ in range(9)} == set(range(9))
