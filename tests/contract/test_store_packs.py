"""What every store must hold of short-lived items: whether or not they have rows, nobody sees a difference."""

from __future__ import annotations

import asyncio
import random
from itertools import count

import pytest

from foqs.model import limits, order
from foqs.model.calls import ItemContent
from foqs.model.item import ShardItem
from foqs.shard.port import (
    ClaimEntries,
    ItemRow,
    OwnershipLostError,
    Refill,
    Rewrite,
    SessionLostError,
    Transaction,
    TransactionFailedError,
)
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.take_over import PACKS_AT_ONCE
from tests.contract.owner import LIFE_MS, Owner, new_item, new_topic, opened
from tests.contract.test_store import CONTENT, HOSTILE
from tests.support.deep import deep_but


def packed(owner: Owner, keys: range, **fields: object) -> list[ShardItem]:
    items = [
        new_item(key, payload=b"p%d" % key, metadata=b"m%d" % key, trace_context=b"t%d" % key, **fields) for key in keys
    ]
    assert owner.run(inserts_short_lived=items).packed_count == len(items)
    return items


def ready_keys(owner: Owner, limit: int = 10_000) -> list[int]:
    return [row[2] for row in owner.run(refills=[Refill(1, order.FIRST, limit)]).refilled[0]]


def page_keys(shard, owner: Owner) -> list[int]:
    with shard.reader(owner.store) as reader:
        rows, more = reader.page(1, order.FIRST, 1_000)()
    assert not more
    return [row.key for row in rows]


def taken_over(shard, owner: Owner) -> Owner:
    owner.store.close()
    return Owner(shard)


def nack(key: int, *, lane: int = 1, due_at: int = 1_000) -> Rewrite:
    return Rewrite(key, lane, 0, due_at, 1, 1, is_in_place=lane == 1)


# ---- what is read ----


@pytest.mark.parametrize("way", ["fetches", "refills", "look_ups", "page", "take_over"])
def test_short_lived_items_come_back_byte_for_byte(shard, way):
    owner = Owner(shard)
    items = [new_item(n + 1, payload=data, metadata=data[:512]) for n, data in enumerate(HOSTILE)]
    assert owner.run(inserts_short_lived=items).packed_count == len(HOSTILE)
    keys = [item.key for item in items]
    if way == "take_over":
        owner = taken_over(shard, owner)
    if way == "fetches":
        result = owner.run(fetches=items)
        rows, read_count = result.fetched, result.read_count
        assert read_count == 0, "they are in memory"
    elif way == "refills":
        rows = owner.run(refills=[Refill(1, order.FIRST, 100, with_payload=True)]).read_ahead
    elif way == "page":
        with shard.reader(owner.store) as reader:
            rows = {row.key: row for row in reader.page(1, order.FIRST, 100)()[0]}
    else:
        rows = owner.look_up(*keys)
    assert [rows[key].content for key in keys] == [ItemContent(data, data[:512]) for data in HOSTILE]


def test_every_field_of_a_packed_item_comes_back_at_its_bounds(shard, monkeypatch):
    monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", 2)
    monkeypatch.setattr(pack_index, "PACK_ITEM_BYTES_MAX", limits.MIB)
    owner = Owner(shard)
    low = new_item(1, priority=-(1 << 31), due_at=0)
    high = new_item(
        (1 << 64) - 1, topic=new_topic((1 << 31) - 1), priority=(1 << 31) - 1, due_at=(1 << 48) - 1,
        metadata=b"m" * limits.METADATA_BYTES_MAX,
    )  # fmt: skip
    high.lease_ms = limits.LEASE_MS_MAX
    high.at_most_once = True
    assert owner.run(inserts_short_lived=[low, high]).packed_count == 2
    top, due = (1 << 31) - 1, (1 << 48) - 1
    expected = {
        1: ItemRow(1, 1, -(1 << 31), 0, 1, -(1 << 31), 0, LIFE_MS, 0, 0, 0, 0, None, None, CONTENT),
        high.key: ItemRow(
            high.key,
            top,
            top,
            due,
            top,
            top,
            due,
            due + LIFE_MS,
            limits.LEASE_MS_MAX,
            1,
            0,
            0,
            None,
            None,
            high.content,
        ),
    }
    assert owner.look_up(*expected) == expected
    assert taken_over(shard, owner).look_up(*expected) == expected


