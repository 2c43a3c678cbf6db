"""An index of packs on a fake server, and beside it all items, which is what both together must hold."""

from __future__ import annotations

from collections.abc import Iterable

from foqs.model import limits, order
from foqs.model.item import ShardItem
from foqs.shard.port import ItemRow, Refill, Rewrite, Transaction, TransactionResult
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack import PackPlan
from foqs.storage.shard.packs.pack_index import PackIndex, add_packed
from foqs.testing.fake_server import FakeServer, make_script
from foqs.testing.fake_tables import Tables
from tests.contract.owner import SHARD_ID, new_item, new_topic

FEW = pack_index.PACK_ITEMS_MIN - 1
"""Too few to be packed."""
MANY = 2 * pack_index.PACK_ITEMS_MIN
TOPICS = {number: new_topic(number, f"t{number}") for number in range(1, 6)}


def place(row: ItemRow) -> tuple[int, int, int]:
    return row.urgency, row.due_at, row.key


def in_order(rows: Iterable[ItemRow], lane: int, edge: int = order.FIRST) -> list[ItemRow]:
    """Those of a lane after an edge."""
    found = [row for row in rows if row.lane == lane and sort_key(row) > order.on_last_shard(edge)]
    return sorted(found, key=place)


def sort_key(row: ItemRow) -> int:
    return order.sort_key(row.urgency, row.due_at, row.key, SHARD_ID)


class PackedShard:
    """An index and the tables below it; beside them `model`: what is to be in them, as if all items had rows."""

    def __init__(self, budget: PackBudget | None = None) -> None:
        self.index = PackIndex(budget or PackBudget(limits.PACKS_OF_HOST_BYTES_MAX))
        self._server = FakeServer(SHARD_ID, lambda: 0, strict=True)
        self._model = FakeServer(SHARD_ID, lambda: 0)
        self.number = 0
        self.now_ms = 1_000
        self.key = 0

    @property
    def model(self) -> dict[int, ItemRow]:
        return self._model.tables.items

    @property
    def stored(self) -> Tables:
        return self._server.tables

    @property
    def rows(self) -> dict[int, ItemRow]:
        """What a statement on item rows finds."""
        tables = self.stored
        return {key: row for key, row in tables.items.items() if key not in tables.packed}

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
        packs, tombstones = self.stored.packs, self.stored.tombstones
        assert all(pack.id > max(packs, default=0) for pack in plan.packs_new)
        assert plan.tombstone is None or plan.tombstone.id > max(tombstones, default=0)
        self._server.commit(make_script(transaction, plan, TransactionResult(), 0))
        self.index.commit(plan)
        inserts = [*transaction.inserts, *transaction.inserts_short_lived]
        unpacked = PackPlan(transaction, inserts=inserts, rewrites=transaction.rewrites, deletes=transaction.deletes)
        self._model.commit(make_script(transaction, unpacked, TransactionResult(), 0))

    def read(self, refills: list[Refill]) -> TransactionResult:
        """What the tables say, completed by the index."""
        transaction = Transaction(0, refills=refills)
        result = self._server.read(transaction, PackPlan(transaction))
        add_packed(self.index, transaction, result)
        return result

    def items_of_a_new_owner(self) -> dict[int, ItemRow]:
        """What can be read of the tables without the index."""
        packed = {row.key: row for row in self.stored.left_in_packs()}
        assert self.rows.keys().isdisjoint(packed), "an item is in a row and in a pack"
        return self.rows | packed

    def packed_keys(self) -> set[int]:
        keys = {row.key for row in self.stored.left_in_packs()}
        assert len(self.index) == len(keys)
        assert self.index.rows(self.model).keys() == keys
        return keys


def is_empty(tables: Tables) -> bool:
    return not (tables.items or tables.packs or tables.tombstones or tables.packed)


def keys(items: Iterable[ShardItem]) -> list[int]:
    return [item.key for item in items]


def nack(row: ItemRow, *, delay_ms: int = 0) -> Rewrite:
    counts = (row.deliveries + 1, row.failed_attempts + 1)
    if delay_ms:
        return Rewrite(row.key, 0, 0, row.due_at + delay_ms, *counts)
    return Rewrite(row.key, row.topic, row.priority, row.due_at, *counts, is_in_place=True)
