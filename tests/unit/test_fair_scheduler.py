"""Calls are started in turn: by namespace and kind, then by caller, and a bounded amount in each turn of the loop."""

from __future__ import annotations

import asyncio
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.transport import fair_scheduler
from foqs.transport.deficit_round import QUANTUM, DeficitRound
from foqs.transport.fair_scheduler import (
    BYTES_PER_WORK,
    ELEMENTS_PER_WORK,
    NO_TENANT,
    QUEUES_KEPT,
    REFUSALS_PER_WORK,
    FairScheduler,
    SchedulerLimits,
)
from tests.support.scheduler_world import NO_PENALTY, WAIT_MS, Bucket, Waiting, World


@pytest.mark.interpreted
@given(st.lists(st.lists(st.integers(1, 200), min_size=1, max_size=30), min_size=1, max_size=8))
def test_while_members_are_ready_none_had_more_than_a_quantum_and_a_call_beyond_another(costs: list[list[int]]) -> None:
    turns: DeficitRound[Bucket] = DeficitRound()
    buckets = [Bucket(list(of_one)) for of_one in costs]
    for bucket in buckets:
        turns.join(bucket)
    cost_max = max(max(of_one) for of_one in costs)
    while (bucket := turns.head()) is not None:
        ready = [one.done for one in buckets if one.costs]
        assert max(ready) - min(ready) <= 2 * (QUANTUM + cost_max)
        cost = bucket.costs.pop(0)
        bucket.deficit -= cost
        bucket.done += cost
    assert [bucket.done for bucket in buckets] == [sum(of_one) for of_one in costs]
    assert not any(bucket.is_in_round for bucket in buckets)


@pytest.mark.interpreted
def test_a_member_that_is_not_ready_stays_until_it_has_paid() -> None:
    turns: DeficitRound[Bucket] = DeficitRound()
    large, small = Bucket([5 * QUANTUM]), Bucket([1] * 100)
    turns.join(large)
    turns.join(small)
    assert turns.head() is large
    large.deficit -= large.costs.pop()
    for _ in range(QUANTUM):
        assert turns.head() is small
        small.deficit -= small.costs.pop()
    assert turns.head() is small
    large.costs = [1]
    turns.join(large)
    for _ in range(3 * QUANTUM):
        assert turns.head() is small, "the large one pays for what it had before"
        small.deficit -= small.costs.pop()


# --- who is served ---


