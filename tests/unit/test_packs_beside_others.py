"""What needs room out of packs holds up nothing else, and is held up by nothing else for good."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from foqs.model import limits
from foqs.model.item import Item
from foqs.shard.state.callers import LookUp
from tests.support.packed_shard import MANY, leased, one_shard, settle
from tests.support.shards import NAMESPACE, Shards


@pytest.fixture
def one() -> Shards:
    return one_shard()


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
    assert one.states[0].take(one.now(0), {}) is None
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
        item.content = None
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
