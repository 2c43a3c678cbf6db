"""What is packed, what leaves its pack in which way, and what is read of rows and packs as one."""

from __future__ import annotations

import pytest

from foqs.model import limits, order
from foqs.model.calls import NO_CONTENT, ItemContent
from foqs.shard.port import Refill, Rewrite, Transaction, TransactionResult
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import add_looked_up, add_packed, merged_pages
from foqs.testing.fake_rows import new_row
from tests.contract.owner import SHARD_ID
from tests.support.packed_shard import FEW, MANY, PackedShard, in_order, is_empty, keys, nack


@pytest.fixture
def one() -> PackedShard:
    return PackedShard()


# ---- what is packed ----


def test_items_that_come_together_have_one_pack_and_few_have_rows(one: PackedShard) -> None:
    few = one.items(FEW)
    assert one.run(few).inserts == few
    many = one.items(MANY)
    plan = one.run(many)
    assert (list(plan.inserts), len(plan.packs_new), plan.rows_count) == ([], 1, 0)
    assert one.packed_keys() == set(keys(many))


def test_large_and_delayed_items_get_rows_and_so_does_what_is_not_called_short_lived(one: PackedShard) -> None:
    small, lasting = one.items(MANY), one.items(MANY)
    large = one.items(MANY, payload=b"x" * pack_index.PACK_ITEM_BYTES_MAX)
    delayed = one.items(MANY)
    for item in delayed:
        item.due_at += 1
    plan = one.run([*large, *small, *delayed], inserts=lasting)
    assert keys(plan.inserts) == keys([*lasting, *large, *delayed])
    assert one.packed_keys() == set(keys(small))


def test_too_few_small_ones_among_large_ones_get_rows_too(one: PackedShard) -> None:
    large = one.items(MANY, payload=b"x" * pack_index.PACK_ITEM_BYTES_MAX)
    few = one.items(FEW)
    assert keys(one.run([*large, *few]).inserts) == keys([*large, *few])


