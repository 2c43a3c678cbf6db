"""Limits of items in flight, as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import NewItem
from tests.contract.queue_world import NS, SECOND_MS, World


def test_no_more_items_than_the_limit_are_under_lease_and_an_ack_makes_room(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", in_flight_max=2)
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % at) for at in range(5)])
    first = world.client.dequeue(NS, "t", 10, wait_ms=5 * SECOND_MS)
    first += world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)
    assert sorted(item.payload for item in first) == [b"0", b"1"]
    assert world.client.dequeue(NS, "t", 10) == []
    (stats,) = world.client.topics(NS, "t")
    assert (stats.leased, stats.ready) == (2, 3)
    world.client.ack(NS, first[:1])
    (third,) = world.client.dequeue(NS, "t", 10, wait_ms=5 * SECOND_MS)
    assert third.payload == b"2"
    world.client.nack(NS, [third])
    assert len(world.client.dequeue(NS, "t", 10, wait_ms=5 * SECOND_MS)) == 1
    policy = world.admin.set_topic_policy(NS, "t", in_flight_max=0)
    assert (policy.in_flight_max, policy.own_fields) == (0, ())
    rest: list[foqs.Item] = []
    while more := world.client.dequeue(NS, "t", 10, wait_ms=5 * SECOND_MS if not rest else SECOND_MS):
        rest += more
    assert len(rest) == 2


def test_an_ended_lease_makes_room(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", in_flight_max=1)
    world.client.enqueue_many(NS, [NewItem("t", b"a"), NewItem("t", b"b")])
    assert len(world.client.dequeue(NS, "t", 10, lease_ms=SECOND_MS, wait_ms=5 * SECOND_MS)) == 1
    assert world.client.dequeue(NS, "t", 10) == []
    assert len(world.client.dequeue(NS, "t", 10, wait_ms=5 * SECOND_MS)) == 1


def test_each_topic_of_a_prefix_and_each_group_has_the_limit_by_itself(world: World) -> None:
    world.admin.create_group(NS, "c/1", "audit")
    world.admin.set_topic_policy(NS, "c/", is_prefix=True, in_flight_max=1)
    world.admin.set_topic_policy(NS, "c/1", group="audit", in_flight_max=2)
    names = ["c/1", "c/2"]
    world.client.enqueue_many(NS, [NewItem(name, b"") for name in names for _ in range(4)])
    wanted = {name: world.client.dequeue(NS, name, 9, wait_ms=5 * SECOND_MS) for name in names}
    assert {name: len(items) for name, items in wanted.items()} == {"c/1": 1, "c/2": 1}
    copies = world.client.dequeue(NS, "c/1", 9, group="audit", wait_ms=5 * SECOND_MS)
    copies += world.client.dequeue(NS, "c/1", 9, group="audit", wait_ms=SECOND_MS)
    assert len(copies) == 2
    assert world.client.dequeue(NS, names, 9) == []


def test_calls_for_any_topic_get_items_within_the_limits(world: World) -> None:
    world.admin.set_topic_policy(NS, "c/", is_prefix=True, in_flight_max=1)
    world.client.enqueue_many(NS, [NewItem(f"c/{at % 3}", b"") for at in range(9)])
    found: list[foqs.Item] = []
    while more := world.client.dequeue(NS, topic_prefix="c/", count=9, wait_ms=3 * SECOND_MS):
        found += more
    assert sorted(item.topic for item in found) == ["c/0", "c/1", "c/2"]
    world.client.ack(NS, found)
    assert world.client.dequeue(NS, topic_prefix="c/", count=9, wait_ms=5 * SECOND_MS)


def test_leases_that_run_when_the_limit_is_lowered_go_on_and_count(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"") for _ in range(8)])
    running: list[foqs.Item] = []
    while len(running) < 4:
        running += world.client.dequeue(NS, "t", 4 - len(running), wait_ms=5 * SECOND_MS)
    world.admin.set_topic_policy(NS, "t", in_flight_max=2)
    world.let_pass(3 * SECOND_MS)
    assert world.client.dequeue(NS, "t", 9) == []
    world.client.ack(NS, running[:2])
    assert world.client.dequeue(NS, "t", 9, wait_ms=SECOND_MS) == []
    world.client.ack(NS, running[2:3])
    assert len(world.client.dequeue(NS, "t", 9, wait_ms=5 * SECOND_MS)) == 1
    world.admin.set_topic_policy(NS, "t", in_flight_max=3)
    assert len(world.client.dequeue(NS, "t", 9, wait_ms=5 * SECOND_MS)) == 1


@pytest.mark.parametrize("in_flight_max", [-1, 1_000_001, 1.5, True])
def test_a_wrong_limit_is_refused(world: World, in_flight_max: Any) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="in_flight_max"):
        world.admin.set_topic_policy(NS, "t", in_flight_max=in_flight_max)
