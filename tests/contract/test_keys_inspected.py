"""Items with ordering keys in the verbs of operators: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

import pytest

import foqs
from foqs import ItemState, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.contract.test_ordering_keys import put, rest, taken


def stats_of(world: World, topic: str = "t", group: str | None = None) -> foqs.TopicStats:
    (found,) = [one for one in world.client.topics(NS) if (one.topic, one.group) == (topic, group)]
    return found


def fill(world: World) -> None:
    """Items without a key, and of the keys "a" to "c", each after the other."""
    put(world, b"0", b"1", key=None)
    for key in ("c", "a", "b"):
        put(world, f"{key}0".encode(), f"{key}1".encode(), key=key)


def kill_all(world: World) -> None:
    """Make all items that are delivered dead letters."""
    while items := world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS // 2):
        world.client.nack(NS, items, dead_letter=True)


def test_the_counts_of_a_topic_have_those_of_its_keys(world: World) -> None:
    fill(world)
    assert (stats_of(world).ready, stats_of(world).ordering_keys) == (8, 3)
    items = taken(world)
    found = stats_of(world)
    assert (found.ready, found.leased, found.serial, found.ordering_keys) == (3, 5, False, 3)
    by_key = {item.ordering_key: item for item in items}
    world.client.nack(NS, by_key["a"], delay_ms=60_000)
    world.client.nack(NS, by_key["b"], dead_letter=True)
    found = stats_of(world)
    assert (found.ready, found.delayed, found.leased, found.dead, found.ordering_keys) == (3, 1, 3, 1, 3)
    assert [one.topic for one in world.client.topics(NS)] == ["t"]


def test_a_topic_that_has_items_with_keys_alone_is_listed(world: World) -> None:
    put(world, b"0", key="k", topic="keyed")
    put(world, b"1", key="k", topic="keyed", priority=-3)
    found = stats_of(world, "keyed")
    assert (found.ready, found.ordering_keys, found.most_urgent_priority) == (2, 1, -3)
    assert found.oldest_ready_at_ms


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
    assert [item.payload for item in found] == [b"0", b"1", b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]
    assert [item.ordering_key for item in found] == [None, None, "a", "a", "b", "b", "c", "c"]
    assert {(item.topic, item.group) for item in found} == {("t", None)}
    of_key = world.admin.peek_items(NS, "t", ordering_key="b")
    assert ([item.payload for item in of_key.items], of_key.next_page_token) == ([b"b0", b"b1"], "")
    assert world.admin.peek_items(NS, "t", ordering_key="unknown").items == []
    assert world.admin.get_item(NS, found[2].id).ordering_key == "a"


def test_dead_letters_of_keys_are_listed_redriven_and_purged_with_those_of_the_topic(world: World) -> None:
    fill(world)
    kill_all(world)
    listed = world.admin.list_dead_letters(NS, "t").items
    assert [item.ordering_key for item in listed] == [None, None, "a", "a", "b", "b", "c", "c"]
    assert [item.payload for item in world.admin.list_dead_letters(NS, "t", ordering_key="c").items] == [b"c0", b"c1"]
    assert world.admin.purge_dead_letters(NS, "t", ordering_key="c").count == 2
    assert world.admin.redrive_dead_letters(NS, "t", ordering_key="a").count == 2
    assert rest(world) == [b"a0", b"a1"]
    (dead_b, _) = world.admin.list_dead_letters(NS, "t", ordering_key="b").items
    with pytest.raises(foqs.BatchError, match="ordering key 'a' of topic 't'"):
        world.admin.redrive_dead_letters(NS, "t", [dead_b.id], ordering_key="a")
    assert world.admin.redrive_dead_letters(NS, "t", [dead_b.id]).count == 1
    assert world.admin.redrive_dead_letters(NS, "t").count == 3
    assert sorted(rest(world)) == [b"0", b"1", b"b0", b"b1"]


def test_exports_have_items_of_keys(world: World) -> None:
    fill(world)
    put(world, b"other", key="k", topic="tu")
    for options in ({"topics": "t"}, {"topics": ["t"], "states": [ItemState.READY]}):
        found = list(world.admin.iterate_items(NS, **options))  # type: ignore[arg-type]
        assert sorted([item.payload for item in found]) == [b"0", b"1", b"a0", b"a1", b"b0", b"b1", b"c0", b"c1"]
        assert {item.topic for item in found} == {"t"}
    found = list(world.admin.iterate_items(NS, topic_prefix="t"))
    assert {(item.topic, item.ordering_key) for item in found if item.ordering_key} == {
        ("t", "a"),
        ("t", "b"),
        ("t", "c"),
        ("tu", "k"),
    }
    assert len(found) == 9


def test_exports_of_a_topic_with_many_keys_have_no_other_topics(world: World) -> None:
    items = [NewItem("t", b"x", ordering_key=f"k{number}") for number in range(600)]
    world.client.enqueue_many(NS, [*items, NewItem("tu", b"other"), NewItem("tu", b"other", ordering_key="k")])
    found = list(world.admin.iterate_items(NS, topics="t"))
    assert ({item.topic for item in found}, len(found)) == ({"t"}, 600)
    found = list(world.admin.iterate_items(NS, topics=["t", "tu"]))
    assert len(found) == 602


def test_the_items_of_keys_of_a_deleted_group_are_deleted(world: World) -> None:
    world.admin.create_group(NS, "t", "g")
    put(world, b"0", b"1")
    world.admin.delete_group(NS, "t", "g")
    for _ in range(20):
        if not [one for one in world.client.topics(NS) if one.group]:
            break
        world.let_pass(SECOND_MS)
    assert [(one.topic, one.group, one.ready) for one in world.client.topics(NS)] == [("t", None, 2)]


def test_a_dedup_id_of_a_key_can_be_made_free(world: World) -> None:
    first = put(world, b"0", dedup_id="d").ids
    assert put(world, b"again", dedup_id="d").ids == first
    world.admin.forget_dedup_ids(NS, "d", "t", ordering_key="k")
    assert put(world, b"again", dedup_id="d").ids != first
    with pytest.raises(foqs.NotFoundError):
        world.admin.forget_dedup_ids(NS, "d", "t", ordering_key="other")