def test_a_pack_has_no_more_than_its_bytes_and_one_item(one: PackedShard) -> None:
    payload = b"x" * (pack_index.PACK_ITEM_BYTES_MAX // 2)
    items = one.items(3 * pack_index.PACK_BYTES_MAX // len(payload), payload=payload)
    packs = one.run(items).packs_new
    assert [key for pack in packs for key in pack.keys] == keys(items)
    assert len(packs) >= 3
    for pack in packs:
        assert pack.size_bytes <= pack_index.PACK_BYTES_MAX + pack_index.PACK_ITEM_BYTES_MAX


def test_items_that_are_as_urgent_share_packs(one: PackedShard) -> None:
    payload = b"x" * (pack_index.PACK_ITEM_BYTES_MAX // 2)
    count = 2 * pack_index.PACK_BYTES_MAX // len(payload)
    given = [one.items(1, priority=priority, payload=payload)[0] for priority in (1, -1) * count]
    packs = one.run(given).packs_new
    urgencies = [{order.urgency_of(at) for at in pack.sort_keys} for pack in packs]
    assert urgencies.count({-1}) >= 1
    assert urgencies.count({1}) >= 1
    assert urgencies.count({-1, 1}) <= 1, "there may be one where they meet"


@pytest.mark.parametrize(("limit", "value"), [("PACKS_OF_SHARD_BYTES_MAX", 500), ("PACKS_OF_SHARD_MAX", 1)])
def test_items_get_rows_while_the_packs_of_a_shard_are_full(
    one: PackedShard, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(limits, limit, value)
    first, second, third = one.items(MANY), one.items(MANY), one.items(MANY)
    one.run(first)
    assert one.run(second).inserts == second
    one.run(deletes=keys(first))
    one.run(third)
    assert one.packed_keys() == set(keys(third))
    assert one.index.stored_bytes > 0


def test_a_shard_may_use_what_the_others_of_its_host_have_left(one: PackedShard) -> None:
    budget = PackBudget(1_000)
    one, other = PackedShard(budget), PackedShard(budget)
    first = one.items(MANY)
    one.run(first)
    assert budget.used_bytes == one.index.stored_bytes >= 1_000
    assert not budget.has_room
    items = other.items(MANY)
    assert other.run(items).inserts == items
    one.run(deletes=keys(first))
    assert budget.used_bytes == 0
    other.run(other.items(MANY))
    assert len(other.index) == MANY
    other.index.clear()
    assert budget.used_bytes == 0


# ---- what leaves ----


def test_what_is_deleted_leaves_by_a_tombstone_and_the_last_of_it_with_its_pack(one: PackedShard) -> None:
    row, *packed = one.items(1), *one.items(MANY)
    one.run(packed, inserts=row)
    plan = one.run(deletes=keys([*row, *packed[:3]]))
    assert plan.deletes == keys(row)
    assert plan.tombstone is not None
    assert (plan.tombstone.keys, plan.packs_gone, plan.rows_count) == (keys(packed[:3]), [], 1)
    assert one.packed_keys() == set(keys(packed[3:]))
    plan = one.run(deletes=keys(packed[3:]))
    assert (plan.tombstone, len(plan.packs_gone), len(plan.tombstones_gone)) == (None, 1, 1)
    assert is_empty(one.stored)
    assert one.index.stored_bytes == 0


def test_a_tombstone_goes_with_the_last_pack_that_needs_it_however_old_others_are(one: PackedShard) -> None:
    oldest, first, second = one.items(MANY), one.items(MANY), one.items(MANY)
    one.run(oldest)
    one.run(first)
    one.run(second, deletes=keys(first[:3]))
    both = one.run(deletes=keys([*first[3:6], *second[:3]])).tombstone
    assert both is not None
    assert len(one.run(deletes=keys(first[6:])).tombstones_gone) == 1
    assert one.stored.tombstones.keys() == {both.id}
    assert one.run(deletes=keys(second[3:])).tombstones_gone == [both.id]
    assert not one.stored.tombstones
    assert one.packed_keys() == set(keys(oldest))


def test_what_is_left_of_a_pack_for_hours_keeps_no_tombstones_of_others(one: PackedShard) -> None:
    left = one.items(MANY)
    one.run(left)
    one.run(deletes=keys(left[1:]))
    for _ in range(300):
        one.now_ms += limits.MINUTE_MS
        items = one.items(MANY)
        one.run(items)
        one.run(deletes=keys(items[:5]))
        one.run(deletes=keys(items[5:]))
    assert len(one.stored.tombstones) == len([*one.index._tombstones]) == 1
    assert one.packed_keys() == {left[0].key}


def test_a_rewritten_item_gets_the_row_that_it_has_then(one: PackedShard) -> None:
    row, *packed = one.items(1), *one.items(MANY)
    one.run(packed, inserts=row)
    in_place = Rewrite(packed[0].key, 9, 9, 9, 3, 2, b"new", is_in_place=True)
    dead = Rewrite(packed[1].key, -1, 0, 77, 4, 5, None, b"why", expires_at=99)
    of_row = nack(one.model[row[0].key])
    plan = one.plan(rewrites=[in_place, of_row, dead])
    assert (plan.rewrites, plan.rows_count) == ([of_row], 3)
    content = ItemContent(b"p", b"new")
    assert plan.promoted == [
        new_row(packed[0])._replace(deliveries=3, failed_attempts=2, content=content),
        new_row(packed[1])._replace(
            lane=-1, urgency=0, due_at=77, deliveries=4, failed_attempts=5, death_reason=b"why", expires_at=99
        ),
    ]
    one.run(rewrites=[in_place, of_row, dead])
    assert one.packed_keys() == set(keys(packed[2:]))


def test_a_failed_transaction_changes_nothing_and_may_be_run_again_by_its_plan(one: PackedShard) -> None:
    items = one.items(MANY)
    one.run(items)
    transaction = one.transaction(one.items(MANY), deletes=keys(items[:3]), rewrites=[nack(one.model[items[4].key])])
    plan = one.index.plan(transaction)
    one.index.fail(plan)
    assert one.packed_keys() == set(keys(items))
    one.commit(plan, transaction)
    assert one.items_of_a_new_owner() == one.model
    assert len(one.packed_keys()) == 2 * MANY - 4


# ---- what is old ----


@pytest.fixture
def crowded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any packed item is too many."""
    monkeypatch.setattr(pack_index, "PACKED_ITEMS_KEPT_MAX", 0)


def test_old_items_stay_packed_while_there_is_room(one: PackedShard) -> None:
    items = one.items(pack_index.PACKED_ITEMS_KEPT_MAX)
    one.run(items[:MANY])
    one.run(items[MANY:])
    one.now_ms += 24 * limits.HOUR_MS
    assert not one.index.is_due(one.now_ms)
    assert not one.run(deletes=keys(items[:3])).promoted
    one.run(one.items(4))
    assert not one.index.is_due(one.now_ms)
    assert len(one.packed_keys()) == len(items) - 3


@pytest.mark.parametrize(
    ("limit", "value"),
    [("PACKS_OF_SHARD_BYTES_MAX", 4 * MANY * 250), ("PACKS_OF_SHARD_MAX", 5), ("PACKED_ITEMS_KEPT_MAX", 2 * MANY)],
)
def test_the_oldest_items_get_rows_while_packs_are_many(
    one: PackedShard, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(limits if hasattr(limits, limit) else pack_index, limit, value)
    first, second, third = [one.items(MANY) for _ in range(3)]
    one.run(first)
    one.run(second)
    one.now_ms += pack_index.PACK_MS_MAX
    assert not one.index.is_due(one.now_ms)
    one.run(third, deletes=keys(first[:1]))
    assert one.index.is_due(one.now_ms)
    while one.index.is_due(one.now_ms):
        one.run()
        one.now_ms += pack_index.PROMOTE_OLD_EVERY_MS
    assert one.packed_keys().isdisjoint(keys(first))
    assert one.packed_keys() >= set(keys(third))
    assert one.items_of_a_new_owner() == one.model


def test_young_items_stay_packed_however_many_there_are(one: PackedShard, crowded: None) -> None:
    one.run(one.items(MANY))
    one.now_ms += pack_index.PACK_MS_MAX - 1
    assert not one.index.is_due(one.now_ms)
    assert not one.run().promoted
    one.now_ms += 1
    assert one.index.is_due(one.now_ms)


def test_old_items_of_the_shards_with_the_most_get_rows_while_the_packs_of_their_host_are_many() -> None:
    budget = PackBudget(100_000)
    one, other = PackedShard(budget), PackedShard(budget)
    large, small = one.items(MANY, payload=b"x" * 2_900), other.items(MANY)
    one.run(large)
    other.run(small)
    one.now_ms += pack_index.PACK_MS_MAX
    other.now_ms += pack_index.PACK_MS_MAX
    assert budget.used_bytes > 50_000
    assert one.index.is_due(one.now_ms)
    assert not other.index.is_due(other.now_ms)
    one.run(deletes=keys(large))
    assert not one.index.is_due(one.now_ms)


def test_a_shard_without_old_packs_looks_at_no_other_shard() -> None:
    class OtherShard:
        looks_count = 0

        @property
        def stored_bytes(self) -> int:
            self.looks_count += 1
            return 0

    budget, other = PackBudget(100), OtherShard()
    budget.join(other)
    one = PackedShard(budget)
    assert not one.index.is_due(one.now_ms)
    one.run(one.items(MANY))
    looks_count = other.looks_count
    assert not one.index.is_due(one.now_ms)
    assert other.looks_count == looks_count
    assert one.index.is_due(one.now_ms + pack_index.PACK_MS_MAX)


@pytest.mark.parametrize(("limit", "value"), [("TOMBSTONES_KEPT_MAX", 2), ("TOMBSTONE_KEYS_KEPT_MAX", 3)])
def test_old_items_get_rows_whose_packs_keep_the_oldest_of_too_many_tombstones(
    one: PackedShard, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(pack_index, limit, value)
    whole, first, second = [one.items(MANY) for _ in range(3)]
    for items in (whole, first, second):
        one.run(items)
    one.run(deletes=keys(first[:1]))
    one.run(deletes=keys(second[:2]))
    one.now_ms += pack_index.PACK_MS_MAX
    assert not one.index.is_due(one.now_ms)
    one.run(deletes=keys(second[2:3]))
    assert one.index.is_due(one.now_ms)
    assert one.index.is_due(one.now_ms + limits.HOUR_MS)
    assert [row.key for row in one.run().promoted] == keys(first[1:])
    one.now_ms += pack_index.PROMOTE_OLD_EVERY_MS
    assert not one.index.is_due(one.now_ms)
    assert one.packed_keys() == set(keys([*whole, *second[3:]]))
    assert one.items_of_a_new_owner() == one.model


def test_what_is_left_of_an_old_pack_gets_rows(one: PackedShard, crowded: None) -> None:
    items = one.items(MANY)
    one.run(items)
    one.run(deletes=keys(items[:3]))
    one.now_ms += pack_index.PACK_MS_MAX
    one.run()
    assert not one.packed_keys()
    assert one.items_of_a_new_owner() == one.model
    assert not one.stored.packs
    assert not one.stored.tombstones
    assert not one.index.is_due(one.now_ms)


def test_old_items_get_rows_a_few_at_a_time_and_more_with_much_other_work(one: PackedShard, crowded: None) -> None:
    while len(one.index) < 20 * pack_index.PROMOTE_OLD_ITEMS:
        one.run(one.items(1_000))
    one.now_ms += pack_index.PACK_MS_MAX
    assert len(one.run().promoted) == pack_index.PROMOTE_OLD_ITEMS
    assert not one.index.is_due(one.now_ms)
    assert not one.run().promoted
    count = pack_index.PROMOTE_OLD_ITEMS * pack_index.PROMOTE_OLD_RATIO * 2
    assert len(one.run(inserts=one.items(count)).promoted) == count // pack_index.PROMOTE_OLD_RATIO
    gone = sorted(one.packed_keys())[-count:]
    assert len(one.run(deletes=gone).promoted) == count // pack_index.PROMOTE_OLD_RATIO
    one.now_ms += pack_index.PROMOTE_OLD_EVERY_MS
    assert one.index.is_due(one.now_ms)
    assert len(one.run().promoted) == pack_index.PROMOTE_OLD_ITEMS
    most = one.run(inserts=one.items(pack_index.PROMOTE_OLD_RATIO * (pack_index.PROMOTE_OLD_ITEMS_MAX + 1)))
    assert len(most.promoted) == pack_index.PROMOTE_OLD_ITEMS_MAX


def test_what_goes_gets_no_row_before_however_old_it_is(one: PackedShard, crowded: None) -> None:
    items = one.items(MANY)
    one.run(items)
    one.now_ms += pack_index.PACK_MS_MAX
    plan = one.run(deletes=keys(items))
    assert (plan.promoted, len(plan.packs_gone)) == ([], 1)


def test_after_a_failure_old_items_wait_so_that_acks_go_where_there_is_no_room_for_rows(
    one: PackedShard, crowded: None
) -> None:
    items = one.items(MANY)
    one.run(items)
    one.now_ms += pack_index.PACK_MS_MAX
    plan = one.plan(deletes=[items[0].key])
    assert len(plan.promoted) == MANY - 1
    one.index.fail(plan)
    assert not one.index.is_due(one.now_ms)
    one.now_ms += pack_index.PROMOTE_OLD_EVERY_MS
    assert not one.run(deletes=[items[0].key]).promoted
    assert len(one.run(deletes=[items[1].key]).promoted) == MANY - 2


def test_what_must_have_rows_gets_them_after_a_failure_too(one: PackedShard) -> None:
    items = one.items(MANY)
    one.run(items)
    rewrite = nack(one.model[items[0].key])
    one.index.fail(one.plan(rewrites=[rewrite]))
    assert len(one.run(rewrites=[rewrite]).promoted) == 1


# ---- what is read ----


def test_a_claim_reads_a_packed_item_from_memory(one: PackedShard) -> None:
    row, *packed = one.items(1), *one.items(MANY, payload=b"12345")
    one.run(packed, inserts=row)
    transaction = Transaction(0, fetches=[row[0], packed[3]])
    plan = one.index.plan(transaction)
    assert (plan.fetches, plan.rows_count) == (keys(row), 1)
    result = TransactionResult()
    add_packed(one.index, transaction, result)
    assert result.fetched == {packed[3].key: new_row(packed[3])}


def test_a_refill_finds_rows_and_packed_items_in_their_order(one: PackedShard) -> None:
    for priority in (3, -1, 2, 0):
        one.run(one.items(MANY, priority=priority), inserts=one.items(3, priority=priority))
    everything = in_order(one.model.values(), 1)
    edge = order.FIRST
    seen: list[int] = []
    while True:
        (found,) = one.read([Refill(1, edge, 7)]).refilled
        seen += [row[2] for row in found]
        if len(found) < 7:
            break
        edge = order.sort_key(*found[-1][:3], SHARD_ID)
    assert seen == [row.key for row in everything]


def test_a_refill_with_payloads_has_those_of_packed_items(one: PackedShard) -> None:
    items = one.items(MANY, payload=b"hello")
    one.run(items)
    result = one.read([Refill(1, order.FIRST, 5, with_payload=True)])
    contents = {key: row.content.payload for key, row in result.read_ahead.items()}
    assert contents == dict.fromkeys(keys(items[:5]), b"hello")


def test_a_look_up_finds_items_as_the_transaction_leaves_them(one: PackedShard) -> None:
    items = one.items(MANY, payload=b"hello")
    one.run(items)
    gone, nacked, kept, *_ = items
    new = one.items(MANY)
    transaction = one.transaction(
        new, deletes=[gone.key], rewrites=[nack(one.model[nacked.key])],
        look_ups=[gone.key, nacked.key, kept.key, new[0].key, 10**9], look_ups_with_payload=True,
    )  # fmt: skip
    plan = one.index.plan(transaction)
    one.commit(plan, transaction)
    result = TransactionResult(looked_up={})
    add_looked_up(one.index, transaction, result)
    assert result.looked_up == {kept.key: new_row(kept), new[0].key: new_row(new[0])}
    assert nacked.key in plan.look_ups
    transaction.look_ups_with_payload = False
    add_looked_up(one.index, transaction, result)
    assert result.looked_up[kept.key] == new_row(kept)._replace(content=NO_CONTENT)


def test_a_page_has_so_many_items_and_bytes_and_says_whether_there_are_more(one: PackedShard) -> None:
    items = one.items(10, payload=b"x" * 100)
    one.run(items)
    rows = list(map(new_row, items))
    assert one.index.page(1, order.FIRST, 3, 10_000) == (rows[:3], True)
    assert one.index.page(1, order.FIRST, 100, 250) == (rows[:2], True)
    assert one.index.page(1, order.FIRST, 100, 1) == (rows[:1], True)
    assert one.index.page(1, items[7].sort_key, 100, 10_000) == (rows[8:], False)
    on_another_shard = order.sort_key(rows[7].urgency, rows[7].due_at, rows[7].key, SHARD_ID - 1)
    assert one.index.page(1, on_another_shard, 100, 10_000) == (rows[8:], False)
    assert one.index.page(2, order.FIRST, 100, 10_000) == ([], False)
    assert one.index.page(-1, order.FIRST, 100, 10_000) == ([], False)


def test_expired_items_are_found_some_at_a_time_and_when_the_first_one_expires(one: PackedShard) -> None:
    early, late = one.items(MANY, life_ms=100), one.items(MANY, life_ms=300)
    start_ms = one.now_ms
    one.run([*early, *late])
    other = one.items(MANY, topic=2, life_ms=200)
    one.run(other)
    assert one.index.expired(start_ms + 99, 1_000) == ([], start_ms + 100)
    assert one.index.expired(start_ms + 100, 1_000) == (keys(early), start_ms + 100)
    one.run(deletes=keys(early))
    assert one.index.expired(start_ms + 150, 1_000) == ([], start_ms + 200)
    found, first_ms = one.index.expired(start_ms + 300, 1_000)
    assert (sorted(found), first_ms) == (keys([*late, *other]), start_ms + 200)
    one.run(deletes=keys([*late, *other]))
    assert one.index.expired(start_ms + 300, 1_000) == ([], limits.NEVER_MS)


def test_all_expired_items_are_found_in_turn_though_the_first_ones_stay(one: PackedShard) -> None:
    packs = [one.items(MANY, life_ms=100) for _ in range(3)]
    for items in packs:
        one.run(items)
    one.now_ms += 100
    found = [one.index.expired(one.now_ms, MANY)[0] for _ in range(4)]
    assert found == [keys(packs[0]), keys(packs[1]), keys(packs[2]), keys(packs[0])]
    one.run(deletes=keys(packs[1]))
    assert one.index.expired(one.now_ms, 1_000)[0] == keys([*packs[2], *packs[0]])


def test_reads_pass_over_few_items_that_have_left_their_packs(one: PackedShard) -> None:
    left = []
    for _ in range(5):
        items = one.items(MANY)
        left += items[-1:]
        one.run(items)
        assert len([*one.index.after(1, order.FIRST)]) == MANY + len(left) - 1
        one.run(deletes=keys(items[:-1]))
    assert [*one.index.after(1, order.FIRST)] == [item.sort_key for item in left]
    packed = one.packed_keys()
    assert sum([len(pack.sort_keys_of(1, packed)) for pack in one.index._packs.values()]) <= 2 * len(left)


def test_an_index_that_was_cleared_knows_nothing(one: PackedShard) -> None:
    items = one.items(MANY)
    one.run(items)
    one.run(deletes=keys(items[:1]))
    one.index.clear()
    assert len(one.index) == one.index.stored_bytes == 0
    assert one.index.rows(one.model) == {}
    assert list(one.index.after(1, order.FIRST)) == []
    assert one.plan(deletes=keys(items[1:])).deletes == keys(items[1:])


def test_a_page_that_was_packed_and_has_got_rows_meanwhile_shows_each_item_once(one: PackedShard) -> None:
    items = one.items(MANY)
    one.run(items)
    packed = one.index.page(1, order.FIRST, 10, 10_000)
    one.run(rewrites=[nack(one.model[key]) for key in keys(items[:5])], deletes=[])
    rows = in_order(one.rows.values(), 1)
    page, more = merged_pages(packed, (rows, False), 10, 10_000)
    assert [row.key for row in page] == keys(items[:10])
    assert [row.deliveries for row in page] == [1] * 5 + [0] * 5
    assert more
