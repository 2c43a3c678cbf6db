"""What contract tests need beside a store: a shard with its surroundings, and an owner that counts transactions."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from foqs.host.registry.slot_moves import Source
from foqs.model import order
from foqs.model.calls import ItemContent
from foqs.model.cluster import ShardIdentity
from foqs.model.errors import UnavailableError
from foqs.model.item import ShardItem
from foqs.model.shard_place import Tenure
from foqs.model.slots import SlotTable
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget
from foqs.shard.port import (
    ItemRow,
    OwnershipLostError,
    ShardImage,
    SlotArrival,
    Store,
    Transaction,
    TransactionResult,
)
from foqs.storage.shard.export_pages import Cell, ExportCriteria, KeyPage
from foqs.storage.shard.identity import ClusterId
from foqs.storage.shard.packs.pack_index import ExpiredPage, Page
from tests.support.cut_reads import Cut
from tests.support.waiting import PATIENCE_S

SHARD_ID = 3
LIFE_MS = 1_000_000


class Reader(Protocol):
    def page(self, lane: int, edge: int, limit: int) -> Callable[[], Page]: ...
    def expired_page(self, after_key: int, now_ms: int) -> Callable[[], ExpiredPage]: ...
    def export_page(
        self, criteria: ExportCriteria, is_of_namespace: Callable[[int], bool]
    ) -> Callable[[], KeyPage]: ...
    def sample_keys(self, to_key: int) -> Callable[[], list[Cell]]: ...
    def keep_slots(self, known: SlotTable) -> SlotTable: ...
    def read_arrival(self) -> SlotArrival | None: ...


class MetaId:
    """What the meta database, and the databases of other shards, have of the id of the cluster."""

    def __init__(self) -> None:
        self.id = b""
        self.told_by_shards = b""
        self.made_count = 0
        self.given_epoch = 0
        """The last epoch of the shard that the meta database has given."""
        self.is_away = False
        self.on_ask: Callable[[], None] = lambda: None
        """Called when a process asks for the id."""

    def as_seen(self) -> ClusterId:
        """The id as another process knows it, which has just started."""
        cluster = ClusterId(self._tell, self._make, lambda: self.told_by_shards, lambda _: self.given_epoch)
        cluster.read()
        return cluster

    def _tell(self, found: bytes) -> bytes:
        if self.is_away:
            raise UnavailableError("the meta database is away")
        self.on_ask()
        self.id = self.id or found
        return self.id

    def _make(self) -> bytes:
        self.made_count += 1
        return self._tell(b"made %d" % self.made_count)


class ContractShard(Protocol):
    """One shard, the hosts that want it, and what can happen to them."""

    meta: MetaId

    dead_owners: set[str]
    """Hosts that the meta database calls dead."""
    epochs: list[int]
    """Every epoch that was given out."""
    on_epoch: Callable[[], None] | None
    """Called when a store asks for an epoch."""

    def store(self, owner: str) -> Store:
        """A store of another host process; closed at the end of the test."""

    def reader(self, store: Store) -> AbstractContextManager[Reader]:
        """What reads beside this store."""

    def source(self) -> AbstractContextManager[Source]:
        """What reads the shard for another one that gets slots from it."""

    def cut(self, store: Store) -> None:
        """End the session that holds the shard, as a broken network or a KILL does."""

    def losing_answers(self, store: Store) -> AbstractContextManager[None]:
        """A transaction is committed, and its session is lost before the store hears of it."""

    def deadlock(self, key: int) -> AbstractContextManager[None]:
        """The next transaction, which is to change the item's row, is rolled back to resolve a deadlock."""

    def row_locked(self, store: Store, key: int) -> AbstractContextManager[None]:
        """Another session holds the item's row; one transaction waits for it, and not for long."""

    def cut_reads(self, rows_max: int, at: int | None = None) -> AbstractContextManager[Cut]:
        """Each read, or only that with this number, returns so many rows at most, and nothing says so."""

    def set_epoch(self, epoch: int) -> None:
        """Write another owner's epoch into the shard, past the present owner."""

    def set_identity(self, identity: ShardIdentity) -> None:
        """The database says this of itself from now on."""

    def identity(self) -> ShardIdentity | None:
        """What the database says of itself."""


class Owner:
    """Opened at once. `run` takes the parts of a transaction by name."""

    def __init__(self, shard: ContractShard, name: str = "host") -> None:
        self.store: Store = shard.store(name)
        self.image: ShardImage = opened(self.store)
        self.number = self.image.transaction_number

    def run(self, **parts: Any) -> TransactionResult:
        result = asyncio.run(self.store.run(Transaction(self.number + 1, **parts)))
        self.number += 1
        return result

    def look_up(self, *keys: int) -> dict[int, ItemRow]:
        return self.run(look_ups=list(keys), look_ups_with_payload=True).looked_up


def opened(store: Store, tenure: Tenure | None = None) -> ShardImage:
    """Open a shard that is free, or about to be: a server notices late that a session was closed."""
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return store.open(tenure)
        except OwnershipLostError as error:
            if "is owned by" not in str(error) or time.monotonic() > deadline_s:
                raise


def new_topic(number: int, name: str = "t", namespace: int = 1) -> ShardTopic:
    return ShardTopic(SHARD_ID, number, namespace, name, WindowBudget(), {}, stored=False)


def new_item(
    key: int,
    *,
    topic: ShardTopic | None = None,
    priority: int = 0,
    due_at: int = 1_000,
    enqueued_at: int | None = None,
    payload: bytes = b"p",
    metadata: bytes = b"",
    trace_context: bytes = b"",
) -> ShardItem:
    """An item that is ready at once, unless `enqueued_at` is before `due_at`."""
    sort_key, content = order.sort_key(priority, due_at, key, SHARD_ID), ItemContent(payload, metadata, trace_context)
    item = ShardItem(key, topic or new_topic(1), priority, due_at, sort_key, content=content)
    item.enqueued_at = due_at if enqueued_at is None else enqueued_at
    item.expires_at = due_at + LIFE_MS
    return item


def sort_key_of(row: tuple[int, int, int, int, int]) -> int:
    """The edge after a row of a refill."""
    return order.sort_key(row[0], row[1], row[2], SHARD_ID)
