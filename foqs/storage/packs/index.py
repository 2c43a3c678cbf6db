"""Which items of a shard are packed, and what its transactions do to packs.

A pack is a row that holds many young items, because most items are gone soon after they came. An item that outlives
that, or changes, is promoted: it gets a row of its own (after the generations of a garbage collector: Lieberman and
Hewitt, A real-time garbage collector based on the lifetimes of objects, 1983). The contents of all packs are in memory,
so no pack is read back, and who reads items in order gets packed ones and rows in one order (after O'Neil et al., The
log-structured merge-tree, 1996).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import islice
from operator import attrgetter, itemgetter
from typing import NamedTuple

from foqs.model import limits, order
from foqs.model.calls import NO_CONTENT, ItemState
from foqs.model.item import ShardItem
from foqs.shard.port import FetchedRow, ItemRow, Refill, Rewrite, Transaction, TransactionResult
from foqs.storage.exports import Cell, ExportWish, KeyPage, without_contents
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.pack import Pack, PackPlan, Tombstone, rewritten

PACK_ITEMS_MIN = 8
"""The fewest items of a transaction for which a pack pays."""
PACK_BYTES_MAX = 64 * limits.KIB
"""The size at which a pack is full. One more item may be in it."""
PACK_ITEM_BYTES_MAX = 4 * limits.KIB
"""The largest item that is packed."""
PACK_MS_MAX = 10 * limits.SECOND_MS
"""The age at which the items that are left in a pack are promoted to rows, a few at a time."""
PROMOTE_OLD_ITEMS = 100
"""Old items that are promoted every PROMOTE_OLD_EVERY_MS, while there is nothing else to do."""
PROMOTE_OLD_EVERY_MS = 200
"""The pause between two such promotions."""
PROMOTE_OLD_RATIO = 4
"""One old item is promoted for this many items that the transaction inserts or deletes."""
PROMOTE_OLD_ITEMS_MAX = 500
"""Items that one transaction promotes because they are old."""

EXPORT_LOOKS = 2_000
"""Packed items that one page of an export looks at, whatever it wants of them."""

_ID_BITS = 12
"""Bits of a pack's id below the number of its transaction: so ids grow, and none comes back while its pack is there."""
assert (limits.TRANSACTION_INSERTS_MAX + limits.BATCH_ITEMS_MAX) < 1 << _ID_BITS, "a transaction has fewer packs"


