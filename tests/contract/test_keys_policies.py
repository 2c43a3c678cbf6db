"""The policies of topics that have ordering keys: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

import time

import pytest

import foqs
from foqs import NewItem, OnDead
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.contract.test_ordering_keys import put, rest, taken


def put_keys(world: World, count: int, topic: str = "t") -> None:
    items = [NewItem(topic, f"{key}".encode(), ordering_key=f"k{key:02}") for key in range(count)]
    world.client.enqueue_many(NS, items)


def test_a_pause_of_dequeues_holds_all_keys(world: World) -> None:
    put_keys(world, 3)
    world.admin.set_topic_policy(NS, "t", dequeue_paused=True)
    with pytest.raises(foqs.PausedError, match="topic 't' are paused"):
        world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)
    assert world.client.dequeue(NS, count=10, topic_prefix="", wait_ms=300) == []
    world.admin.set_topic_policy(NS, "t", dequeue_paused=False)
    assert sorted([item.payload for item in taken(world)]) == [b"0", b"1", b"2"]


def test_a_pause_of_enqueues_refuses_items_with_keys(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", enqueue_paused=True)
    with pytest.raises(foqs.PausedError, match="topic 't' are paused"):
        world.client.enqueue(NS, "t", b"", ordering_key="k")


def test_items_in_flight_of_a_topic_and_its_keys_have_one_limit(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", in_flight_max=3)
    put_keys(world, 5)
    put(world, b"plain 0", b"plain 1", b"plain 2", key=None)
    seen: list[bytes] = []
    while items := taken(world):
        assert len(items) <= 3
        assert sum([one.leased for one in world.client.topics(NS)]) <= 3
        seen += [item.payload for item in items]
        world.client.ack(NS, items)
    assert sorted(seen) == sorted([*[b"%d" % key for key in range(5)], b"plain 0", b"plain 1", b"plain 2"])


def test_a_topic_and_its_keys_have_one_cap(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", deliveries_per_second_max=10)
    put_keys(world, 30)
    began_s = time.monotonic()
    assert len(taken(world)) == 30
    assert time.monotonic() - began_s > 1.5 or is_memory(world)


def is_memory(world: World) -> bool:
    return type(world.client).__name__ == "MemoryClient"


def test_failed_attempts_and_dead_letters_follow_the_policy_of_the_topic(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", attempts_max=2)
    put(world, b"0", b"1")
    for attempt in (1, 2):
        (item,) = taken(world)
        assert (item.payload, item.attempt) == (b"0", attempt)
        world.client.nack(NS, item)
    assert [(one.payload, one.ordering_key) for one in world.dead()] == [(b"0", "k")]
    assert rest(world) == [b"1"]


@pytest.mark.parametrize("way", ["redrive", "delete", "continue"])
def test_a_dead_letter_holds_its_key_alone(world: World, way: str) -> None:
    world.admin.set_topic_policy(NS, "t", on_dead=OnDead.HOLD)
    put(world, b"0", b"1")
    put(world, b"other 0", b"other 1", key="other")
    held, other = sorted(taken(world), key=lambda item: item.ordering_key or "")
    world.client.nack(NS, held, dead_letter=True)
    world.client.ack(NS, other)
    assert rest(world) == [b"other 1"]
    (dead,) = world.dead()
    if way == "redrive":
        world.admin.redrive_dead_letters(NS, "t", [dead.id])
    elif way == "delete":
        world.admin.delete_items(NS, dead.id)
    else:
        world.admin.set_topic_policy(NS, "t", on_dead=OnDead.CONTINUE)
        world.let_pass(SECOND_MS)
    assert rest(world) == ([b"0", b"1"] if way == "redrive" else [b"1"])


def test_the_depth_of_a_topic_has_the_items_of_its_keys(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", depth_max=4)
    put_keys(world, 3)
    put(world, b"plain", key=None)
    with pytest.raises(foqs.PausedError, match="topic 't' is full: it has 4 items"):
        world.client.enqueue(NS, "t", b"", ordering_key="new")
    with pytest.raises(foqs.PausedError, match="topic 't' is full"):
        world.client.enqueue(NS, "t", b"")
    items = taken(world, count=2)
    world.client.ack(NS, items[:1])
    world.client.enqueue(NS, "t", b"", ordering_key="new")


def test_a_prefix_s_policy_holds_for_keys(world: World) -> None:
    world.admin.set_topic_policy(NS, "to", is_prefix=True, attempts_max=1)
    put(world, b"0", topic="topic")
    (item,) = taken(world, "topic")
    world.client.nack(NS, item)
    assert [one.ordering_key for one in world.dead("topic")] == ["k"]


def test_a_dead_letter_on_expiry_is_made_of_an_item_with_a_key(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", dead_letter_on_expiry=foqs.TriState.ON)
    put(world, b"0", ttl_ms=1_000)
    world.let_pass(3 * SECOND_MS)
    assert taken(world) == []
    for _ in range(20):
        if world.dead():
            break
        world.let_pass(SECOND_MS)
    assert [(one.payload, one.ordering_key) for one in world.dead()] == [(b"0", "k")]


def test_a_topic_with_many_keys_has_the_share_of_one_topic(world: World) -> None:
    put_keys(world, 40)
    put(world, *[b"u"] * 40, key=None, topic="u")
    items = world.client.dequeue(NS, count=20, topic_prefix="", wait_ms=SECOND_MS)
    assert 8 <= sum([item.topic == "u" for item in items]) <= 12
    assert len(items) == 20
