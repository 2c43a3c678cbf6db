"""Bulk enqueues are a tenant of their own for the scheduler: they hold nobody up, and are not held up for ever."""

from __future__ import annotations

import pytest

from foqs.transport.fair_scheduler import BULK, CallerQueue
from foqs.wire.codec import Codec, structs
from foqs.wire.frames import LENGTH_BYTES, says_bulk
from tests.support.scheduler_world import NO_PENALTY, World


def bulk_queue(world: World, tenant: int = 1, address: str = "a") -> CallerQueue:
    return world.scheduler.queue_of(tenant, address, True, True)


def test_an_interactive_call_does_not_wait_behind_bulk_calls_of_its_own_caller() -> None:
    world = World(20, penalties=NO_PENALTY)
    for _ in range(50):
        world.send("bulk", bulk_queue(world))
    world.send("single", world.queue())
    world.loop.turn()
    assert "single" in world.started


def test_beside_interactive_calls_without_end_bulk_calls_have_a_fifth_and_go_on() -> None:
    world = World(20, penalties=NO_PENALTY)
    world.keep_sending("bulk", bulk_queue(world), elements=100)
    world.keep_sending("single", world.queue())
    world.loop.turn(500)
    share = world.work["bulk"] / sum(world.work.values())
    assert 0.15 < share < 0.25


def test_alone_bulk_calls_have_everything_and_no_penalty() -> None:
    world = World(20)
    world.keep_sending("bulk", bulk_queue(world), elements=100)
    for _ in range(50):
        world.loop.turn()
        world.loop.now_s += 0.001
    assert world.loop.later == []
    assert world.work["bulk"] >= 50 * 10


def test_bulk_calls_of_all_namespaces_have_a_penalty_together_while_there_is_anybody_else() -> None:
    world = World(20)
    world.do(world.queue(3))
    world.do(bulk_queue(world, 1), elements=1_000, took_s=0.004)
    world.loop.turn(2)
    world.send("bulk 1", bulk_queue(world, 1))
    world.send("bulk 2", bulk_queue(world, 2, "b"))
    world.send("single", world.queue(1))
    world.loop.turn()
    assert world.started == ["single"]
    world.loop.end_penalties()
    world.loop.turn()
    assert sorted(world.started) == ["bulk 1", "bulk 2", "single"]


def test_interactive_calls_have_no_penalty_for_doing_more_than_bulk_calls() -> None:
    world = World(20)
    world.do(bulk_queue(world), elements=8)
    world.do(world.queue(), elements=1_000, took_s=0.004)
    world.loop.turn(2)
    assert world.loop.later == []
    assert world.scheduler.may_start(world.queue())


def test_no_tenant_of_a_bulk_call_is_one_of_another_call() -> None:
    world = World()
    tenants = [bulk_queue(world, tenant).caller[0] for tenant in (0, 1, (1 << 32) - 1)]
    assert len(set(tenants)) == 3
    assert all(BULK < tenant < 0 for tenant in tenants)


# --- which calls are bulk ---


@pytest.mark.parametrize("job_id", [None, "a", "j" * 128])
@pytest.mark.parametrize("bulk", [True, False])
@pytest.mark.parametrize("count", [0, 1, 1_000])
def test_a_call_is_known_as_bulk_before_it_is_scanned(bulk: bool, count: int, job_id: str | None) -> None:
    items = [structs.NewItem("t", b"x")] * count
    frame = Codec().encode_call("enqueue", structs.EnqueueRequest("ns", items, bulk, job_id), 7)
    assert says_bulk(frame[LENGTH_BYTES:]) is bulk


def test_contents_that_look_like_the_flag_do_not_make_a_call_bulk() -> None:
    look = b"\x02\x00\x03\x01\x0b\x00\x04\x00\x00\x00\x01a"
    for payload in (look, b"\x02\x00\x03\x01\x00\x00", look + b"\x00\x00"):
        for trace in (None, payload.decode("latin-1")):
            items = [structs.NewItem("t", payload, trace_context=trace)]
            request = structs.EnqueueRequest("ns", items, False)
            assert not says_bulk(Codec().encode_call("enqueue", request, 7)[LENGTH_BYTES:])


@pytest.mark.parametrize("size", range(30))
def test_cut_messages_are_no_bulk_calls_and_raise_nothing(size: int) -> None:
    frame = Codec().encode_call("enqueue", structs.EnqueueRequest("ns", [], True, "abc"), 7)[LENGTH_BYTES:]
    assert not says_bulk(frame[:-1][-size:] if size else b"")
    assert not says_bulk(bytes([2, 0, 3, 1, 11, 0, 4, 255, 255, 255, 255]) + b"a" * size)
