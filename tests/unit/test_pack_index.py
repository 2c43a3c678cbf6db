"""What is packed, what leaves its pack in which way, and what is read of both: against a dictionary of all items."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import pytest

from foqs.model import limits, order
from foqs.model.item import Item
from foqs.shard.port import ItemRow, Refill, Rewrite, Transaction, TransactionResult
from foqs.storage.packing import unpack_items
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.index import PackIndex
from foqs.storage.packs.merging import add_looked_up, add_packed, merged_pages
from foqs.storage.packs.pack import PackPlan
from tests.contract.owner import SHARD_ID, new_item, new_topic

FEW = limits.PACK_ITEMS_MIN - 1
MANY = 2 * limits.PACK_ITEMS_MIN
TOPICS = {number: new_topic(number, f"t{number}") for number in range(1, 6)}


def row_of(item: Item) -> ItemRow:
    number = item.topic.number
    is_delayed = item.due_at > item.enqueued_at
    return ItemRow(
        item.key, 0 if is_delayed else number, 0 if is_delayed else item.priority, item.due_at, number, item.priority,
        item.enqueued_at, item.expires_at, item.lease_ms, item.at_most_once, 0, 0, None, item.metadata,
        item.payload or b"",
    )  # fmt: skip


def rewritten(row: ItemRow, rewrite: Rewrite) -> ItemRow:
    sort_key = {"lane": rewrite.lane, "urgency": rewrite.urgency, "due_at": rewrite.due_at}
    counts = {"deliveries": rewrite.deliveries, "failed_attempts": rewrite.failed_attempts}
    return replace(row, **sort_key, **counts)


def place(row: ItemRow) -> tuple[int, int, int]:
    return row.urgency, row.due_at, row.key


def in_order(rows: Iterable[ItemRow], lane: int, edge: int = order.FIRST) -> list[ItemRow]:
    """Those of a lane after an edge."""
    found = [row for row in rows if row.lane == lane and sort_key(row) > order.on_last_shard(edge)]
    return sorted(found, key=place)


def sort_key(row: ItemRow) -> int:
    return order.sort_key(row.urgency, row.due_at, row.key, SHARD_ID)


@dataclass
class Stored:
    """The tables below the index, where a statement on rows finds rows alone."""

    rows: dict[int, ItemRow] = field(default_factory=dict)
    packs: dict[int, bytes] = field(default_factory=dict)
    tombstones: dict[int, list[int]] = field(default_factory=dict)

    def write(self, plan: PackPlan, transaction: Transaction) -> None:
        for row in [*map(row_of, plan.inserts), *plan.promoted]:
            assert row.key not in self.rows, "a key is inserted twice"
            self.rows[row.key] = row
        for pack in plan.packs_new:
            assert pack.id not in self.packs
            assert pack.id > max(self.packs, default=0)
            self.packs[pack.id] = pack.contents
        if plan.tombstone is not None:
            assert plan.tombstone.id > max(self.tombstones, default=0)
            self.tombstones[plan.tombstone.id] = plan.tombstone.keys
        for rewrite in transaction.rewrites:
            self.rows[rewrite.key] = rewritten(self.rows[rewrite.key], rewrite)
        for key in transaction.wakes:
            row = self.rows[key]
            self.rows[key] = replace(row, lane=row.topic, urgency=row.priority)
        for key in plan.deletes:
            del self.rows[key]
        for pack_id in plan.packs_gone:
            del self.packs[pack_id]
        for tombstone_id in plan.tombstones_gone:
            del self.tombstones[tombstone_id]

    def packed(self) -> Iterator[ItemRow]:
        """What a new owner finds in packs."""
        gone = {key for keys in self.tombstones.values() for key in keys}
        for contents in self.packs.values():
            yield from [row for row in unpack_items(contents) if row.key not in gone]

    def items(self) -> dict[int, ItemRow]:
        packed = {row.key: row for row in self.packed()}
        assert self.rows.keys().isdisjoint(packed), "an item is in a row and in a pack"
        return self.rows | packed


class Shard:
    """An index, the tables below it, and `model`, which is all that is to be in them."""

    def __init__(self, budget: PackBudget | None = None) -> None:
        self.index = PackIndex(budget or PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
        self.stored = Stored()
        self.model: dict[int, ItemRow] = {}
        self.number = 0
        self.now_ms = 1_000
        self.key = 0

    def items(
        self, count: int, *, topic: int = 1, priority: int = 0, payload: bytes = b"p", life_ms: int = 10**6
    ) -> list[Item]:
        made = []
        for _ in range(count):
            self.key += 1
            item = new_item(self.key, topic=TOPICS[topic], priority=priority, due_at=self.now_ms, payload=payload)
            item.expires_at = self.now_ms + life_ms
            item.size_bytes = len(payload)
            made.append(item)
        return made

    def transaction(self, young: Iterable[Item] = (), **parts: object) -> Transaction:
        self.number += 1
        transaction = Transaction(self.number, inserts_short_lived=list(young), **parts)  # type: ignore[arg-type]
        transaction.steady_ms = self.now_ms
        return transaction

    def plan(self, young: Iterable[Item] = (), **parts: object) -> PackPlan:
        return self.index.plan(self.transaction(young, **parts))

    def run(self, young: Iterable[Item] = (), **parts: object) -> PackPlan:
        transaction = self.transaction(young, **parts)
        plan = self.index.plan(transaction)
        self.commit(plan, transaction)
        return plan

    def commit(self, plan: PackPlan, transaction: Transaction) -> None:
        self.stored.write(plan, transaction)
        self.index.commit(plan)
        model = self.model
        for item in [*transaction.inserts, *transaction.inserts_short_lived]:
            model[item.key] = row_of(item)
        for rewrite in transaction.rewrites:
            model[rewrite.key] = rewritten(model[rewrite.key], rewrite)
        for key in transaction.wakes:
            model[key] = replace(model[key], lane=model[key].topic, urgency=model[key].priority)
        for key in transaction.deletes:
            del model[key]

    def read(self, refills: list[Refill]) -> TransactionResult:
        """What the tables say, completed by the index."""
        result = TransactionResult()
        for refill in refills:
            found = in_order(self.stored.rows.values(), refill.lane, refill.edge)[: refill.limit]
            result.refilled.append([(*place(row), 0, 0) for row in found])
        add_packed(self.index, Transaction(0, refills=refills), result)
        return result

    def packed_keys(self) -> set[int]:
        keys = {row.key for row in self.stored.packed()}
        assert len(self.index) == len(keys)
        assert self.index.rows(self.model).keys() == keys
        return keys


def keys(items: Iterable[Item]) -> list[int]:
    return [item.key for item in items]


def nack(row: ItemRow, *, delay_ms: int = 0) -> Rewrite:
    counts = (row.deliveries + 1, row.failed_attempts + 1)
    if delay_ms:
        return Rewrite(row.key, 0, 0, row.due_at + delay_ms, *counts)
    return Rewrite(row.key, row.topic, row.priority, row.due_at, *counts, is_in_place=True)


@pytest.fixture
def one() -> Shard:
    return Shard()


# ---- what is packed ----


def test_items_that_come_together_have_one_pack_and_few_have_rows(one: Shard) -> None:
    few = one.items(FEW)
    assert one.run(few).inserts == few
    many = one.items(MANY)
    plan = one.run(many)
    assert (list(plan.inserts), len(plan.packs_new), plan.rows_count) == ([], 1, 0)
    assert one.packed_keys() == set(keys(many))


def test_large_and_delayed_items_get_rows_and_so_does_what_is_not_called_short_lived(one: Shard) -> None:
    small, lasting = one.items(MANY), one.items(MANY)
    large = one.items(MANY, payload=b"x" * limits.PACK_ITEM_BYTES_MAX)
    delayed = one.items(MANY)
    for item in delayed:
        item.due_at += 1
    plan = one.run([*large, *small, *delayed], inserts=lasting)
    assert keys(plan.inserts) == keys([*lasting, *large, *delayed])
    assert one.packed_keys() == set(keys(small))


def test_too_few_small_ones_among_large_ones_get_rows_too(one: Shard) -> None:
    large = one.items(MANY, payload=b"x" * limits.PACK_ITEM_BYTES_MAX)
    few = one.items(FEW)
    assert keys(one.run([*large, *few]).inserts) == keys([*large, *few])


def test_a_pack_has_no_more_than_its_bytes_and_one_item(one: Shard) -> None:
    payload = b"x" * (limits.PACK_ITEM_BYTES_MAX // 2)
    items = one.items(3 * limits.PACK_BYTES_MAX // len(payload), payload=payload)
    packs = one.run(items).packs_new
    assert [key for pack in packs for key in pack.keys] == keys(items)
    assert len(packs) >= 3
    for pack in packs:
        assert pack.size_bytes <= limits.PACK_BYTES_MAX + limits.PACK_ITEM_BYTES_MAX


def test_items_that_are_as_urgent_share_packs(one: Shard) -> None:
    payload = b"x" * (limits.PACK_ITEM_BYTES_MAX // 2)
    count = 2 * limits.PACK_BYTES_MAX // len(payload)
    given = [one.items(1, priority=priority, payload=payload)[0] for priority in (1, -1) * count]
    packs = one.run(given).packs_new
    urgencies = [{order.urgency_of(at) for at in pack.sort_keys} for pack in packs]
    assert urgencies.count({-1}) >= 1
    assert urgencies.count({1}) >= 1
    assert urgencies.count({-1, 1}) <= 1, "there may be one where they meet"


@pytest.mark.parametrize(("limit", "value"), [("PACKS_OF_SHARD_BYTES_MAX", 500), ("PACKS_OF_SHARD_MAX", 1)])
def test_items_get_rows_while_the_packs_of_a_shard_are_full(
    one: Shard, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(limits, limit, value)
    first, second, third = one.items(MANY), one.items(MANY), one.items(MANY)
    one.run(first)
    assert one.run(second).inserts == second
    one.run(deletes=keys(first))
    one.run(third)
    assert one.packed_keys() == set(keys(third))
    assert one.index.stored_bytes > 0


def test_a_shard_may_use_what_the_others_of_its_host_have_left(one: Shard) -> None:
    budget = PackBudget(1_000)
    one, other = Shard(budget), Shard(budget)
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


def test_what_is_deleted_leaves_by_a_tombstone_and_the_last_of_it_with_its_pack(one: Shard) -> None:
    row, *packed = one.items(1), *one.items(MANY)
    one.run(packed, inserts=row)
    plan = one.run(deletes=keys([*row, *packed[:3]]))
    assert plan.deletes == keys(row)
    assert plan.tombstone is not None
    assert (plan.tombstone.keys, plan.packs_gone, plan.rows_count) == (keys(packed[:3]), [], 1)
    assert one.packed_keys() == set(keys(packed[3:]))
    plan = one.run(deletes=keys(packed[3:]))
    assert (plan.tombstone, len(plan.packs_gone), len(plan.tombstones_gone)) == (None, 1, 1)
    assert one.stored == Stored()
    assert one.index.stored_bytes == 0


def test_a_tombstone_goes_once_no_older_pack_is_there(one: Shard) -> None:
    first, second = one.items(MANY), one.items(MANY)
    one.run(first)
    one.run(second, deletes=keys(first[:3]))
    plan = one.run(deletes=keys(second[:3]))
    assert plan.tombstones_gone == []
    plan = one.run(deletes=keys(first[3:]))
    assert len(plan.tombstones_gone) == 1
    assert len(one.stored.tombstones) == 1
    assert one.packed_keys() == set(keys(second[3:]))


def test_a_rewritten_item_gets_its_row_first(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    rewrites = [nack(one.model[items[0].key]), nack(one.model[items[1].key], delay_ms=500)]
    plan = one.run(rewrites=rewrites)
    assert plan.promoted == list(map(row_of, items[:2]))
    assert plan.rows_count == 4
    assert one.packed_keys() == set(keys(items[2:]))
    assert one.stored.items() == one.model


def test_a_failed_transaction_changes_nothing_and_may_be_run_again_by_its_plan(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    transaction = one.transaction(one.items(MANY), deletes=keys(items[:3]), rewrites=[nack(one.model[items[4].key])])
    plan = one.index.plan(transaction)
    one.index.fail(plan)
    assert one.packed_keys() == set(keys(items))
    one.commit(plan, transaction)
    assert one.stored.items() == one.model
    assert len(one.packed_keys()) == 2 * MANY - 4


# ---- what is old ----


def test_what_is_left_of_an_old_pack_gets_rows(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    one.run(deletes=keys(items[:3]))
    one.now_ms += limits.PACK_MS_MAX - 1
    assert not one.index.is_due(one.now_ms)
    assert not one.run().promoted
    one.now_ms += 1
    assert one.index.is_due(one.now_ms)
    one.run()
    assert not one.packed_keys()
    assert one.stored.items() == one.model
    assert not one.index.is_due(one.now_ms)


def test_old_items_get_rows_a_few_at_a_time_and_more_with_much_other_work(one: Shard) -> None:
    while len(one.index) < 20 * limits.UNPACK_OLD_ITEMS:
        one.run(one.items(1_000))
    one.now_ms += limits.PACK_MS_MAX
    assert len(one.run().promoted) == limits.UNPACK_OLD_ITEMS
    assert not one.index.is_due(one.now_ms)
    assert not one.run().promoted
    count = limits.UNPACK_OLD_ITEMS * limits.UNPACK_OLD_RATIO * 2
    assert len(one.run(inserts=one.items(count)).promoted) == count // limits.UNPACK_OLD_RATIO
    gone = sorted(one.packed_keys())[-count:]
    assert len(one.run(deletes=gone).promoted) == count // limits.UNPACK_OLD_RATIO
    one.now_ms += limits.UNPACK_OLD_EVERY_MS
    assert one.index.is_due(one.now_ms)
    assert len(one.run().promoted) == limits.UNPACK_OLD_ITEMS
    most = one.run(inserts=one.items(limits.UNPACK_OLD_RATIO * (limits.PROMOTED_ITEMS_MAX + 1)))
    assert len(most.promoted) == limits.PROMOTED_ITEMS_MAX


def test_what_goes_gets_no_row_before_however_old_it_is(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    one.now_ms += limits.PACK_MS_MAX
    plan = one.run(deletes=keys(items))
    assert (plan.promoted, len(plan.packs_gone)) == ([], 1)


def test_after_a_failure_old_items_wait_so_that_acks_go_where_there_is_no_room_for_rows(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    one.now_ms += limits.PACK_MS_MAX
    plan = one.plan(deletes=[items[0].key])
    assert len(plan.promoted) == MANY - 1
    one.index.fail(plan)
    assert not one.index.is_due(one.now_ms)
    one.now_ms += limits.UNPACK_OLD_EVERY_MS
    assert not one.run(deletes=[items[0].key]).promoted
    assert len(one.run(deletes=[items[1].key]).promoted) == MANY - 2


def test_what_must_have_rows_gets_them_after_a_failure_too(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    rewrite = nack(one.model[items[0].key])
    one.index.fail(one.plan(rewrites=[rewrite]))
    assert len(one.run(rewrites=[rewrite]).promoted) == 1


# ---- what is read ----


def test_a_claim_reads_a_packed_item_from_memory(one: Shard) -> None:
    row, *packed = one.items(1), *one.items(MANY, payload=b"12345")
    one.run(packed, inserts=row)
    transaction = Transaction(0, fetches=[row[0], packed[3]])
    plan = one.index.plan(transaction)
    assert (plan.fetches, plan.rows_count) == (keys(row), 1)
    result = TransactionResult()
    add_packed(one.index, transaction, result)
    assert result.fetched == {packed[3].key: row_of(packed[3])}


def test_a_refill_finds_rows_and_packed_items_in_their_order(one: Shard) -> None:
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


def test_a_refill_with_payloads_has_those_of_packed_items(one: Shard) -> None:
    items = one.items(MANY, payload=b"hello")
    one.run(items)
    result = one.read([Refill(1, order.FIRST, 5, with_payload=True)])
    assert {key: row.payload for key, row in result.read_ahead.items()} == dict.fromkeys(keys(items[:5]), b"hello")


def test_a_look_up_finds_items_as_the_transaction_leaves_them(one: Shard) -> None:
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
    assert result.looked_up == {kept.key: row_of(kept), new[0].key: row_of(new[0])}
    assert nacked.key in plan.look_ups
    transaction.look_ups_with_payload = False
    add_looked_up(one.index, transaction, result)
    assert result.looked_up[kept.key] == replace(row_of(kept), payload=b"")


def test_a_page_has_so_many_items_and_bytes_and_says_whether_there_are_more(one: Shard) -> None:
    items = one.items(10, payload=b"x" * 100)
    one.run(items)
    rows = list(map(row_of, items))
    assert one.index.page(1, order.FIRST, 3, 10_000) == (rows[:3], True)
    assert one.index.page(1, order.FIRST, 100, 250) == (rows[:2], True)
    assert one.index.page(1, order.FIRST, 100, 1) == (rows[:1], True)
    assert one.index.page(1, items[7].sort_key, 100, 10_000) == (rows[8:], False)
    on_another_shard = order.sort_key(rows[7].urgency, rows[7].due_at, rows[7].key, SHARD_ID - 1)
    assert one.index.page(1, on_another_shard, 100, 10_000) == (rows[8:], False)
    assert one.index.page(2, order.FIRST, 100, 10_000) == ([], False)
    assert one.index.page(-1, order.FIRST, 100, 10_000) == ([], False)


def test_expired_items_are_found_some_at_a_time_and_when_the_next_one_expires(one: Shard) -> None:
    early, late = one.items(MANY, life_ms=100), one.items(MANY, life_ms=300)
    start_ms = one.now_ms
    one.run([*early, *late])
    other = one.items(MANY, topic=2, life_ms=200)
    one.run(other)
    assert one.index.expired(start_ms + 99, 1_000) == ([], start_ms + 100)
    assert one.index.expired(start_ms + 100, 1_000) == (keys(early), start_ms + 200)
    assert one.index.expired(start_ms + 100, 3) == (keys(early[:3]), start_ms + 100)
    one.run(deletes=keys(early))
    assert one.index.expired(start_ms + 150, 1_000) == ([], start_ms + 200)
    assert one.index.expired(start_ms + 300, 1_000) == (keys([*late, *other]), limits.NEVER_MS)


def test_an_index_that_was_cleared_knows_nothing(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    one.run(deletes=keys(items[:1]))
    one.index.clear()
    assert len(one.index) == one.index.stored_bytes == 0
    assert one.index.rows(one.model) == {}
    assert list(one.index.after(1, order.FIRST)) == []
    assert one.plan(deletes=keys(items[1:])).deletes == keys(items[1:])


# ---- all of it, by chance ----


def pages_agree(shard: Shard, chance: random.Random, topic: int) -> None:
    """A walk through all pages of a topic gives its items, each once."""
    limit, bytes_max = chance.choice([1, 3, 10, 100]), chance.choice([1, 50, 10_000])
    edge, seen, more = order.FIRST, [], True
    while more:
        packed = shard.index.page(topic, edge, limit, bytes_max)
        found = in_order(shard.stored.rows.values(), topic, edge)
        rows = list(islice(found, chance.randrange(1, limit + 1)))
        page, more = merged_pages(packed, (rows, len(rows) < len(found)), limit, bytes_max)
        assert page or not more, "a page without items leads nowhere"
        assert len(page) <= limit
        assert len(page) <= 1 or sum([len(row.payload) for row in page]) <= bytes_max
        seen += page
        if page:
            edge = sort_key(page[-1])
    assert seen == in_order(shard.model.values(), topic)


def some_items(shard: Shard, chance: random.Random) -> list[Item]:
    items: list[Item] = []
    for _ in range(chance.choice([0, 0, 1, 5, 30])):
        shard.now_ms += chance.randrange(3)
        payload = bytes(chance.choice([0, 1, 30, 200]))
        items += shard.items(
            1, topic=chance.randrange(1, 6), priority=chance.randrange(-1, 2), payload=payload,
            life_ms=chance.choice([5, 500, 10**6]),
        )  # fmt: skip
        if chance.random() < 0.1:
            items[-1].due_at += 1
    return items


def some_transaction(shard: Shard, chance: random.Random) -> Transaction:
    ready = [row for row in shard.model.values() if row.lane > 0]
    chance.shuffle(ready)
    delayed = [row.key for row in shard.model.values() if row.lane == 0]
    deleted_count = chance.choice([0, 0, 2, 20, len(ready) // 2])
    deleted, others = ready[:deleted_count], ready[deleted_count:]
    nacked = others[: chance.choice([0, 0, 1, 5])]
    young, lasting = some_items(shard, chance), some_items(shard, chance)
    named = [row.key for row in ready[:3] + others[-3:]] + keys(young[:2]) + [0]
    return shard.transaction(
        young,
        inserts=lasting,
        deletes=[row.key for row in deleted],
        rewrites=[nack(row, delay_ms=chance.choice([0, 0, 100])) for row in nacked],
        wakes=delayed[: chance.choice([0, 3])],
        look_ups=named,
        look_ups_with_payload=True,
        refills=[
            Refill(topic, chance.choice([order.FIRST, *map(sort_key, others[:2])]), chance.choice([1, 4, 50]),
                   with_payload=chance.random() < 0.5)
            for topic in chance.sample(range(1, 6), chance.randrange(3))
        ],
    )  # fmt: skip


def check_reads(shard: Shard, transaction: Transaction) -> None:
    result = shard.read(transaction.refills)
    for refill, found in zip(transaction.refills, result.refilled, strict=True):
        expected = in_order(shard.model.values(), refill.lane, refill.edge)[: refill.limit]
        assert [row[:3] for row in found] == list(map(place, expected))
        if refill.with_payload:
            packed = shard.packed_keys()
            assert {row.key for row in expected if row.key in packed} <= result.read_ahead.keys()


def check_look_ups(shard: Shard, transaction: Transaction, plan: PackPlan) -> None:
    found = {key: shard.stored.rows[key] for key in plan.look_ups if key in shard.stored.rows}
    result = TransactionResult(looked_up=found)
    add_looked_up(shard.index, transaction, result)
    assert result.looked_up == {key: shard.model[key] for key in transaction.look_ups if key in shard.model}


def check_expired(shard: Shard) -> None:
    packed = [shard.model[key] for key in shard.packed_keys()]
    expired, first_ms = shard.index.expired(shard.now_ms, 1_000)
    assert sorted(expired) == sorted(row.key for row in packed if row.expires_at <= shard.now_ms)
    ends = [row.expires_at for row in packed if row.expires_at > shard.now_ms]
    assert shard.now_ms < first_ms <= min(ends, default=limits.NEVER_MS)


SIZES = {
    "PACK_ITEMS_MIN": [1, 2, 8],
    "PACK_BYTES_MAX": [300, 3_000, 64 * limits.KIB],
    "PACK_ITEM_BYTES_MAX": [260, 4 * limits.KIB],
    "PACK_MS_MAX": [20, 300],
    "PACKS_OF_SHARD_BYTES_MAX": [3_000, 16 * limits.MIB],
    "PACKS_OF_SHARD_MAX": [3, 4_000],
    "PROMOTED_ITEMS_MAX": [1, 5, 500],
    "UNPACK_OLD_ITEMS": [1, 10],
    "UNPACK_OLD_EVERY_MS": [5, 50],
    "UNPACK_OLD_RATIO": [1, 4],
}


@pytest.mark.parametrize("seed", range(40))
def test_items_are_in_a_row_or_in_a_pack_and_are_read_as_if_all_had_rows(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    for limit, values in SIZES.items():
        monkeypatch.setattr(limits, limit, chance.choice(values))
    shard = Shard()
    for _ in range(150):
        shard.now_ms += chance.randrange(10)
        transaction = some_transaction(shard, chance)
        check_reads(shard, transaction)
        plan = shard.index.plan(transaction)
        while chance.random() < 0.2:
            shard.index.fail(plan)
            plan = chance.choice([plan, shard.index.plan(transaction)])
        if chance.random() < 0.1:
            shard.index.fail(plan)
            continue
        shard.commit(plan, transaction)
        assert shard.stored.items() == shard.model
        assert shard.index.stored_bytes == sum(pack.size_bytes for pack in shard.index._packs.values())
        check_look_ups(shard, transaction, plan)
        check_expired(shard)
        pages_agree(shard, chance, chance.randrange(1, 6))
    shard.run(deletes=list(shard.model))
    assert (shard.stored.rows, shard.stored.packs, len(shard.index)) == ({}, {}, 0)
    shard.run()
    assert shard.stored == Stored()
    assert not shard.index._of_topic


def test_a_page_that_was_packed_and_has_got_rows_meanwhile_shows_each_item_once(one: Shard) -> None:
    items = one.items(MANY)
    one.run(items)
    packed = one.index.page(1, order.FIRST, 10, 10_000)
    one.run(rewrites=[nack(one.model[key]) for key in keys(items[:5])], deletes=[])
    rows = in_order(one.stored.rows.values(), 1)
    page, more = merged_pages(packed, (rows, False), 10, 10_000)
    assert [row.key for row in page] == keys(items[:10])
    assert [row.deliveries for row in page] == [1] * 5 + [0] * 5
    assert more