def test_rows_and_packed_items_are_one_lane(shard):
    owner = Owner(shard)
    owner.run(inserts=[new_item(key, due_at=1_000 + key) for key in range(1, 30, 3)])
    for first in (2, 3):
        items = [new_item(key, due_at=1_000 + key) for key in range(first, 30, 3)]
        assert owner.run(inserts_short_lived=items).packed_count == len(items)
    assert ready_keys(owner) == page_keys(shard, owner) == list(range(1, 30))
    assert ready_keys(owner, 7) == list(range(1, 8))
    with shard.reader(owner.store) as reader:
        rows, more = reader.page(1, order.sort_key(0, 1_009, 9, 3), 10)()
        assert ([row.key for row in rows], more) == (list(range(10, 20)), True)


def test_expired_packed_items_are_found_with_each_page_of_a_walk(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10), due_at=500)
    owner.run(inserts=[new_item(20, due_at=600)])
    with shard.reader(owner.store) as reader:
        assert reader.expired_page(0, 499 + LIFE_MS)() == ([], 20, 500 + LIFE_MS)
        assert reader.expired_page(0, 500 + LIFE_MS)() == ([*range(1, 10)], 20, 500 + LIFE_MS)
        assert reader.expired_page(0, 600 + LIFE_MS)() == ([*range(1, 10), 20], 20, 500 + LIFE_MS)
        assert reader.expired_page(20, 600 + LIFE_MS)() == ([*range(1, 10)], 0, 500 + LIFE_MS)
        owner.run(deletes=[*range(1, 10)])
        assert reader.expired_page(20, 600 + LIFE_MS)() == ([], 0, limits.NEVER_MS)


