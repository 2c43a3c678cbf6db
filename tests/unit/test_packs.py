"""What is packed, what gets a row at once, and what leaves a pack in which way."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from foqs.model import limits, order
from foqs.model.item import Item, Phase
from foqs.shard.state.look_ups import LookUp
from foqs.shard.state.parts import Completion
from tests.support.shards import NAMESPACE, Shards

MANY = 2 * limits.PACK_ITEMS_MIN


@pytest.fixture
def one() -> Shards:
    """A shard whose topic "t" is there, and whose window is complete."""
    shards = Shards(1)
    shards.enqueue(0, "t")
    shards.run(0)
    shards.states[0].index.topic(NAMESPACE, "t").window.edge = order.LAST
    return shards


def packed_keys(shards: Shards) -> set[int]:
    assert shards.states[0].index.packed.keys() == shards.tables[0].packed.keys()
    return set(shards.tables[0].packed)


def keys(items: list[Item]) -> set[int]:
    return {item.key for item in items}


def leased(shards: Shards, count: int) -> list[Item]:
    """Out of topic "t", the first one left alone."""
    call = shards.dequeue({"t": count})
    shards.run(0)
    items = list(call.items)
    state = shards.states[0]
    for item in items:
        if item.phase is Phase.PREFETCHED:
            state.settlements.deliver(item, shards.clock_ms + 30_000)
    return items


def settle(shards: Shards, items: list[Item], *, delay_ms: int | None = None) -> None:
    settlements = shards.states[0].settlements
    rewrites = None
    for item in items:
        settlements.end_lease(item)
    if delay_ms is not None:
        rewrites = [settlements.failed_attempt(item, shards.clock_ms, delay_ms=delay_ms) for item in items]
    settlements.settle(items, rewrites, Completion(lambda _: None), list(range(len(items))))


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
        assert sum(len(item.payload or b"") for item in pack.items[:-1]) <= limits.PACK_BYTES_MAX


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


# ---- what holds up what ----


def fill(shards: Shards, size_bytes: int, payload: bytes) -> None:
    """Packs of so many bytes: of topic "t", and of others when its window is full."""
    for topic in ("t", *[f"t{number}" for number in range(50)]):
        for _ in range(limits.WINDOW_ITEMS_MAX // 500 - 1):
            if shards.states[0].packs.stored_bytes >= size_bytes:
                return
            shards.enqueue(0, topic, count=500, payload=payload)
            shards.run(0)
    raise AssertionError("they are not packed")


def ask_for_topic(shards: Shards) -> list:
    """The look-ups' answers, when there are any."""
    state, done = shards.states[0], []
    state.look_ups.look_up(LookUp([], done.append, done.append, topic=state.index.topic(NAMESPACE, "t")))
    return done


@pytest.mark.parametrize("why", ["it is old", "its lease has ended", "somebody looks at its topic", "a refill"])
def test_acks_go_without_what_needs_room_after_a_transaction_that_failed(one, why):
    fill(one, 3 * limits.PROMOTED_BYTES_MAX, b"x" * 3_000)
    other, *acked = leased(one, 8)[1:]
    state = one.states[0]
    if why == "it is old":
        one.clock_ms += limits.PACK_MS_MAX
    elif why == "its lease has ended":
        state.settlements.resume_lease(other, one.clock_ms)
        one.clock_ms += 200
    elif why == "a refill":
        topic = state.index.topic(NAMESPACE, "t")
        topic.window.edge = topic.window.sort_keys[0]
        del topic.window.sort_keys[1:]
        state.refills.want(topic, with_payload=False)
    else:
        ask_for_topic(one)
    outcomes = []
    for item in acked:
        settle(one, [item])
        one.begin(0)
        outcomes.append(not state.in_flight.promoted)
        one.end(0, well=outcomes[-1])
        one.clock_ms += limits.UNPACK_OLD_EVERY_MS
    assert outcomes == [False, True] * 3


