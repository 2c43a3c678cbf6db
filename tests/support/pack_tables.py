"""The tables below an index of packs as dictionaries, and beside them all items, which is what they must hold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from foqs.model import limits, order
from foqs.model.calls import NO_CONTENT
from foqs.model.item import ShardItem
from foqs.shard.port import ItemRow, Refill, Rewrite, Transaction, TransactionResult
from foqs.storage.formats import unpack_items
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.index import PackIndex
from foqs.storage.packs.merging import add_packed
from foqs.storage.packs.pack import PackPlan
from tests.contract.owner import SHARD_ID, new_item, new_topic

FEW = limits.PACK_ITEMS_MIN - 1
"""Too few to be packed."""
MANY = 2 * limits.PACK_ITEMS_MIN
TOPICS = {number: new_topic(number, f"t{number}") for number in range(1, 6)}


def row_of(item: ShardItem) -> ItemRow:
    number = item.topic.number
    is_delayed = item.due_at > item.enqueued_at
    return ItemRow(
        item.key, 0 if is_delayed else number, 0 if is_delayed else item.priority, item.due_at, number, item.priority,
        item.enqueued_at, item.expires_at, item.lease_ms, item.at_most_once, 0, 0, None,
        item.content or NO_CONTENT,
    )  # fmt: skip


def rewritten(row: ItemRow, rewrite: Rewrite) -> ItemRow:
    sort_key = {"lane": rewrite.lane, "urgency": rewrite.urgency, "due_at": rewrite.due_at}
    counts = {"deliveries": rewrite.deliveries, "failed_attempts": rewrite.failed_attempts}
    return row._replace(**sort_key, **counts)


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
        for rewrite in plan.rewrites:
            self.rows[rewrite.key] = rewritten(self.rows[rewrite.key], rewrite)
        for key in transaction.wakes:
            row = self.rows[key]
            self.rows[key] = row._replace(lane=row.topic, urgency=row.priority)
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
    ) -> list[ShardItem]:
        made = []
        for _ in range(count):
            self.key += 1
            item = new_item(self.key, topic=TOPICS[topic], priority=priority, due_at=self.now_ms, payload=payload)
            item.expires_at = self.now_ms + life_ms
            made.append(item)
        return made

    def transaction(self, young: Iterable[ShardItem] = (), **parts: object) -> Transaction:
        self.number += 1
        transaction = Transaction(self.number, inserts_short_lived=list(young), **parts)  # type: ignore[arg-type]
        transaction.steady_ms = self.now_ms
        return transaction

    def plan(self, young: Iterable[ShardItem] = (), **parts: object) -> PackPlan:
        return self.index.plan(self.transaction(young, **parts))

    def run(self, young: Iterable[ShardItem] = (), **parts: object) -> PackPlan:
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
            model[key] = model[key]._replace(lane=model[key].topic, urgency=model[key].priority)
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


def keys(items: Iterable[ShardItem]) -> list[int]:
    return [item.key for item in items]


def nack(row: ItemRow, *, delay_ms: int = 0) -> Rewrite:
    counts = (row.deliveries + 1, row.failed_attempts + 1)
    if delay_ms:
        return Rewrite(row.key, 0, 0, row.due_at + delay_ms, *counts)
    return Rewrite(row.key, row.topic, row.priority, row.due_at, *counts, is_in_place=True)
