"""Ordering keys as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import BatchError, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World


def put(world: World, *payloads: bytes, key: str | None = "k", topic: str = "t", **fields: Any) -> foqs.EnqueueResult:
    return world.client.enqueue_many(NS, [NewItem(topic, one, ordering_key=key, **fields) for one in payloads])


def taken(world: World, topic: str = "t", count: int = 10, **options: Any) -> list[foqs.Item]:
    """Take items until nothing more comes at once, and leave their leases open."""
    found: list[foqs.Item] = []
    while items := world.client.dequeue(NS, topic, count, wait_ms=SECOND_MS // 2, **options):
        found += items
    return found


def rest(world: World, topic: str = "t", **options: Any) -> list[bytes]:
    """Take and ack items, until nothing comes."""
    found: list[bytes] = []
    while items := world.client.dequeue(NS, topic, 10, wait_ms=SECOND_MS // 2, **options):
        found += [item.payload for item in items]
        world.client.ack(NS, items)
    return found


def test_items_of_a_key_come_one_at_a_time_and_in_order(world: World) -> None:
    put(world, b"0", b"1", b"2")
    (first,) = taken(world)
    assert (first.payload, first.topic, first.ordering_key) == (b"0", "t", "k")
    world.client.ack(NS, first)
    (second,) = taken(world)
    assert second.payload == b"1"
    world.client.nack(NS, second)
    assert rest(world) == [b"1", b"2"]


def test_other_keys_and_items_without_a_key_continue(world: World) -> None:
    put(world, b"a0", b"a1", key="a")
    put(world, b"b0", b"b1", key="b")
    put(world, b"0", b"1", key=None)
    items = taken(world)
    assert sorted([item.payload for item in items]) == [b"0", b"1", b"a0", b"b0"]
    assert {item.payload: item.ordering_key for item in items} == {b"0": None, b"1": None, b"a0": "a", b"b0": "b"}
    world.client.ack(NS, items)
    assert sorted(rest(world)) == [b"a1", b"b1"]


def test_calls_for_any_topic_or_a_prefix_get_items_with_keys(world: World) -> None:
    put(world, b"0", topic="topic")
    put(world, b"1", key="other", topic="topic")
    (one,) = world.client.dequeue(NS, count=1, topic_prefix="", wait_ms=SECOND_MS)
    (other,) = world.client.dequeue(NS, count=10, topic_prefix="to", wait_ms=SECOND_MS)
    assert {one.ordering_key, other.ordering_key} == {"k", "other"}
    assert {one.topic, other.topic} == {"topic"}


def test_each_group_has_the_order_of_its_own(world: World) -> None:
    world.admin.create_group(NS, "t", "g")
    put(world, b"0", b"1")
    (of_topic,) = taken(world)
    (of_group,) = taken(world, group="g")
    assert (of_topic.payload, of_topic.group) == (b"0", None)
    assert (of_group.payload, of_group.topic, of_group.group, of_group.ordering_key) == (b"0", "t", "g", "k")
    world.client.ack(NS, of_group)
    assert rest(world, group="g") == [b"1"]
    assert taken(world) == []


def test_a_more_urgent_item_of_a_key_comes_before_those_that_wait(world: World) -> None:
    world.client.enqueue_many(
        NS, [NewItem("t", payload, priority, ordering_key="k") for payload, priority in ((b"low", 5), (b"urgent", -5))]
    )
    assert rest(world) == [b"urgent", b"low"]


def test_a_nack_with_a_delay_holds_its_key_alone(world: World) -> None:
    put(world, b"0", b"1")
    (item,) = taken(world)
    world.client.nack(NS, item, delay_ms=1_500)
    put(world, b"other", key="other")
    assert [item.payload for item in taken(world)] == [b"other"]
    world.let_pass(2 * SECOND_MS)
    assert rest(world) == [b"0", b"1"]


@pytest.mark.parametrize(
    ("topic", "key", "reason"),
    [
        ("t", "", "must be text of 1 to 128 bytes"),
        ("t", "a\x1db", "without control characters"),
        ("t", "\u00e9" * 65, "must be text of 1 to 128 bytes"),
        ("t" * 200, "k" * 60, "need 261 bytes together, with one between them, and the limit is 255"),
    ],
)
def test_a_key_that_is_not_valid_is_refused(world: World, topic: str, key: str, reason: str) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=reason):
        world.client.enqueue(NS, topic, b"", ordering_key=key)
    with pytest.raises(BatchError) as raised:
        world.client.enqueue_many(NS, [NewItem("t", b"0"), NewItem(topic, b"1", ordering_key=key)])
    assert list(raised.value.errors) == [1]
    assert rest(world) == [b"0"]


@pytest.mark.parametrize("options", [{"delay_ms": 5}, {"deliver_after_ms": 1}])
def test_an_item_with_a_key_cannot_have_a_delay(world: World, options: dict[str, int]) -> None:
    with pytest.raises(
        foqs.InvalidArgumentError, match=f"{next(iter(options))} .* is not possible with ordering_key 'k'"
    ):
        world.client.enqueue(NS, "t", b"", ordering_key="k", **options)  # type: ignore[arg-type]


def test_a_serial_topic_takes_no_keys_and_a_topic_with_keys_does_not_become_serial(world: World) -> None:
    world.admin.set_topic_policy(NS, "serial", serial=True)
    with pytest.raises(foqs.InvalidArgumentError, match="ordering key 'k' of topic 'serial' is not possible"):
        world.client.enqueue(NS, "serial", b"", ordering_key="k")
    put(world, b"")
    with pytest.raises(foqs.FoqsError, match="serial"):
        world.admin.set_topic_policy(NS, "t", serial=True)


@pytest.mark.parametrize("name", ["t\x1dk", "t\x1fg", "t\x1fg\x1dk"])
def test_no_caller_can_give_a_hidden_name(world: World, name: str) -> None:
    world.admin.create_group(NS, "t", "g")
    put(world, b"0")
    with pytest.raises(foqs.InvalidArgumentError):
        world.client.enqueue(NS, name, b"forged")
    with pytest.raises(foqs.InvalidArgumentError):
        world.client.dequeue(NS, name, 1)
    assert rest(world) == [b"0"]


def test_a_dedup_id_is_known_in_its_key_alone(world: World) -> None:
    first = put(world, b"0", dedup_id="d")
    assert put(world, b"0 again", dedup_id="d").ids == first.ids
    put(world, b"other", key="other", dedup_id="d")
    put(world, b"1")
    assert sorted(rest(world)) == [b"0", b"1", b"other"]


def test_a_call_for_several_topics_gets_items_with_keys_of_each(world: World) -> None:
    put(world, b"t k", topic="t")
    put(world, b"u k", b"u k again", topic="u")
    put(world, b"v", b"v", key=None, topic="v")
    found: list[foqs.Item] = []
    while items := world.client.dequeue(NS, {"t": 5, "u": 5, "v": 1}, wait_ms=SECOND_MS // 2):
        assert sum([item.topic == "v" for item in items]) <= 1
        found += items
    assert sorted([item.payload for item in found]) == [b"t k", b"u k", b"v", b"v"]


def test_a_call_gets_no_more_items_than_it_asks_for(world: World) -> None:
    for number in range(20):
        put(world, b"x", key=f"k{number}")
    put(world, *[b"x"] * 20, key=None)
    counts: list[int] = []
    while items := world.client.dequeue(NS, "t", 7, wait_ms=SECOND_MS // 2):
        counts.append(len(items))
    assert (max(counts), sum(counts)) == (7, 40)