def test_namespaces_share_by_work_whatever_their_calls_cost_and_however_many_they_send() -> None:
    world = World(penalties=NO_PENALTY)
    for number in range(50):
        world.keep_sending("one", world.queue(1, f"caller {number}"))
    world.keep_sending("two", world.queue(2), elements=100)
    world.keep_sending("three", world.queue(3), elements=1_000)
    world.loop.turn(500)
    least, *_, most = sorted(world.work.values())
    assert len(world.work) == 3
    assert most - least <= 2 * (QUANTUM + 1 + 1_000 // ELEMENTS_PER_WORK)


def test_namespaces_behind_one_address_share_like_those_of_different_addresses() -> None:
    world = World(penalties=NO_PENALTY)
    world.send("one", world.queue(1, "proxy"), 500)
    world.send("two", world.queue(2, "proxy"), 100)
    world.loop.turn(10)
    assert world.started.count("one") == pytest.approx(world.started.count("two"), abs=QUANTUM)


def test_callers_of_a_namespace_share_by_work() -> None:
    world = World(penalties=NO_PENALTY)
    world.keep_sending("single", world.queue(1, "a"))
    world.keep_sending("batches", world.queue(1, "b"), elements=1_000)
    world.loop.turn(300)
    assert world.work["single"] == pytest.approx(world.work["batches"], abs=2 * (QUANTUM + 126))


def test_what_a_caller_takes_and_settles_has_half_of_its_turns_however_much_it_enqueues() -> None:
    world = World()
    world.send("enqueue", world.queue(), 1_000)
    world.send("ack", world.queue(enqueue=False), 1_000)
    world.loop.turn(10)
    assert world.started.count("ack") == pytest.approx(world.started.count("enqueue"), abs=QUANTUM)


def test_calls_of_no_known_namespace_share_one_tenant_and_their_callers_are_served_in_turn() -> None:
    world = World(penalties=NO_PENALTY)
    for number in range(20):
        world.keep_sending(f"nobody {number}", world.queue(NO_TENANT, f"address {number}"))
    world.keep_sending("tenant", world.queue(1))
    world.loop.turn(100)
    of_nobody = [count for name, count in world.work.items() if name != "tenant"]
    assert world.work["tenant"] == pytest.approx(sum(of_nobody), abs=2 * QUANTUM)
    assert max(of_nobody) - min(of_nobody) <= QUANTUM
    assert len(world.scheduler._flows) == 2


def test_queues_that_are_idle_are_forgotten_and_the_others_kept() -> None:
    world = World()
    running = world.queue(1, "running")
    world.scheduler.started(running)
    waiting = world.queue(1, "waiting", enqueue=False)
    for _ in range(fair_scheduler.CALLS_RUNNING_PER_CALLER_MAX):
        world.scheduler.started(waiting)
    world.send("waiting", waiting)
    for number in range(10 * QUEUES_KEPT):
        world.do(world.queue(number, f"address {number}"))
        world.loop.turn()
    known = [queue for flow in world.scheduler._flows.values() for queue in flow.queues.values()]
    assert len(known) <= QUEUES_KEPT
    assert world.queue(1, "running") is running
    assert world.queue(1, "waiting", enqueue=False) is waiting
    world.scheduler.ended(waiting)
    world.loop.turn()
    assert world.started == ["waiting"]


# --- turns ---


def test_a_turn_does_no_more_than_its_bound_whoever_waits() -> None:
    world = World(20, penalties=NO_PENALTY)
    for number in range(9):
        world.send("call", world.queue(number % 3, f"address {number}"), 1_000)
    world.loop.turn()
    assert len(world.started) == 20
    world.loop.turn()
    assert len(world.started) == 40


def test_turns_are_shorter_while_more_than_one_caller_has_work_done() -> None:
    world = World(40, turn_work_shared_max=10, penalties=NO_PENALTY)
    queue, counts = world.queue(), []
    world.send("a", queue, 1_000)
    for other, passed_ms in (
        (False, 0),
        (True, fair_scheduler.SHARE_MEMORY_MS),
        (False, 3 * fair_scheduler.SHARE_MEMORY_MS),
        (False, 0),
    ):
        if other:
            world.do(world.queue(1, "b"))
        world.loop.turn()
        of_turns = []
        for _ in range(4):  # Some of them are penalties, which end at once.
            world.started.clear()
            world.loop.turn()
            of_turns.append(len(world.started))
        counts.append(max(of_turns))
        world.loop.now_s += passed_ms / 1000
    assert counts == [40, 10, 10, 40]


def test_a_call_is_started_at_once_while_none_waits_and_the_turn_has_room() -> None:
    world = World(4)
    queue = world.queue()
    for _ in range(4):
        assert world.scheduler.may_start(queue)
        world.do(queue)
    assert not world.scheduler.may_start(queue)
    world.loop.turn()
    assert world.scheduler.may_start(queue)
    assert world.loop.soon == []
    world.send("call", queue)
    assert not world.scheduler.may_start(world.queue(2)), "it would be before one that waits"
    world.loop.turn()
    assert world.scheduler.may_start(queue)


def test_a_call_that_comes_alone_is_behind_a_quantum_of_each_other_flow() -> None:
    world = World(10**6, penalties=NO_PENALTY)
    world.send("flood", world.queue(1), 5_000)
    world.send("other flood", world.queue(2), 5_000)
    world.send("good", world.queue(3))
    world.loop.turn()
    assert world.started.index("good") <= 2 * QUANTUM


def test_elements_and_bytes_count_as_work() -> None:
    world = World()
    assert world.scheduler.charge(world.queue(), 0, 100, 0.0) == 1
    assert world.scheduler.charge(world.queue(), 3 * ELEMENTS_PER_WORK, 100, 0.0) == 4
    assert world.scheduler.charge(world.queue(), 0, 3 * BYTES_PER_WORK, 0.0) == 4


def test_calls_whose_connection_is_gone_take_nothing_of_a_turn() -> None:
    world = World(4)

    class Gone(Waiting):
        def start(self) -> None:
            return None

    gone, good = world.queue(1), world.queue(2)
    for _ in range(50):
        world.scheduler.wait(gone, Gone(world, "gone", gone))
    world.send("good", good, 4)
    world.loop.turn()
    assert world.started == ["good"] * 4


def test_the_scheduler_says_when_too_many_calls_wait() -> None:
    world = World(2, calls_waiting_max=3)
    world.send("call", world.queue(), 2)
    assert not world.scheduler.is_full
    world.send("call", world.queue())
    assert world.scheduler.is_full
    world.loop.turn()
    assert not world.scheduler.is_full


# --- calls that run ---


def test_a_caller_with_too_many_calls_running_waits_for_one_to_end_and_the_others_do_not() -> None:
    world = World(enqueues_running_max=3, calls_running_max=5)
    busy = world.queue(1, "busy")
    for _ in range(3):
        world.scheduler.started(busy)
    assert not world.scheduler.may_start(busy)
    world.send("busy", busy)
    world.send("its ack", world.queue(1, "busy", enqueue=False))
    world.send("its other namespace", world.queue(2, "busy"))
    world.send("other", world.queue(1, "other"))
    world.loop.turn(3)
    assert sorted(world.started) == ["its ack", "its other namespace", "other"]
    assert world.loop.soon == []
    world.scheduler.ended(busy)
    world.loop.turn()
    assert world.started[3:] == ["busy"]


# --- refusals ---


def test_an_enqueue_that_waited_too_long_is_refused_and_what_lessens_the_load_is_not() -> None:
    world = World()
    world.send("old enqueue", world.queue(), 3)
    world.send("old ack", world.queue(enqueue=False))
    world.loop.now_s += WAIT_MS / 2000
    world.send("enqueue", world.queue())
    world.loop.now_s += WAIT_MS / 2000
    world.loop.turn()
    assert world.refused == ["old enqueue"] * 3
    assert sorted(world.started) == ["enqueue", "old ack"]


def test_refusals_cost_a_part_of_a_turn_and_of_their_flows_share() -> None:
    world = World(4)
    world.send("old", world.queue(), 1_000)
    world.loop.now_s += WAIT_MS / 1000
    world.loop.turn()
    assert len(world.refused) == 4 * REFUSALS_PER_WORK


# --- large calls ---


def test_the_rest_of_a_large_call_is_done_in_another_turn_before_its_callers_other_calls_and_never_refused() -> None:
    world = World(20, penalties=NO_PENALTY)
    queue = world.queue()
    world.do(world.queue(1, "other"))
    world.loop.turn()
    work = world.do(queue, elements=1_000)
    assert world.scheduler.is_large(work)
    world.send("next", queue)
    rest = Waiting(world, "rest", queue)
    rest.since_s = inf
    world.scheduler.put_off(queue, rest)
    world.loop.now_s += 10 * WAIT_MS / 1000
    world.loop.turn()
    assert world.started == ["rest"]
    assert world.refused == ["next"]


def test_a_call_is_not_large_while_one_caller_is_alone() -> None:
    world = World(20)
    assert not world.scheduler.is_large(world.do(world.queue(), elements=1_000))
    world.do(world.queue(1, "b"))
    assert world.scheduler.is_large(126)
    assert not world.scheduler.is_large(20)


def test_the_rest_of_a_large_call_has_a_turn_to_itself() -> None:
    world = World(20)
    world.scheduler.charge_turn(world.queue())
    assert not world.scheduler.may_start(world.queue())


# --- penalties ---


def test_turns_run_on_a_real_loop() -> None:
    async def main() -> list[str]:
        world = World(3)
        loop = asyncio.get_running_loop()
        world.scheduler = FairScheduler(loop, SchedulerLimits(turn_work_max=3), loop.time)
        world.loop.now_s = loop.time()
        world.send("call", world.queue(), 10)
        for _ in range(6):
            await asyncio.sleep(0)
        return world.started

    assert asyncio.run(main()) == ["call"] * 10
