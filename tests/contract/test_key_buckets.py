"""Ordering keys that share a few sequences: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from zlib import crc32

import pytest

import foqs
from foqs import NewItem
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.contract.test_ordering_keys import put, rest, taken

BUCKETS = 4
KEYS = [f"k{number}" for number in range(12)]


def bucket_of(key: str) -> int:
    return crc32(key.encode()) % BUCKETS


def set_buckets(world: World, number: int, topic: str = "t", **changes: bool) -> None:
    world.admin.set_topic_policy(NS, topic, key_buckets=number, **changes)


def fill(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", key.encode(), ordering_key=key) for key in KEYS])


def test_one_item_of_a_bucket_is_out_at_a_time_and_all_come_in_order(world: World) -> None:
    set_buckets(world, BUCKETS)
    fill(world)
    seen: list[str] = []
    while items := taken(world):
        keys = [item.payload.decode() for item in items]
        assert len({bucket_of(key) for key in keys}) == len(keys) <= BUCKETS
        assert {(item.topic, item.ordering_key) for item in items} == {("t", None)}
        seen += keys
        world.client.ack(NS, items)
    for bucket in range(BUCKETS):
        assert [key for key in seen if bucket_of(key) == bucket] == [key for key in KEYS if bucket_of(key) == bucket]


@pytest.mark.parametrize("limit", [1, 100])
def test_inspection_shows_the_bucket_in_place_of_the_key(world: World, limit: int) -> None:
    set_buckets(world, BUCKETS)
    fill(world)
    put(world, b"plain", key=None)
    found: list[foqs.StoredItem] = []
    token = ""
    while True:
        page = world.admin.peek_items(NS, "t", limit, token)
        found += page.items
        token = page.next_page_token
        if not token:
            break
    expected = [(None, "plain")]
    expected += [(f"{bucket}/{BUCKETS}", key) for bucket in range(BUCKETS) for key in KEYS if bucket_of(key) == bucket]
    assert [(item.key_bucket, item.payload.decode()) for item in found] == expected
    assert {(item.topic, item.ordering_key) for item in found} == {("t", None)}
    same = [key for key in KEYS if bucket_of(key) == bucket_of("k0")]
    of_key = world.admin.peek_items(NS, "t", ordering_key="k0").items
    assert [item.payload.decode() for item in of_key] == same


def test_a_dedup_id_is_known_in_its_bucket(world: World) -> None:
    set_buckets(world, BUCKETS)
    first = put(world, b"0", dedup_id="d").ids
    assert put(world, b"again", dedup_id="d").ids == first
    world.admin.forget_dedup_ids(NS, "d", "t", ordering_key="k")
    assert put(world, b"again", dedup_id="d").ids != first


@pytest.mark.parametrize("is_prefix", [False, True], ids=["topic", "prefix"])
def test_the_number_changes_only_without_items(world: World, is_prefix: bool) -> None:
    put(world, b"0", b"1")
    for number in (BUCKETS, 2 * BUCKETS):
        with pytest.raises(foqs.InvalidArgumentError, match="can get another number of key_buckets only without items"):
            set_buckets(world, number, is_prefix=is_prefix)
        assert rest(world) == [b"0", b"1"]
        set_buckets(world, number, is_prefix=is_prefix)
        put(world, b"0", b"1")
    with pytest.raises(foqs.InvalidArgumentError, match="key_buckets"):
        set_buckets(world, 0, is_prefix=is_prefix)
    assert world.admin.get_topic_policy(NS, "t").key_buckets == 2 * BUCKETS
    assert rest(world) == [b"0", b"1"]


def test_each_group_has_the_buckets_of_its_topic_which_it_cannot_change(world: World) -> None:
    world.admin.create_group(NS, "t", "g")
    set_buckets(world, 1)
    put(world, b"0", key="a")
    put(world, b"1", key="b")
    (item,) = taken(world, group="g")
    assert item.payload == b"0"
    world.client.ack(NS, item)
    assert rest(world, group="g") == [b"1"]
    with pytest.raises(foqs.InvalidArgumentError, match="set them without a group"):
        world.admin.set_topic_policy(NS, "t", key_buckets=2, group="g")


@pytest.mark.parametrize("number", [-1, 4_097])
def test_a_number_out_of_its_bounds_is_refused(world: World, number: int) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=r"key_buckets .* is not within 0\.\.4096"):
        set_buckets(world, number)
    assert not world.client.dequeue(NS, "t", 1, wait_ms=SECOND_MS // 100)