class PackIndex:
    """Knows the packed items of one shard, and turns what the shard wants into changes of rows, packs and tombstones.

    The shard's store asks it to plan a transaction, and tells it how the transaction ended. Whoever reads the shard's
    items beside the store asks it too, on the same thread. It owns the contents of the shard's packs.

    A packed item stands as it was inserted: not delayed, never delivered. What changes it promotes it first.
    """

    def __init__(self, budget: PackBudget) -> None:
        """`budget` is that of the host."""
        self.stored_bytes = 0
        """Memory for all packs, whatever has left them."""
        self._budget = budget
        budget.join(self)
        self._packed: dict[int, Pack] = {}
        """The pack of each packed item, by its key."""
        self._packs: OrderedDict[int, Pack] = OrderedDict()
        """Packs by id, the oldest first."""
        self._of_topic: dict[int, dict[int, Pack]] = {}
        """Packs with items of a topic, by the number of the topic and by id."""
        self._tombstones: deque[int] = deque()
        """Ids of stored tombstones, the oldest first."""
        self._has_failed = False
        """The last transaction did: the next one promotes nothing that it need not, since there may be no room."""
        self._rest_until_ms = 0
        """Before it no item is promoted for its age alone, but with other work."""
        self._planned: PackPlan | None = None
        """The last plan, while nothing has changed since."""

    def __len__(self) -> int:
        """How many items are packed."""
        return len(self._packed)

    def clear(self) -> None:
        """Forget all: the shard is about to be opened, and its packs are the last owner's."""
        self._packed, self._packs, self._of_topic = {}, OrderedDict(), {}
        self._tombstones = deque()
        self._has_failed, self._rest_until_ms, self._planned = False, 0, None
        self.stored_bytes = 0

    def close(self) -> None:
        """Forget all, and leave the host's budget to the other shards: this host has handed the shard on, or ends."""
        self.clear()
        self._budget.leave(self)

    # ---- transactions ----

    def plan(self, transaction: Transaction) -> PackPlan:
        """Plan what the transaction does to rows and packs. Changes nothing; the same transaction has the same plan."""
        if self._planned is not None and self._planned.transaction is transaction:
            return self._planned
        plan = self._planned = PackPlan(transaction)
        if self._packed:
            self._plan_packed(plan)
        else:
            plan.deletes, plan.rewrites, plan.look_ups = transaction.deletes, transaction.rewrites, transaction.look_ups
            if transaction.fetches:
                plan.fetches = [item.key for item in transaction.fetches]
        if plan.leaving or self._tombstones:
            self._plan_tombstones(plan)
        if transaction.inserts_short_lived:
            self._plan_packs(plan)
        else:
            plan.inserts = transaction.inserts
        changed_count = len(plan.rewrites) + len(transaction.wakes) + len(plan.deletes)
        plan.rows_count = len(plan.inserts) + len(plan.promoted) + changed_count + len(plan.fetches)
        for refill in transaction.refills:
            plan.rows_count += refill.limit
        return plan

    def _plan_packed(self, plan: PackPlan) -> None:
        """Plan what the transaction does to items that may be packed."""
        transaction, packed, leaving = plan.transaction, self._packed, plan.leaving
        deletes = plan.deletes
        for key in transaction.deletes:
            pack = packed.get(key)
            if pack is None:
                deletes.append(key)
            elif pack in leaving:
                leaving[pack].append(key)
            else:
                leaving[pack] = [key]
        promoting: dict[int, Rewrite | None] = {}
        for rewrite in transaction.rewrites:
            if rewrite.key in packed:
                promoting[rewrite.key] = rewrite
            else:
                plan.rewrites.append(rewrite)
        self._add_old(promoting, plan)
        for key, change in promoting.items():
            pack = packed[key]
            leaving.setdefault(pack, []).append(key)
            plan.promoted.append(pack.row(key) if change is None else rewritten(pack.row(key), change))
        plan.fetches = [item.key for item in transaction.fetches if item.key not in packed]
        plan.look_ups = [key for key in transaction.look_ups if key not in packed or key in promoting]

    def is_due(self, steady_ms: int) -> bool:
        """Whether there are old items to promote, though no transaction has anything else to do."""
        oldest = self._oldest
        return oldest is not None and steady_ms >= max(oldest.born_ms + PACK_MS_MAX, self._rest_until_ms)

    @property
    def _oldest(self) -> Pack | None:
        return next(iter(self._packs.values()), None)

    def _add_old(self, promoting: dict[int, Rewrite | None], plan: PackPlan) -> None:
        """Some old items now and then, and more of them with a transaction that has much else to do."""
        transaction = plan.transaction
        oldest, now_ms = self._oldest, transaction.steady_ms
        if oldest is None or self._has_failed or now_ms - oldest.born_ms < PACK_MS_MAX:
            return
        come_count = len(transaction.inserts) + len(transaction.inserts_short_lived)
        count = min((come_count + len(transaction.deletes)) // PROMOTE_OLD_RATIO, PROMOTE_OLD_ITEMS_MAX)
        if now_ms >= self._rest_until_ms:
            count = max(count, PROMOTE_OLD_ITEMS)
            plan.promotes_old = True
        packed = self._packed
        gone = {key for keys in plan.leaving.values() for key in keys}
        for pack in self._packs.values():
            if count <= 0 or now_ms - pack.born_ms < PACK_MS_MAX:
                return
            kept = [key for key in pack.keys if key in packed and key not in gone and key not in promoting]
            promoting.update([(key, None) for key in kept[:count]])
            count -= len(kept)

    def _plan_tombstones(self, plan: PackPlan) -> None:
        removed: list[int] = []
        for pack, keys in plan.leaving.items():
            if len(keys) == pack.left_count:
                plan.packs_gone.append(pack.id)
            else:
                removed += keys
        number = plan.transaction.number << _ID_BITS
        if removed:
            plan.tombstone = Tombstone(number, removed)
        if self._tombstones:
            gone = set(plan.packs_gone)
            oldest_id = next((pack_id for pack_id in self._packs if pack_id not in gone), number)
            for tombstone_id in self._tombstones:
                if tombstone_id >= oldest_id:
                    break
                plan.tombstones_gone.append(tombstone_id)

    def _plan_packs(self, plan: PackPlan) -> None:
        """Pack what is small and likely to be gone soon, where there is enough of it; the rest gets rows."""
        transaction = plan.transaction
        young = transaction.inserts_short_lived
        if len(young) < PACK_ITEMS_MIN or self._is_full:
            plan.inserts = [*transaction.inserts, *young] if young else transaction.inserts
            return
        rows = list(transaction.inserts)
        packable: list[ShardItem] = []
        for item in young:
            is_small = limits.PACKED_ITEM_BYTES + item.size_bytes <= PACK_ITEM_BYTES_MAX
            (packable if is_small and item.due_at <= item.enqueued_at else rows).append(item)
        if len(packable) < PACK_ITEMS_MIN:
            rows += packable
            packable = []
        plan.inserts = rows
        # What is as urgent is gone as soon: a pack that goes as a whole needs no tombstone and keeps no room unused.
        packable.sort(key=attrgetter("sort_key"))
        pack_id = transaction.number << _ID_BITS
        for items, size_bytes in _parts(packable):
            pack_id += 1
            plan.packs_new.append(Pack(pack_id, items, size_bytes, transaction.steady_ms))
        plan.packed_count = len(packable)

    @property
    def _is_full(self) -> bool:
        is_full = self.stored_bytes >= limits.PACKS_OF_SHARD_BYTES_MAX or len(self._packs) >= limits.PACKS_OF_SHARD_MAX
        return is_full or not self._budget.has_room

    def commit(self, plan: PackPlan) -> None:
        """The transaction of the plan has happened."""
        packed = self._packed
        self._has_failed, self._planned = False, None
        self._rest_if_promoted(plan)
        for _ in plan.tombstones_gone:
            self._tombstones.popleft()
        if plan.tombstone is not None:
            self._tombstones.append(plan.tombstone.id)
        for pack, keys in plan.leaving.items():
            pack.left_count -= len(keys)
            for key in keys:
                del packed[key]
            if not pack.left_count:
                self._drop(pack)
        for pack in plan.packs_new:
            self._packs[pack.id] = pack
            self.stored_bytes += pack.size_bytes
            packed.update(dict.fromkeys(pack.keys, pack))
            for topic in pack.topics:
                if topic in self._of_topic:
                    self._of_topic[topic][pack.id] = pack
                else:
                    self._of_topic[topic] = {pack.id: pack}

    def fail(self, plan: PackPlan) -> None:
        """The transaction of the plan certainly has not happened."""
        self._has_failed = True
        self._rest_if_promoted(plan)

    def _rest_if_promoted(self, plan: PackPlan) -> None:
        if plan.promotes_old:
            self._rest_until_ms = plan.transaction.steady_ms + PROMOTE_OLD_EVERY_MS

    def _drop(self, pack: Pack) -> None:
        del self._packs[pack.id]
        self.stored_bytes -= pack.size_bytes
        for topic in pack.topics:
            packs = self._of_topic[topic]
            del packs[pack.id]
            if not packs:
                del self._of_topic[topic]

    # ---- reads ----

    def rows(self, keys: Iterable[int]) -> dict[int, ItemRow]:
        """Return those of the items that are packed, by key, as the rows that they would be."""
        packed = self._packed
        return {key: packed[key].row(key) for key in keys if key in packed}

    def after(self, lane: int, edge: int) -> Iterator[int]:
        """The sort keys of packed items of a lane after `edge`, in order."""
        runs = []
        for pack in self._of_topic.get(lane, {}).values():
            sort_keys = pack.sort_keys_of(lane)
            runs.append(sort_keys[bisect_right(sort_keys, order.on_last_shard(edge)) :])
        packed = self._packed
        for sort_key in merge(*runs):
            if order.key_of(sort_key) in packed:
                yield sort_key

    def page(self, lane: int, edge: int, limit: int, bytes_max: int) -> tuple[list[ItemRow], bool]:
        """Up to `limit` packed items of a lane after `edge`, in order, and whether there may be more.

        Their contents have at most `bytes_max` together, a single larger one excepted.
        """
        sort_keys = list(islice(self.after(lane, edge), limit))
        rows = self.rows(map(order.key_of, sort_keys))
        found: list[ItemRow] = []
        size_bytes = 0
        for sort_key in sort_keys:
            row = rows[order.key_of(sort_key)]
            size_bytes += row.content.size_bytes
            if found and size_bytes > bytes_max:
                return found, True
            found.append(row)
        return found, len(sort_keys) == limit

    def cells(self) -> list[Cell]:
        """How the packed items are spread over their keys."""
        return [Cell(pack.first_key - 1, pack.last_key, pack.left_count) for pack in self._packs.values()]

    def export_places(self, wish: ExportWish, is_of_namespace: Callable[[int], bool]) -> PackedPlaces:
        """Where the next wanted items are, in the order of their keys, and up to which key these are all.

        It looks at EXPORT_LOOKS items, and at those of one transaction more at most.
        """
        if not (ItemState.READY in wish.states or ItemState.LEASED in wish.states):
            return PackedPlaces([], wish.to_key)
        if wish.keys is not None:
            keys, up_to = wish.keys
            packed = [(key, self._packed[key]) for key in keys if key in self._packed]
            return PackedPlaces([(key, pack, pack.keys.index(key)) for key, pack in packed], up_to)
        places: list[tuple[int, Pack, int]] = []
        looks = 0
        for pack in self._packs_by_key(wish):
            is_enough = len(places) >= wish.limit or looks >= EXPORT_LOOKS
            # What is packed by one transaction has its keys in any order: as far as packs overlap, all are looked at.
            if is_enough and pack.first_key > max(wish.after_key + 1, places[-1][0] if places else 0):
                return PackedPlaces(places, pack.first_key - 1)
            looks += len(pack.keys)
            for at, key in enumerate(pack.keys):
                if wish.after_key < key <= wish.to_key and key in self._packed:
                    number = pack.topic_at(at)
                    if number in wish.topics if wish.topics is not None else is_of_namespace(number):
                        places.append((key, pack, at))
            places.sort(key=itemgetter(0))
        return PackedPlaces(places, wish.to_key)

    def _packs_by_key(self, wish: ExportWish) -> list[Pack]:
        """The packs that may hold wanted items, in the order of their first keys."""
        packs: Iterable[Pack] = self._packs.values()
        if wish.topics is not None:
            packs = {
                pack.id: pack for number in wish.topics for pack in self._of_topic.get(number, {}).values()
            }.values()
        found = [pack for pack in packs if pack.last_key > wish.after_key and pack.first_key <= wish.to_key]
        return sorted(found, key=attrgetter("first_key"))

    def expired(self, now_ms: int, limit: int) -> tuple[list[int], int]:
        """Keys of up to `limit` packed items that have expired, and when the first of all expires or has expired.

        limits.NEVER_MS when nothing is packed.
        """
        keys: list[int] = []
        first_ms = limits.NEVER_MS
        for pack in self._packs.values():
            if pack.expires_first_ms <= now_ms and len(keys) < limit:
                left = [(key, end) for key, end in zip(pack.keys, pack.expires_at, strict=True) if key in self._packed]
                pack.expires_first_ms = min([expires_at for _, expires_at in left])
                over = [key for key, expires_at in left if expires_at <= now_ms]
                keys += over[: limit - len(keys)]
            first_ms = min(first_ms, pack.expires_first_ms)
        return keys, first_ms


def _parts(items: list[ShardItem]) -> Iterator[tuple[list[ShardItem], int]]:
    """The items in as many parts as there are to be packs, with what each counts for."""
    first = size_bytes = 0
    for end, item in enumerate(items, start=1):
        size_bytes += limits.PACKED_ITEM_BYTES + item.size_bytes
        if size_bytes >= PACK_BYTES_MAX or end == len(items):
            yield items[first:end], size_bytes
            first, size_bytes = end, 0


# ---- what is read of rows, and the packed items that belong among them ----


def add_packed(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Complete what the transaction read of rows. To be called before the index commits the transaction's plan."""
    for position, refill in enumerate(transaction.refills):
        _add_to_refill(index, refill, position, result)
    fetched = index.rows([item.key for item in transaction.fetches])
    if fetched:
        result.fetched = {**result.fetched, **fetched}


def _add_to_refill(index: PackIndex, refill: Refill, position: int, result: TransactionResult) -> None:
    packed = list(islice(index.after(refill.lane, refill.edge), refill.limit))
    if not packed:
        return
    found = [(order.urgency_of(at), order.due_at_of(at), order.key_of(at), 0, 0) for at in packed]
    merged = sorted(result.refilled[position] + found)[: refill.limit]
    result.refilled[position] = merged
    if refill.with_payload:
        rows = index.rows([key for _, _, key, _, _ in merged])
        result.read_ahead.update([(key, _fetched(row)) for key, row in rows.items()])


def _fetched(row: ItemRow) -> FetchedRow:
    return FetchedRow(
        row.key, row.enqueued_at, row.expires_at, row.lease_ms, row.at_most_once, row.deliveries, row.failed_attempts,
        int(row.was_dead), row.content,
    )  # fmt: skip


def add_looked_up(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Complete what the transaction looked up. To be called after the index has committed the transaction's plan."""
    assert result.looked_up is not None
    for key, row in index.rows(transaction.look_ups).items():
        result.looked_up[key] = row if transaction.look_ups_with_payload else row._replace(content=NO_CONTENT)


Page = tuple[list[ItemRow], bool]
"""Rows in their order, and whether there may be more behind them."""


def merged_pages(packed: Page, stored: Page, limit: int, bytes_max: int) -> Page:
    """One page of what was packed and of what was stored a moment later: an item of both has got a row meanwhile."""
    rows = {row.key: row for row in [*packed[0], *stored[0]]}
    # Behind the last row of a page that goes on, those of the other one need not be the next ones.
    known_up_to = min([_place(page[-1]) for page, more in (packed, stored) if page and more], default=None)
    merged: list[ItemRow] = []
    size_bytes = 0
    for row in sorted(rows.values(), key=_place):
        size_bytes += row.content.size_bytes
        is_full = len(merged) == limit or (bool(merged) and size_bytes > bytes_max)
        if is_full or (known_up_to is not None and _place(row) > known_up_to):
            return merged, True
        merged.append(row)
    return merged, packed[1] or stored[1]


class PackedPlaces(NamedTuple):
    """Where packed items are: of each its key, its pack and its position there. No others have keys up to `up_to`."""

    places: list[tuple[int, Pack, int]]
    up_to: int

    def page(self, wish: ExportWish) -> KeyPage:
        """The items as rows; for any thread, since a pack that is there never changes."""
        rows: list[ItemRow] = []
        size_bytes = 0
        for _, pack, at in self.places:
            row = without_contents(pack.row_at(at), wish)
            size_bytes += row.content.size_bytes
            if len(rows) == wish.limit or (rows and size_bytes > wish.bytes_max):
                return KeyPage(rows, rows[-1].key)
            rows.append(row)
        return KeyPage(rows, self.up_to)


class ExpiredPage(NamedTuple):
    """A page of a walk through all items of a shard."""

    keys: list[int]
    """Keys of the items that have expired."""
    last_key: int
    """The key after which to go on; 0 if there are no more rows."""
    expires_first_ms: int
    """When the first of the page's items expires or has expired, dead letters excepted; limits.NEVER_MS for none."""


def with_packed(packed: tuple[list[int], int], stored: ExpiredPage) -> ExpiredPage:
    """A page with the packed items too, as `PackIndex.expired` has found them."""
    keys = dict.fromkeys([*packed[0], *stored.keys])
    return ExpiredPage([*keys], stored.last_key, min(packed[1], stored.expires_first_ms))


def _place(row: ItemRow) -> tuple[int, int, int]:
    return row.urgency, row.due_at, row.key
