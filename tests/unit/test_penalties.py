"""Whoever did most lately is not served for a while, and nobody else notices."""

from __future__ import annotations

import pytest

from foqs.transport import fair_scheduler
from foqs.transport.fair_scheduler import (
    NO_TENANT,
    OF_PEER,
    REFUSALS_PER_WORK,
    RecentWork,
)
from tests.support.scheduler_world import WAIT_MS, World


@pytest.mark.parametrize("by_refusals", [False, True])
@pytest.mark.parametrize("others_ms", [None, 0, 9 * fair_scheduler.SHARE_MEMORY_MS])
def test_a_caller_that_did_most_is_not_served_for_a_while_and_the_others_are(
    others_ms: int | None, by_refusals: bool
) -> None:
    """`others_ms`: how long ago another caller had a call done; None: never."""
    world = World(20)
    flood = world.queue(1, "flood")
    if others_ms is not None:
        world.do(world.queue(1, "good"))
        world.loop.turn(1 if others_ms else 0)
        world.loop.now_s += others_ms / 1000
    if by_refusals:
        world.send("old", flood, 20 * REFUSALS_PER_WORK, waited_s=WAIT_MS / 1000)
        world.loop.turn()
    else:
        world.do(flood, elements=1_000, took_s=0.004)
    world.loop.turn(2)
    world.send("heavy", flood)
    world.send("light", world.queue(1, "good"))
    world.loop.turn(3)
    if others_ms != 0:
        assert sorted(world.started) == ["heavy", "light"]
        return
    assert world.started == ["light"]
    world.loop.end_penalties()
    world.loop.turn()
    assert world.started == ["light", "heavy"]


def test_a_penalty_lasts_twice_as_long_as_the_turn_and_its_calls_first_steps_took_but_has_an_end() -> None:
    for took_s, expected_s in (0.004, 0.01), (60.0, fair_scheduler.PENALTY_MS_MAX / 1000):
        world = World(20)
        world.do(world.queue(1, "good"))
        world.do(world.queue(1, "flood"), elements=1_000, took_s=took_s)
        world.loop.turn()
        world.loop.now_s += 0.001  # The first steps.
        world.loop.turn()
        ((penalty_s, _),) = world.loop.later
        assert penalty_s == pytest.approx(expected_s)


def test_a_namespace_that_did_most_is_not_served_where_none_of_its_callers_did_so_much_alone() -> None:
    world = World(20)
    world.do(world.queue(2, "good"))
    for number in range(20):
        world.do(world.queue(1, f"caller {number}"), elements=10)
    world.loop.turn(2)
    world.send("another caller", world.queue(1, "caller 99"))
    world.send("light", world.queue(2, "good"))
    world.loop.turn()
    assert world.started == ["light"]
    world.loop.end_penalties()
    world.loop.turn()
    assert world.started == ["light", "another caller"]


def test_of_a_namespace_with_one_greedy_caller_the_others_are_served() -> None:
    world = World(20)
    world.do(world.queue(2, "good"))
    world.do(world.queue(1, "greedy"), elements=1_000)
    world.loop.turn(2)
    world.send("greedy", world.queue(1, "greedy", enqueue=False))
    world.send("its neighbour", world.queue(1, "neighbour"))
    world.loop.turn()
    assert world.started == ["its neighbour"]


def test_none_has_a_penalty_while_two_do_about_as_much() -> None:
    world = World(20)
    for number in range(20):
        world.do(world.queue(1 + number % 2), elements=400)
        world.loop.turn(2)
        world.loop.now_s += 0.001
    assert world.loop.later == []


def test_a_caller_with_a_penalty_that_has_nothing_to_do_is_served_after_it() -> None:
    world = World(20)
    world.do(world.queue(1, "good"))
    world.do(world.queue(1, "flood"), elements=1_000)
    world.loop.turn(2)
    assert not world.scheduler.may_start(world.queue(1, "flood"))
    world.loop.end_penalties()
    assert world.scheduler.may_start(world.queue(1, "flood"))


def flood_beside(tenant: int, address: str) -> World:
    """A client floods, after somebody else had a call done; then both call again."""
    world = World(20)
    world.do(world.queue(tenant, address))
    world.do(world.queue(1, "flood"), elements=1_000, took_s=0.004)
    world.loop.turn(2)
    world.send("flood", world.queue(1, "flood"))
    world.send("other", world.queue(tenant, address))
    world.loop.turn(2)
    return world


@pytest.mark.parametrize("tenant", [1, NO_TENANT])
def test_a_client_has_no_penalty_for_what_other_hosts_ask_for_its_own_namespace_or_for_themselves(tenant: int) -> None:
    world = flood_beside(tenant, f"host-1{OF_PEER}7")
    assert sorted(world.started) == ["flood", "other"]


@pytest.mark.parametrize(("elements", "is_penalised"), [(8, True), (250, False)])
def test_nobody_has_a_penalty_for_others_who_want_much_at_a_time(elements: int, is_penalised: bool) -> None:
    world = World(20)
    world.do(world.queue(1, "other"), elements=elements)
    world.do(world.queue(1, "flood"), elements=4_000, took_s=0.004)
    world.loop.turn(2)
    world.send("flood", world.queue(1, "flood"))
    world.send("other", world.queue(1, "other"))
    world.loop.turn(3)
    assert sorted(world.started) == (["other"] if is_penalised else ["flood", "other"])


def test_a_namespace_that_is_served_through_another_host_is_as_safe_from_others_as_one_that_calls_itself() -> None:
    world = flood_beside(2, f"host-1{OF_PEER}7")
    assert world.started == ["other"]
    world.loop.end_penalties()
    world.loop.turn()
    assert world.started == ["other", "flood"]


def test_a_caller_of_another_host_that_did_most_has_a_penalty_like_any_other() -> None:
    world = World(20)
    world.do(world.queue(1, "good"))
    flood = world.queue(1, f"host-1{OF_PEER}7")
    world.do(flood, elements=1_000, took_s=0.004)
    world.loop.turn(2)
    world.send("flood", flood)
    world.send("good", world.queue(1, "good"))
    world.loop.turn()
    assert world.started == ["good"]


def test_half_of_what_was_done_is_forgotten_after_a_while_and_all_after_a_long_time() -> None:
    recent: RecentWork[str] = RecentWork(50)

    def add(key: str, work: float, now_s: float) -> None:
        recent.forget(now_s)
        recent.add(key, work)

    add("a", 8.0, 5.0)
    assert not recent.did_most("a"), "there are no others"
    add("b", 2.0, 5.0)
    assert recent.did_most("a")
    assert not recent.did_most("b")
    add("b", 1.0, 5.0501)
    assert not recent.did_most("a"), "4 to 2"
    add("a", 20.0, 5.1002)
    assert recent.did_most("a"), "22 to 1"
    add("a", 1.0, 5.3)
    assert recent.work.keys() == {"a"}
    add("b", 1.0, 1e9)
    assert recent.work.keys() == {"b"}


# --- on a real loop ---
