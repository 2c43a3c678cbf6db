"""Fairness keys as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import BatchError, NewItem
from foqs.model.namespace import DedupScope
from tests.contract.queue_world import NS, SECOND_MS, World


def put(world: World, key: str | None, *payloads: bytes, topic: str = "t", **fields: Any) -> foqs.EnqueueResult:
    return world.client.enqueue_many(NS, [NewItem(topic, one, fairness_key=key, **fields) for one in payloads])


def taken(world: World, topic: str = "t", count: int = 10, **options: Any) -> list[foqs.Item]:
    """Take items until nothing more comes at once, and leave their leases open."""
    found: list[foqs.Item] = []
    while items := world.client.dequeue(NS, topic, count, wait_ms=SECOND_MS // 2, **options):
        found += items
    return found


def keys_of(items: list[foqs.Item]) -> list[str | None]:
    return [item.fairness_key for item in items]


@pytest.mark.parametrize("count", [1, 3, 100])
def test_keys_take_turns_however_many_items_each_has(world: World, count: int) -> None:
    put(world, "many", *[b"m%d" % number for number in range(30)])
    put(world, "few", b"f0", b"f1", b"f2")
    put(world, None, b"0", b"1", b"2")
    found = taken(world, count=count)
    assert len(found) == 36
    for third in (found[0:3], found[3:6], found[6:9]):
        assert sorted([item.fairness_key or "" for item in third]) == ["", "few", "many"]
    assert [item.payload for item in found if item.fairness_key == "many"] == [b"m%d" % number for number in range(30)]
    assert [item.payload for item in found if item.fairness_key == "few"] == [b"f0", b"f1", b"f2"]


def test_a_key_that_comes_late_waits_for_no_more_than_a_round(world: World) -> None:
    put(world, "a", *[b"a"] * 20)
    put(world, "b", *[b"b"] * 20)
    assert len(world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)) == 10
    put(world, "late", b"late")
    assert "late" in keys_of(world.client.dequeue(NS, "t", 3, wait_ms=SECOND_MS))


def test_a_key_that_had_no_items_for_a_while_takes_turns_again(world: World) -> None:
    put(world, "a", b"a0")
    put(world, "b", *[b"b"] * 20)
    first = world.client.dequeue(NS, "t", 4, wait_ms=SECOND_MS)
    assert sorted(keys_of(first)) == ["a", "b", "b", "b"]
    world.client.ack(NS, first)
    world.let_pass(3 * SECOND_MS)
    put(world, "a", b"a1", b"a2")
    assert sorted(keys_of(world.client.dequeue(NS, "t", 4, wait_ms=SECOND_MS))) == ["a", "a", "b", "b"]


@pytest.mark.parametrize("count", [1, 4, 100])
def test_a_more_urgent_item_comes_first_whatever_its_key(world: World, count: int) -> None:
    put(world, "a", b"", b"", priority=5)
    put(world, "b", b"", b"", b"", priority=5)
    put(world, "b", b"", b"", priority=-1)
    put(world, "c", b"", b"", b"", priority=0)
    put(world, None, b"", priority=7)
    found = taken(world, count=count)
    assert [item.priority for item in found] == sorted([item.priority for item in found])
    assert sorted(keys_of(found[5:9])) == ["a", "a", "b", "b"]


def test_calls_for_any_topic_or_a_prefix_get_the_items(world: World) -> None:
    put(world, "k", b"0", topic="topic")
    put(world, "other", b"1", topic="topic")
    (one,) = world.client.dequeue(NS, count=1, topic_prefix="", wait_ms=SECOND_MS)
    (other,) = world.client.dequeue(NS, count=10, topic_prefix="to", wait_ms=SECOND_MS)
    assert {one.fairness_key, other.fairness_key} == {"k", "other"}
    assert {one.topic, other.topic} == {"topic"}


def test_the_topic_has_one_turn_among_others_however_many_keys_it_has(world: World) -> None:
    for number in range(10):
        put(world, f"k{number}", b"", b"", topic="keyed")
    put(world, None, *[b""] * 20, topic="plain")
    found: list[str] = []
    while len(found) < 20:
        found += [item.topic for item in world.client.dequeue(NS, count=2, topic_prefix="", wait_ms=SECOND_MS)]
    assert 8 <= found.count("keyed") <= 12


def test_each_group_has_the_turns_of_its_own(world: World) -> None:
    world.admin.create_group(NS, "t", "g")
    put(world, "a", b"0", b"1", b"2")
    put(world, "b", b"3")
    first = world.client.dequeue(NS, "t", 2, wait_ms=SECOND_MS, group="g")
    assert sorted(keys_of(first)) == ["a", "b"]
    assert {(item.topic, item.group) for item in first} == {("t", "g")}
    assert sorted([item.payload for item in taken(world)]) == [b"0", b"1", b"2", b"3"]
    assert sorted([item.payload for item in taken(world, group="g")]) == [b"1", b"2"]


def test_items_with_a_key_can_be_delayed_expire_and_fail(world: World) -> None:
    put(world, "k", b"later", delay_ms=1_500)
    put(world, "k", b"gone", ttl_ms=1_000)
    put(world, "k", b"fails")
    items = world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)
    failing = next(item for item in items if item.payload == b"fails")
    world.client.nack(NS, failing)
    world.let_pass(2 * SECOND_MS)
    again = taken(world)
    assert {(item.payload, item.attempt, item.fairness_key) for item in again} >= {
        (b"later", 1, "k"), (b"fails", 2, "k")
    }  # fmt: skip


def test_a_dedup_id_is_known_whatever_the_key(world: World) -> None:
    first = put(world, "a", b"0", dedup_id="d")
    assert put(world, "b", b"again", dedup_id="d").ids == first.ids
    assert put(world, None, b"again", dedup_id="d").ids == first.ids
    assert [item.payload for item in taken(world)] == [b"0"]


def test_a_dedup_id_of_a_topic_is_known_in_the_topic_whatever_the_key(world: World) -> None:
    world.admin.create_namespace("by-topic", dedup_scope=DedupScope.TOPIC)
    client, of = world.client, "by-topic"
    first = client.enqueue(of, "t", b"0", fairness_key="a", dedup_id="d")
    assert client.enqueue(of, "t", b"", fairness_key="b", dedup_id="d") == first
    assert client.enqueue(of, "t", b"", dedup_id="d") == first
    assert client.enqueue(of, "u", b"", fairness_key="a", dedup_id="d") != first
    items = [NewItem("v", b"", fairness_key=key, dedup_id="same") for key in ("a", "b", None)]
    assert len(set(client.enqueue_many(of, items).ids)) == 1
    assert world.admin.forget_dedup_ids(of, ["d"], "t") == {}
    assert client.enqueue(of, "t", b"", fairness_key="b", dedup_id="d") != first


@pytest.mark.parametrize(
    ("topic", "key", "reason"),
    [
        ("t", "", "must be text of 1 to 64 bytes"),
        ("t", "a\x1cb", "without control characters"),
        ("t", "\u00e9" * 33, "must be text of 1 to 64 bytes"),
        ("t" * 200, "k" * 60, "need 261 bytes together, with one between them, and the limit is 255"),
    ],
)
def test_a_key_that_is_not_valid_is_refused(world: World, topic: str, key: str, reason: str) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=reason):
        world.client.enqueue(NS, topic, b"", fairness_key=key)
    with pytest.raises(BatchError) as raised:
        world.client.enqueue_many(NS, [NewItem("t", b"0"), NewItem(topic, b"1", fairness_key=key)])
    assert list(raised.value.errors) == [1]
    assert [item.payload for item in taken(world)] == [b"0"]


def test_an_item_cannot_have_both_kinds_of_keys(world: World) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="ordering_key 'o' and fairness_key 'f' are both given"):
        world.client.enqueue(NS, "t", b"", ordering_key="o", fairness_key="f")
    with pytest.raises(foqs.InvalidArgumentError, match="both given"):
        world.admin.peek_items(NS, "t", ordering_key="o", fairness_key="f")
    assert taken(world) == []


def test_a_topic_can_have_items_with_either_kind_of_key(world: World) -> None:
    for number in range(3):
        world.client.enqueue(NS, "t", b"o%d" % number, ordering_key="k")
    put(world, "k", b"f0", b"f1")
    put(world, None, b"0")
    items = taken(world)
    assert {item.payload: (item.ordering_key, item.fairness_key) for item in items} == {
        b"0": (None, None), b"o0": ("k", None), b"f0": (None, "k"), b"f1": (None, "k")
    }  # fmt: skip
    world.client.ack(NS, items)
    assert [item.payload for item in taken(world)] == [b"o1"]


def test_a_serial_topic_takes_no_keys_and_a_topic_with_keys_does_not_become_serial(world: World) -> None:
    world.admin.set_topic_policy(NS, "serial", serial=True)
    with pytest.raises(foqs.InvalidArgumentError, match="fairness key 'k' of topic 'serial' is not possible"):
        world.client.enqueue(NS, "serial", b"", fairness_key="k")
    put(world, "k", b"")
    with pytest.raises(foqs.FoqsError, match="serial"):
        world.admin.set_topic_policy(NS, "t", serial=True)


@pytest.mark.parametrize("name", ["t\x1ck", "t\x1fg\x1ck"])
def test_no_caller_can_give_a_hidden_name(world: World, name: str) -> None:
    world.admin.create_group(NS, "t", "g")
    put(world, "k", b"0")
    for key in (None, "k"):
        with pytest.raises(foqs.InvalidArgumentError):
            world.client.enqueue(NS, name, b"forged", fairness_key=key)
    with pytest.raises(BatchError, match="2 of 2 positions failed"):
        world.client.enqueue_many(NS, [NewItem(name, b"forged"), NewItem(name, b"forged", dedup_id="d")])
    with pytest.raises(foqs.InvalidArgumentError):
        world.client.dequeue(NS, name, 1)
    assert [item.payload for item in taken(world)] == [b"0"]


def test_a_call_gets_no_more_items_than_it_asks_for(world: World) -> None:
    for number in range(20):
        put(world, f"k{number}", b"x", b"x")
    put(world, None, *[b"x"] * 20)
    counts: list[int] = []
    while items := world.client.dequeue(NS, "t", 7, wait_ms=SECOND_MS // 2):
        counts.append(len(items))
    assert (max(counts), sum(counts)) == (7, 60)


def test_a_call_that_waits_gets_the_first_item_of_a_key(world: World) -> None:
    put(world, "a", b"0")
    assert [item.payload for item in taken(world)] == [b"0"]
    put(world, "b", b"1")
    (item,) = world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)
    assert (item.payload, item.fairness_key) == (b"1", "b")
