"""Items with fairness keys in the verbs of operators: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

import pytest

import foqs
from foqs import ItemState, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.contract.test_fairness_keys import put, taken


def stats_of(world: World) -> foqs.TopicStats:
    (found,) = [one for one in world.client.topics(NS) if (one.topic, one.group) == ("t", None)]
    return found


def fill(world: World) -> None:
    """Items without a key, of the fairness keys "a" to "c", each after the other, and of an ordering key."""
    put(world, None, b"0", b"1")
    for key in ("c", "a", "b"):
        put(world, key, f"{key}0".encode(), f"{key}1".encode())
    world.client.enqueue(NS, "t", b"o0", ordering_key="a")


def test_the_counts_of_a_topic_have_those_of_its_keys(world: World) -> None:
    fill(world)
    assert (stats_of(world).ready, stats_of(world).fairness_keys, stats_of(world).ordering_keys) == (9, 3, 1)
    by_payload = {item.payload: item for item in taken(world)}
    world.client.nack(NS, by_payload[b"a0"], delay_ms=60_000)
    world.client.nack(NS, by_payload[b"b0"], dead_letter=True)
    world.client.ack(NS, [by_payload[b"c0"], by_payload[b"c1"]])
    found = stats_of(world)
    assert (found.ready, found.delayed, found.leased, found.dead, found.fairness_keys) == (0, 1, 5, 1, 2)
    assert [one.topic for one in world.client.topics(NS)] == ["t"]


@pytest.mark.parametrize("limit", [1, 3, 100])
def test_pages_have_the_items_of_one_key_after_the_other(world: World, limit: int) -> None:
    fill(world)
    found: list[foqs.StoredItem] = []
    token = ""
    while True:
        page = world.admin.peek_items(NS, "t", limit, token)
        found += page.items
        token = page.next_page_token
        if not token:
            break
    assert [item.payload for item in found] == [b"0", b"1", b"a0", b"a1", b"b0", b"b1", b"c0", b"c1", b"o0"]
    assert [item.fairness_key for item in found] == [None, None, "a", "a", "b", "b", "c", "c", None]
    assert {(item.topic, item.group) for item in found} == {("t", None)}
    of_key = world.admin.peek_items(NS, "t", fairness_key="b")
    assert ([item.payload for item in of_key.items], of_key.next_page_token) == ([b"b0", b"b1"], "")
    assert world.admin.peek_items(NS, "t", fairness_key="unknown").items == []
    assert world.admin.get_item(NS, found[2].id).fairness_key == "a"


def test_dead_letters_of_keys_are_listed_redriven_and_purged_with_those_of_the_topic(world: World) -> None:
    for key in (None, "a", "b", "c"):
        put(world, key, b"0", b"1")
    while items := world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS // 2):
        world.client.nack(NS, items, dead_letter=True)
    listed = world.admin.list_dead_letters(NS, "t").items
    assert [item.fairness_key for item in listed] == [None, None, "a", "a", "b", "b", "c", "c"]
    assert len(world.admin.list_dead_letters(NS, "t", fairness_key="c").items) == 2
    assert world.admin.purge_dead_letters(NS, "t", fairness_key="c").count == 2
    assert world.admin.redrive_dead_letters(NS, "t", fairness_key="a").count == 2
    assert [item.fairness_key for item in taken(world)] == ["a", "a"]
    (dead_b, _) = world.admin.list_dead_letters(NS, "t", fairness_key="b").items
    with pytest.raises(foqs.BatchError, match="fairness key 'a' of topic 't'"):
        world.admin.redrive_dead_letters(NS, "t", [dead_b.id], fairness_key="a")
    assert world.admin.redrive_dead_letters(NS, "t", [dead_b.id]).count == 1
    assert world.admin.redrive_dead_letters(NS, "t").count == 3
    assert len(taken(world)) == 4


def test_exports_have_items_of_keys(world: World) -> None:
    fill(world)
    put(world, "k", b"other", topic="tu")
    for options in ({"topics": "t"}, {"topics": ["t"], "states": [ItemState.READY]}):
        found = list(world.admin.iterate_items(NS, **options))  # type: ignore[arg-type]
        assert len(found) == 9
        assert {item.topic for item in found} == {"t"}
    found = list(world.admin.iterate_items(NS, topic_prefix="t"))
    keys = {(item.topic, item.fairness_key) for item in found if item.fairness_key}
    assert keys == {("t", "a"), ("t", "b"), ("t", "c"), ("tu", "k")}


def test_a_group_that_begins_with_the_waiting_items_has_their_keys(world: World) -> None:
    items = [NewItem("t", b"%d" % at, fairness_key=key) for key in ("a", "b") for at in range(3)]
    world.client.enqueue_many(NS, items)
    world.admin.create_group(NS, "t", "g", from_queued=True)
    found: list[foqs.Item] = []
    for _ in range(40):
        found += world.client.dequeue(NS, "t", 10, group="g", wait_ms=SECOND_MS)
        if len(found) == 6:
            break
    assert sorted([(item.fairness_key, item.payload) for item in found], key=str) == sorted(
        [(item.fairness_key, item.payload) for item in items], key=str
    )


def test_the_policies_of_the_topic_hold_for_its_keys(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", in_flight_max=3, attempts_max=1)
    for key in ("a", "b", None):
        put(world, key, b"0", b"1")
    first = taken(world)
    assert len(first) == 3
    assert stats_of(world).leased == 3
    world.client.nack(NS, first)
    assert stats_of(world).dead == 3
    world.client.ack(NS, taken(world))
    world.admin.set_topic_policy(NS, "t", dequeue_paused=True)
    put(world, "a", b"2")
    with pytest.raises(foqs.PausedError, match="topic 't' are paused"):
        world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)
    world.admin.set_topic_policy(NS, "t", dequeue_paused=False, enqueue_paused=True)
    with pytest.raises(foqs.PausedError, match="topic 't' are paused"):
        world.client.enqueue(NS, "t", b"", fairness_key="a")
    world.admin.set_topic_policy(NS, "t", enqueue_paused=False, depth_max=2)
    errors = put_errors(world)
    assert sorted(errors) == [1, 2]


def put_errors(world: World) -> dict[int, foqs.FoqsError]:
    items = [NewItem("t", b"", fairness_key=key) for key in ("a", "b", "c")]
    return world.client.enqueue_many(NS, items, return_errors=True, deadline_ms=500).errors
