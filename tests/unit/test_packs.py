"""What is packed, what gets a row at once, and what leaves a pack in which way."""

from __future__ import annotations

import pytest

from foqs.model import limits, order
from foqs.shard.state.callers import LookUp
from tests.support.packed_shard import MANY, keys, leased, one_shard, packed_keys, settle
from tests.support.shards import NAMESPACE, Shards


@pytest.fixture
def one() -> Shards:
    return one_shard()


# ---- what is packed ----


def test_items_that_come_together_have_one_pack_and_few_have_rows(one):
    few = one.enqueue(0, "t", count=limits.PACK_ITEMS_MIN - 1)
    one.run(0)
    assert not packed_keys(one)
    many = one.enqueue(0, "t", count=limits.PACK_ITEMS_MIN)
    one.run(0)
    assert packed_keys(one) == keys(many)
    assert len(set(one.tables[0].packed.values())) == 1
    assert keys(few) < one.tables[0].items.keys()


def test_items_that_are_as_urgent_share_packs_so_that_these_go_as_a_whole(one):
    payload = b"x" * (limits.PACK_ITEM_BYTES_MAX // 2)
    count = 2 * limits.PACK_BYTES_MAX // len(payload)
    given = {-1: [], 1: []}
    for priority in (1, -1) * count:
        given[priority] += one.enqueue(0, "t", priority, payload=payload)
    one.run(0)
    packs = {priority: {one.tables[0].packed[item.key] for item in items} for priority, items in given.items()}
    assert len(packs[-1]) > 1
    assert len(packs[-1] & packs[1]) <= 1, "there may be one where they meet"
    urgent = leased(one, count)
    assert keys(urgent) == keys(given[-1])
    settle(one, urgent)
    one.begin(0)
    assert len(one.states[0].in_flight.packs_gone) >= len(packs[-1]) - 1


def test_delayed_and_large_items_and_those_behind_a_window_get_rows(one):
    delayed = one.enqueue(0, "t", count=MANY)
    for item in delayed:
        item.due_at += 1
    large = one.enqueue(0, "t", count=MANY, payload=b"x" * limits.PACK_ITEM_BYTES_MAX)
    one.enqueue(0, "other")
    one.run(0)
    one.states[0].index.topic(NAMESPACE, "other").window.edge = order.FIRST
    behind = one.enqueue(0, "other", count=MANY)
    mixed = one.enqueue(0, "t", count=MANY)
    one.begin(0)
    assert keys(one.states[0].in_flight.inserts) == keys(behind)
    one.end(0)
    assert packed_keys(one) == keys(mixed)
    assert keys([*delayed, *large, *behind]) < one.tables[0].items.keys()


def test_a_pack_has_no_more_than_its_bytes(one):
    payload = b"x" * (limits.PACK_ITEM_BYTES_MAX // 2)
    items = one.enqueue(0, "t", count=3 * limits.PACK_BYTES_MAX // len(payload), payload=payload)
    one.begin(0)
    packs = one.states[0].in_flight.packs_new
    assert [item for pack in packs for item in pack.items] == items
    assert len(packs) >= 3
    for pack in packs:
        assert sum(item.size_bytes for item in pack.items[:-1]) <= limits.PACK_BYTES_MAX


@pytest.mark.interpreted
@pytest.mark.parametrize(("limit", "value"), [("PACKS_OF_SHARD_BYTES_MAX", 500), ("PACKS_OF_SHARD_MAX", 1)])
def test_items_get_rows_while_the_packs_of_a_shard_are_full(one, monkeypatch, limit, value):
    monkeypatch.setattr(limits, limit, value)
    first = one.enqueue(0, "t", count=MANY)
    one.run(0)
    one.enqueue(0, "t", count=MANY)
    one.run(0)
    assert packed_keys(one) == keys(first)
    settle(one, leased(one, 1 + MANY))
    one.run(0)
    third = one.enqueue(0, "t", count=MANY)
    one.run(0)
    assert packed_keys(one) == keys(third)


def test_a_transaction_that_fails_packs_nothing_and_lets_nothing_leave(one):
    one.enqueue(0, "t", count=MANY)
    one.begin(0)
    one.end(0, well=False)
    assert not packed_keys(one)
    kept = one.enqueue(0, "t", count=MANY)
    one.run(0)
    settle(one, leased(one, 4))
    one.begin(0)
    assert one.states[0].in_flight.tombstone is not None
    one.end(0, well=False)
    assert packed_keys(one) == keys(kept)


# ---- what leaves ----


def test_what_is_acked_leaves_by_a_tombstone_and_the_last_of_it_with_its_pack(one):
    items = one.enqueue(0, "t", count=MANY)
    one.run(0)
    first, *taken = leased(one, 1 + MANY)
    settle(one, [first, *taken[:3]])
    one.begin(0)
    in_flight = one.states[0].in_flight
    assert in_flight.deletes == [first.key]
    assert in_flight.tombstone.keys == [item.key for item in taken[:3]]
    assert not in_flight.packs_gone
    one.end(0)
    assert packed_keys(one) == keys(items) - keys(taken[:3])
    settle(one, taken[3:])
    one.begin(0)
    in_flight = one.states[0].in_flight
    assert (in_flight.tombstone, len(in_flight.packs_gone)) == (None, 1)
    one.end(0)
    assert not one.tables[0].items
    assert one.states[0].packs.stored_bytes == 0


def test_a_tombstone_goes_once_no_older_pack_is_there(one):
    one.enqueue(0, "t", count=MANY)
    one.run(0)
    taken = leased(one, 1 + MANY)
    settle(one, taken[:3])
    one.run(0)
    (tombstone_id,) = one.states[0].packs._tombstones
    one.rest()
    younger = one.enqueue(0, "t", count=MANY)
    one.run(0)
    settle(one, taken[3:])
    one.begin(0)
    assert one.states[0].in_flight.tombstones_gone == []
    one.end(0)
    one.dequeue({"t": 1})
    for well in (False, True):
        one.begin(0)
        assert one.states[0].in_flight.tombstones_gone == [tombstone_id]
        one.end(0, well=well)
    assert not one.states[0].packs._tombstones
    assert packed_keys(one) == keys(younger)


def test_a_nack_gives_the_item_a_row(one):
    items = one.enqueue(0, "t", count=MANY)
    one.run(0)
    taken = leased(one, 3)[1:]
    settle(one, taken, delay_ms=500)
    one.run(0)
    assert packed_keys(one) == keys(items) - keys(taken)
    assert {one.tables[0].items[item.key].lane for item in taken} == {0}
    assert one.states[0].index.topic(NAMESPACE, "t").delayed == 2


def test_a_look_up_finds_a_packed_item(one):
    items = one.enqueue(0, "t", count=MANY)
    one.run(0)
    found: dict = {}
    one.states[0].look_ups.look_up(LookUp([items[1].key], found.update, lambda error: None))
    one.run(0)
    assert list(found) == [items[1].key]
    assert packed_keys(one) == keys(items) - {items[1].key}


def test_all_of_a_topic_gets_rows_when_it_is_asked_for_and_what_comes_later_does_not(one):
    one.enqueue(0, "t", count=MANY)
    one.run(0)
    done: list = []
    one.states[0].look_ups.look_up(
        LookUp([], done.append, lambda error: None, topic=one.states[0].index.topic(NAMESPACE, "t"))
    )
    later = one.enqueue(0, "t", count=MANY)
    one.run(0)
    assert done == [{}]
    assert packed_keys(one) == keys(later)


def test_who_asks_for_a_topic_without_packs_is_answered_too(one):
    done: list = []
    one.states[0].look_ups.look_up(
        LookUp([], done.append, lambda error: None, topic=one.states[0].index.topic(NAMESPACE, "t"))
    )
    one.run(0)
    assert done == [{}]


def test_many_packs_of_a_topic_get_rows_in_several_transactions(one):
    payload = b"x" * (limits.PACK_ITEM_BYTES_MAX // 2)
    count = 0
    while one.states[0].packs.stored_bytes < 3 * limits.PROMOTED_BYTES_MAX:
        count += len(one.enqueue(0, "t", count=100, payload=payload))
        one.run(0)
    done: list = []
    one.states[0].look_ups.look_up(
        LookUp([], done.append, lambda error: None, topic=one.states[0].index.topic(NAMESPACE, "t"))
    )
    unpacked_bytes = []
    while one.begin(0) is not None:
        unpacked_bytes.append(len(one.states[0].in_flight.promoted) * len(payload))
        assert not done
        one.end(0)
    assert done == [{}]
    assert len(unpacked_bytes) >= 3
    assert max(unpacked_bytes) <= limits.PROMOTED_BYTES_MAX + limits.PACK_BYTES_MAX + len(payload)
    assert not packed_keys(one)


def test_what_is_left_of_an_old_pack_gets_rows(one):
    items = one.enqueue(0, "t", count=MANY)
    one.run(0)
    settle(one, leased(one, 4))
    one.run(0)
    one.clock_ms += limits.PACK_MS_MAX - 1
    one.begin(0)
    assert not one.states[0].in_flight.promoted
    one.end(0)
    one.clock_ms += 1
    one.run(0)
    assert not packed_keys(one)
    assert len(one.tables[0].items) == len(items) - 3
    assert len(leased(one, MANY)) == len(items) - 3


def test_a_window_is_refilled_when_all_packed_items_behind_its_edge_have_rows(one):
    state = one.states[0]
    window = state.index.topic(NAMESPACE, "t").window
    items = one.enqueue(0, "t", count=MANY)
    one.run(0)
    # As a trim leaves it.
    del window.sort_keys[4:]
    window.edge = window.sort_keys[-1]
    window.refilling = False
    state.refills.want(state.index.topic(NAMESPACE, "t"), with_payload=False)
    one.begin(0)
    assert (state.in_flight.refills, keys(items) - set(state.in_flight.promoted)) == ([], set())
    one.end(0)
    one.begin(0)
    assert len(state.in_flight.refills) == 1
    one.end(0)
    assert {order.key_of(sort_key) for sort_key in window.sort_keys} >= keys(items)


def test_the_next_owner_gets_all_of_it(one):
    items = one.enqueue(0, "t", count=MANY)
    one.run(0)
    settle(one, leased(one, 4))
    one.rest()
    one.enqueue(0, "another")
    one.run(0)
    one.take_over()
    assert not packed_keys(one)
    assert len(leased(one, MANY)) == len(items) - 3