def test_a_page_that_was_begun_before_an_item_got_its_row_shows_it_once(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    with shard.reader(owner.store) as reader:
        read = reader.page(1, order.FIRST, 100)
        owner.run(rewrites=[nack(3), nack(4)])
        rows, more = read()
    assert [(row.key, row.deliveries) for row in rows] == [(n, int(n in (3, 4))) for n in range(1, 10)]
    assert not more


# ---- what changes them ----


def test_a_packed_item_can_be_rewritten_deleted_and_looked_up_in_one_transaction(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    result = owner.run(
        rewrites=[Rewrite(3, 1, 7, 900, 1, 1, b"other"), nack(2)], deletes=[4], look_ups=[2, 3, 4, 5],
        look_ups_with_payload=True,
    )  # fmt: skip
    assert result.promoted_count == 2
    rows = result.looked_up
    assert sorted(rows) == [2, 3, 5]
    assert (rows[2].content, rows[2].deliveries) == (ItemContent(b"p2", b"m2", b"t2"), 1)
    assert (rows[3].content, rows[3].urgency, rows[3].due_at) == (ItemContent(b"p3", b"other", b"t3"), 7, 900)
    assert (rows[5].content, rows[5].deliveries) == (ItemContent(b"p5", b"m5", b"t5"), 0)
    left = [1, 2, *range(5, 10), 3]
    assert ready_keys(owner) == left
    assert ready_keys(taken_over(shard, owner)) == left


def test_a_packed_item_may_be_delayed_woken_and_die(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    owner.run(rewrites=[nack(3, lane=0, due_at=2_000), nack(4, lane=-1, due_at=3_000)])
    assert ready_keys(owner) == [1, 2, *range(5, 10)]
    owner.run(wakes=[3])
    assert ready_keys(owner) == [1, 2, *range(5, 10), 3]
    counts = taken_over(shard, owner).image.count()
    assert sorted(counts.lanes) == [(-1, 1), (1, 8)]


def test_old_packed_items_get_rows_when_there_are_many_and_the_store_wants_a_transaction(shard, monkeypatch):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    assert not owner.store.wants_transaction(10 * pack_index.PACK_MS_MAX)
    monkeypatch.setattr(pack_index, "PACKED_ITEMS_KEPT_MAX", 8)
    assert not owner.store.wants_transaction(pack_index.PACK_MS_MAX - 1)
    assert owner.store.wants_transaction(pack_index.PACK_MS_MAX)
    assert owner.run(steady_ms=pack_index.PACK_MS_MAX).promoted_count == 9
    assert not owner.store.wants_transaction(10 * pack_index.PACK_MS_MAX)
    assert ready_keys(owner) == list(range(1, 10))


def test_the_store_says_how_many_rows_a_transaction_is_about(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    number = owner.number + 1
    short_lived = [new_item(key) for key in range(20, 30)]
    assert owner.store.rows_count(Transaction(number, inserts_short_lived=short_lived, deletes=[1, 2])) == 0
    row = new_item(30)
    assert owner.store.rows_count(Transaction(number, inserts=[row], rewrites=[nack(3)], deletes=[99])) == 3
    assert owner.store.rows_count(Transaction(number, fetches=[row], refills=[Refill(1, order.FIRST, 5)])) == 6


# ---- how a transaction ends ----


def test_nothing_of_a_transaction_is_done_when_its_pack_is_refused(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    owner.run(inserts=[new_item(50)])
    # The number was had before, and with it the id of its pack.
    again = Transaction(1, inserts_short_lived=[new_item(key) for key in range(60, 70)], deletes=[1, 50])
    with pytest.raises(TransactionFailedError):
        asyncio.run(owner.store.run(again))
    assert ready_keys(owner) == page_keys(shard, owner) == [*range(1, 10), 50]
    assert ready_keys(taken_over(shard, owner)) == [*range(1, 10), 50]


@pytest.mark.parametrize("has_happened", [False, True])
def test_after_a_lost_session_the_store_knows_what_became_of_packed_items(shard, has_happened):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    lost = Transaction(
        owner.number + 1, inserts_short_lived=[new_item(key) for key in range(20, 30)], deletes=[1, 2],
        rewrites=[nack(3, lane=-1)],
    )  # fmt: skip
    if has_happened:
        with shard.losing_answers(owner.store), pytest.raises(SessionLostError):
            asyncio.run(owner.store.run(lost))
    else:
        shard.cut(owner.store)
        with pytest.raises(SessionLostError):
            asyncio.run(owner.store.run(lost))
    number = reopened(owner)
    result = owner.store.outcome(lost)
    assert (number == lost.number, result is not None) == (has_happened, has_happened)
    left = [*range(4, 10), *range(20, 30)] if has_happened else [*range(1, 10)]
    owner.number = number
    assert ready_keys(owner) == page_keys(shard, owner) == left
    if not has_happened:
        assert asyncio.run(owner.store.run(lost)).packed_count == 10
        left = [*range(4, 10), *range(20, 30)]
    assert ready_keys(taken_over(shard, owner)) == left


def reopened(owner: Owner) -> int:
    for _ in count():
        try:
            return owner.store.reopen()
        except SessionLostError:
            continue
    raise AssertionError


# ---- another owner ----


def test_a_new_owner_finds_all_that_has_not_left(shard):
    owner = Owner(shard)
    packed(owner, range(1, 10))
    packed(owner, range(11, 20))
    packed(owner, range(21, 30))
    owner.run(deletes=[1, 11, 12])
    owner.run(rewrites=[nack(13)], deletes=[14, *range(21, 30)])
    owner = taken_over(shard, owner)
    left = [*range(2, 10), 13, *range(15, 20)]
    assert ready_keys(owner) == left
    assert owner.image.count().lanes == [(1, len(left))]
    assert owner.look_up(9)[9].content == ItemContent(b"p9", b"m9", b"t9")
    owner.run(deletes=left)
    assert ready_keys(taken_over(shard, owner)) == []


def test_a_new_owners_name_is_there_before_packs_get_rows_and_who_dies_meanwhile_leaves_them(shard, monkeypatch):
    one = Owner(shard, "one")
    packed(one, range(1, 10))
    one.run(deletes=[3])
    one.store.close()
    two = shard.store("two")

    def die() -> None:
        """As by kill -9, after somebody else had a look."""
        with pytest.raises(OwnershipLostError, match="is owned by 'two'"):
            shard.store("three").open()
        raise SessionLostError("killed")

    monkeypatch.setattr(two, "_promote_all", die)
    with pytest.raises(SessionLostError):
        opened(two)
    three = Owner(shard, "three")
    assert three.image.epoch > two.epoch
    assert ready_keys(three) == [1, 2, *range(4, 10)]
    assert three.look_up(1)[1].content.payload == b"p1"


def test_the_claim_of_a_packed_item_is_honoured_by_the_next_owner(shard):
    owner = Owner(shard)
    items = packed(owner, range(1, 10))
    owner.run(claims=[ClaimEntries(101, 5_000, items[:2])])
    image = taken_over(shard, owner).image
    assert image.claims == [(101, 5_000, False, [(1, 1), (2, 1)])]
    assert sorted(image.claimed_rows) == [1, 2]


def test_many_packs_of_many_items_are_taken_over(shard):
    owner = Owner(shard)
    expected = []
    for number in range(2 * PACKS_AT_ONCE // 3):
        first = number * 10_000 + 1
        packed(owner, range(first, first + 900), due_at=1_000 + number)
        owner.run(deletes=[first])
        expected += range(first + 1, first + 900)
    assert ready_keys(owner) == expected
    assert ready_keys(taken_over(shard, owner)) == expected


# ---- all of it, by chance ----


@pytest.mark.parametrize("seed", deep_but(range(2), range(6)))
def test_whatever_is_done_the_store_and_its_next_owner_find_what_is_there(shard, monkeypatch, seed):
    chance = random.Random(seed)
    monkeypatch.setattr(pack_index, "PACK_MS_MAX", 300)
    monkeypatch.setattr(pack_index, "PACKED_ITEMS_KEPT_MAX", chance.choice([0, 10, 1_000]))
    monkeypatch.setattr(pack_index, "TOMBSTONES_KEPT_MAX", chance.choice([2, 1_000]))
    monkeypatch.setattr(pack_index, "PROMOTE_OLD_ITEMS", 3)
    owner, keys, there = Owner(shard), count(1), {}
    for step in range(60):
        delivered = chance.sample(list(there), min(len(there), chance.choice([0, 3, 20])))
        gone, back = delivered[: len(delivered) // 2], delivered[len(delivered) // 2 :]
        items = [new_item(next(keys), due_at=step) for _ in range(chance.choice([0, 5, 20]))]
        rewrites = [Rewrite(key, 1, 0, there[key][0], there[key][1] + 1, 0, is_in_place=True) for key in back]
        parts = {"deletes": gone, "rewrites": rewrites, "steady_ms": step * 10}
        try:
            if chance.random() < 0.15 and back:
                with shard.deadlock(back[0]), pytest.raises(TransactionFailedError):
                    owner.run(inserts_short_lived=items, **parts)
                continue
            owner.run(**{chance.choice(["inserts", "inserts_short_lived"]): items}, **parts)
        finally:
            monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", chance.choice([1, 8]))
        for key in gone:
            del there[key]
        there |= {key: (there[key][0], there[key][1] + 1) for key in back}
        there |= {item.key: (step, 0) for item in items}
        assert {key: (row.due_at, row.deliveries) for key, row in owner.look_up(*there).items()} == there
        in_order = sorted(there, key=lambda key: (there[key][0], key))
        assert ready_keys(owner) == in_order
        if step % 10 == 0:
            assert page_keys(shard, owner) == in_order
        if chance.random() < 0.1:
            owner = taken_over(shard, owner)