def test_what_had_to_wait_for_a_transaction_without_it_is_not_forgotten(one):
    one.enqueue(0, "t", count=MANY)
    one.run(0)
    item = leased(one, 3)[1]
    one.states[0].settlements.resume_lease(item, one.clock_ms)
    one.clock_ms += 200
    one.begin(0)
    assert one.states[0].in_flight.promoted == [item.key]
    one.end(0, well=False)
    assert one.states[0].take(one.now(0)) is None
    assert one.states[0].tick(one.now(0))
    one.begin(0)
    assert one.states[0].in_flight.promoted == [item.key]
    one.end(0)
    assert not one.states[0].tick(one.now(0))


def test_a_look_up_of_a_topic_and_those_behind_it_end_although_items_are_nacked_all_the_time(one):
    fill(one, limits.PACKS_OF_SHARD_BYTES_MAX - limits.PROMOTED_BYTES_MAX, b"x" * 1_000)
    packed = one.states[0].index.packed
    by_pack: dict[int, list[Item]] = {}
    for item in leased(one, limits.DEQUEUE_ITEMS_MAX)[1:]:
        by_pack.setdefault(packed[item.key].id, []).append(item)
    done, other = ask_for_topic(one), []
    one.states[0].look_ups.look_up(LookUp([1], other.append, other.append))
    for _ in range(100):
        settle(one, [items.pop() for items in by_pack.values() if items], delay_ms=60_000)
        one.begin(0)
        one.end(0)
        if done and other:
            break
    assert done == [{}]
    assert other == [{}]


def test_acks_nacks_and_claims_go_on_while_a_topic_is_unpacked_for_its_refill(one):
    fill(one, 3 * limits.PROMOTED_BYTES_MAX, b"x" * 500)
    state = one.states[0]
    topic = state.index.topic(NAMESPACE, "t")
    acked, nacked = leased(one, 8)[1:3]
    one.enqueue(0, "u")
    one.run(0)
    topic.window.edge = topic.window.sort_keys[0]
    del topic.window.sort_keys[1:]
    state.refills.want(topic, with_payload=False)
    one.dequeue({"u": 1})
    settle(one, [acked])
    settle(one, [nacked], delay_ms=1_000)
    one.begin(0)
    assert len(state.in_flight.promoted) > limits.PROMOTED_ITEMS_MAX // 2
    assert state.in_flight.removed_count == 1
    assert [rewrite.key for rewrite in state.in_flight.rewrites] == [nacked.key]
    assert len(state.in_flight.claims) == 1


def test_acks_go_on_while_claims_read_all_the_packs_that_a_transaction_may(one, monkeypatch):
    fill(one, 40_000, b"x" * 500)
    acked, nacked = leased(one, 3)[1:]
    one.rest()
    monkeypatch.setattr(limits, "PACKS_READ_BYTES_MAX", 1)
    for item in list(one.states[0].index.resident.values()):
        one.states[0].index.drop_resident(item)
        item.payload = None
    one.dequeue({"t": 50})
    settle(one, [nacked], delay_ms=1_000)
    settle(one, [acked])
    one.begin(0)
    assert one.states[0].in_flight.packs_read
    assert one.states[0].in_flight.removed_count == 1
    assert [rewrite.key for rewrite in one.states[0].in_flight.rewrites] == [nacked.key]


def test_an_ack_does_not_wait_for_nacks_that_need_rows(one, monkeypatch):
    fill(one, 40_000, b"x" * 500)
    acked, *nacked = leased(one, 21)[1:]
    monkeypatch.setattr(limits, "PROMOTED_ITEMS_MAX", 4)
    for start in range(0, 20, 2):
        settle(one, nacked[start : start + 2], delay_ms=1_000)
    settle(one, [acked])
    one.begin(0)
    assert one.states[0].in_flight.removed_count == 1
    assert len(one.states[0].in_flight.rewrites) == 4


def test_the_look_ups_of_a_transaction_read_no_more_than_one_of_them_beyond_the_bound(one):
    fill(one, limits.PACKS_OF_SHARD_BYTES_MAX, b"x" * 3_500)
    state = one.states[0]
    keys_of_all = list(state.index.packed)
    for first in (0, 1):
        state.look_ups.look_up(LookUp(keys_of_all[first::5], lambda _: None, lambda _: None))
    one.begin(0)
    assert state.in_flight.look_ups == keys_of_all[::5]
    one.end(0)
    one.begin(0)
    assert state.in_flight.look_ups == keys_of_all[1::5]


@pytest.mark.parametrize("why", ["they are old", "somebody looks at their topic"])
def test_a_transaction_gives_rows_to_a_bounded_number_of_small_items(one, why):
    fill(one, limits.PACKS_OF_SHARD_BYTES_MAX // 4, b"x")
    if why == "they are old":
        one.clock_ms += limits.PACK_MS_MAX
        count_max = limits.UNPACK_OLD_ITEMS
    else:
        ask_for_topic(one)
        count_max = limits.PROMOTED_ITEMS_MAX + limits.PACK_BYTES_MAX // limits.PACKED_ITEM_BYTES
    counts = []
    while one.begin(0) is not None:
        counts.append(len(one.states[0].in_flight.promoted))
        one.end(0)
        one.clock_ms += limits.UNPACK_OLD_EVERY_MS
    assert len(counts) > 3
    assert max(counts) <= count_max


def test_old_items_that_are_settled_just_now_get_no_rows_and_the_others_do(one):
    kept = one.enqueue(0, "t", count=3 * limits.UNPACK_OLD_ITEMS)
    one.run(0)
    settled = leased(one, limits.UNPACK_OLD_ITEMS)
    one.clock_ms += limits.PACK_MS_MAX
    settle(one, settled)
    rows: list[int] = []
    while one.begin(0) is not None:
        rows += one.states[0].in_flight.promoted
        one.end(0)
        one.clock_ms += limits.UNPACK_OLD_EVERY_MS
    assert sorted(rows) == sorted({item.key for item in kept} - {item.key for item in settled})


def test_old_items_get_rows_now_and_then_and_other_work_goes_on_between(one):
    one.enqueue(0, "t", count=5 * limits.UNPACK_OLD_ITEMS)
    one.run(0)
    state = one.states[0]
    one.clock_ms += limits.PACK_MS_MAX
    assert state.tick(one.now(0))
    one.begin(0)
    assert len(state.in_flight.promoted) == limits.UNPACK_OLD_ITEMS
    one.end(0)
    one.clock_ms += limits.UNPACK_OLD_EVERY_MS - 1
    assert not state.tick(one.now(0))
    one.enqueue(0, "u")
    one.begin(0)
    assert len(state.in_flight.inserts) == 1
    assert not state.in_flight.promoted
    one.end(0)
    one.clock_ms += 1
    assert state.tick(one.now(0))
    one.begin(0)
    assert len(state.in_flight.promoted) == limits.UNPACK_OLD_ITEMS
    one.end(0)


def test_more_old_items_get_rows_with_a_transaction_that_has_much_else_to_do(one):
    one.enqueue(0, "t", count=limits.TRANSACTION_INSERTS_MAX)
    one.run(0)
    one.clock_ms += limits.PACK_MS_MAX
    one.begin(0)
    one.end(0)
    one.enqueue(0, "u", count=limits.TRANSACTION_INSERTS_MAX)
    one.begin(0)
    in_flight = one.states[0].in_flight
    assert (
        len(in_flight.promoted) == limits.TRANSACTION_INSERTS_MAX // limits.UNPACK_OLD_RATIO > limits.UNPACK_OLD_ITEMS
    )
    assert len(in_flight.packs_read) > 1


@pytest.mark.interpreted
def test_those_who_ask_for_the_same_packs_look_at_them_once(one, monkeypatch):
    fill(one, limits.PROMOTED_BYTES_MAX // 2, b"x")
    answers = [ask_for_topic(one) for _ in range(100)]
    packs = one.states[0].packs
    promoted = Mock(side_effect=packs.promote)
    monkeypatch.setattr(packs, "promote", promoted)
    pack_count = len(packs._by_age)
    one.run(0)
    assert answers == [[{}]] * 100
    assert promoted.call_count <= pack_count + 1


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
