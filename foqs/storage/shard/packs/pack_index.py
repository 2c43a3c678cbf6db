"""The index of a shard's packed items, and the effect of its transactions on packs.

A pack is a row that holds many items, because most items are deleted soon after their insert. An item that changes is
promoted: it gets a row of its own. So do old items when packs become many, the oldest first, which leaves room for
young ones (after the generations of a garbage collector: Lieberman and Hewitt, A real-time garbage collector based on
the lifetimes of objects, 1983). The contents of all packs are in memory, so no pack is read back, and ordered reads
merge packed items and rows (after O'Neil et al., The log-structured merge-tree, 1996).
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from heapq import merge
from itertools import chain, islice, takewhile
from operator import attrgetter, itemgetter
from typing import NamedTuple

from foqs.model import limits, order
from foqs.model.calls import NO_CONTENT, ItemState
from foqs.model.item import ShardItem, count_of, singles
from foqs.shard.port import FetchedRow, ItemRow, Refill, Rewrite, Transaction, TransactionResult
from foqs.storage.shard.export_pages import Cell, ExportCriteria, KeyPage, without_contents
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack import Pack, PackPlan, Tombstone, rewritten
from foqs.storage.shard.packs.tombstones import Tombstones

PACK_ITEMS_MIN = 8
"""The fewest items of a transaction for which a pack pays."""
PACK_BYTES_MAX = 64 * limits.KIB
"""The size at which a pack is full; one more item can exceed it."""
PACK_ITEM_BYTES_MAX = 4 * limits.KIB
PACK_MS_MAX = 10 * limits.SECOND_MS
"""The age of a pack from which its remaining items are promoted to rows while packs are many, a few at a time."""
PACKED_ITEMS_KEPT_MAX = 20_000
"""Packed items of one shard beyond which old ones are promoted, because a new owner has to promote all of it."""
TOMBSTONES_KEPT_MAX = 2_000
"""Tombstones of one shard beyond which the old items are promoted whose packs need the oldest tombstone."""
TOMBSTONE_KEYS_KEPT_MAX = 200_000
"""Keys in the tombstones of one shard beyond which the same is done."""
PROMOTE_OLD_ITEMS = 100
"""Old items promoted every PROMOTE_OLD_EVERY_MS, while the shard is idle."""
PROMOTE_OLD_EVERY_MS = 200
"""The pause between two such promotions."""
PROMOTE_OLD_RATIO = 4
"""One old item is promoted for this many items that the transaction inserts or deletes."""
PROMOTE_OLD_ITEMS_MAX = 500
"""Items that one transaction promotes for their age at most."""

EXPORT_SCANNED_MAX = 2_000
"""Packed items that one page of an export examines, wanted or not."""

_ID_BITS = 12
"""Bits of a pack's id below the number of its transaction, which make ids grow and never repeat while a pack lives."""
assert (limits.TRANSACTION_INSERTS_MAX + limits.BATCH_ITEMS_MAX) < 1 << _ID_BITS, "a transaction has fewer packs"


class PackIndex:
    """Knows the packed items of one shard, and maps its transactions to changes of rows, packs and tombstones.

    The shard's store has it plan a transaction and reports the outcome. Other readers of the shard's items use it on
    the same thread. It owns the contents of the shard's packs.

    A packed item stays as it was inserted, neither delayed nor delivered. Any change of it promotes it first.
    """

    def __init__(self, budget: PackBudget) -> None:
        """Join the budget of the host."""
        self.stored_bytes = 0
        """Memory for all packs, including items that have left them."""
        self._budget = budget
        budget.join(self)
        self._packed: dict[int, Pack] = {}
        """The pack of each packed item, by its key."""
        self._packs: OrderedDict[int, Pack] = OrderedDict()
        """Packs by id, the oldest first."""
        self._of_topic: dict[int, dict[int, Pack]] = {}
        """Packs with items of a topic, by the number of the topic and by id."""
        self._tombstones = Tombstones()
        self._has_failed = False
        """True after a failed transaction; the next one promotes nothing for age, since the disk can be full."""
        self._paused_until_ms = 0
        """Before this time, items are promoted for their age only along with other work."""
        self._expiry_place = 0
        """The id of the last pack that was searched for expired items."""
        self._planned: PackPlan | None = None
        """The last plan, while nothing has changed since."""

    def __len__(self) -> int:
        """Return the number of packed items."""
        return len(self._packed)

    def clear(self) -> None:
        """Forget all packs before the shard is opened, because they are the last owner's."""
        self._packed, self._packs, self._of_topic = {}, OrderedDict(), {}
        self._tombstones = Tombstones()
        self._expiry_place = 0
        self._has_failed, self._paused_until_ms, self._planned = False, 0, None
        self.stored_bytes = 0

    def close(self) -> None:
        """Forget all packs and leave the host's budget, because this host has handed the shard on, or ends."""
        self.clear()
        self._budget.leave(self)

    # ---- transactions ----

    def plan(self, transaction: Transaction) -> PackPlan:
        """Plan the transaction's changes of rows and packs. Changes nothing; the same transaction has the same plan."""
        if self._planned is not None and self._planned.transaction is transaction:
            return self._planned
        plan = self._planned = PackPlan(transaction)
        if self._packed:
            self._plan_packed(plan)
        else:
            plan.deletes, plan.rewrites, plan.look_ups = transaction.deletes, transaction.rewrites, transaction.look_ups
            if transaction.fetches:
                plan.fetches = [item.key for item in transaction.fetches]
        if plan.leaving:
            self._plan_tombstones(plan)
        if transaction.inserts_short_lived:
            self._plan_packs(plan)
        else:
            plan.inserts = transaction.inserts
        wakes_count = len(transaction.wakes) + len(transaction.wakes_in_place)
        changed_count = len(plan.rewrites) + wakes_count + len(plan.deletes)
        inserts_count = len(plan.inserts) + len(transaction.inserts_placed) + len(plan.promoted)
        plan.rows_count = inserts_count + changed_count + len(plan.fetches)
        for refill in transaction.refills:
            plan.rows_count += refill.limit
        return plan

    def _plan_packed(self, plan: PackPlan) -> None:
        """Plan the transaction's changes of possibly packed items."""
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
        """True if old items are due for promotion even without other work."""
        is_paused = not self._packs or steady_ms < self._paused_until_ms
        return not is_paused and any(True for _ in self._packs_to_empty(steady_ms))

    def _packs_to_empty(self, now_ms: int) -> Iterator[Pack]:
        """Yield the old packs whose items are to be promoted: none while packs and tombstones have room."""
        oldest = next(iter(self._packs.values()), None)
        packs: Iterable[Pack] = ()
        if oldest is None or now_ms - oldest.born_ms < PACK_MS_MAX:
            return iter(())
        if self._is_crowded:
            packs = self._packs.values()
        elif len(self._tombstones) > TOMBSTONES_KEPT_MAX or self._tombstones.keys_count > TOMBSTONE_KEYS_KEPT_MAX:
            packs = [self._packs[pack_id] for pack_id in self._tombstones.packs_of_oldest]
        return takewhile(lambda pack: now_ms - pack.born_ms >= PACK_MS_MAX, packs)

    @property
    def _is_crowded(self) -> bool:
        """True if packs use half of their room, the other half of which is for young items."""
        is_crowded = 2 * self.stored_bytes >= limits.PACKS_OF_SHARD_BYTES_MAX
        is_crowded = is_crowded or 2 * len(self._packs) >= limits.PACKS_OF_SHARD_MAX
        return is_crowded or len(self._packed) > PACKED_ITEMS_KEPT_MAX or self._budget.is_crowded_by(self)

    def _add_old(self, promoting: dict[int, Rewrite | None], plan: PackPlan) -> None:
        """Promote some old items now and then, and more along with a transaction that has much other work."""
        transaction = plan.transaction
        now_ms = transaction.steady_ms
        packs = self._packs_to_empty(now_ms)
        if self._has_failed or (oldest := next(packs, None)) is None:
            return
        come_count = len(transaction.inserts) + len(transaction.inserts_placed)
        come_count += count_of(transaction.inserts_short_lived)
        count = min((come_count + len(transaction.deletes)) // PROMOTE_OLD_RATIO, PROMOTE_OLD_ITEMS_MAX)
        if now_ms >= self._paused_until_ms:
            count = max(count, PROMOTE_OLD_ITEMS)
            plan.promotes_old = True
        packed = self._packed
        gone = {key for keys in plan.leaving.values() for key in keys}
        for pack in chain([oldest], packs):
            if count <= 0:
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
        if removed:
            plan.tombstone = Tombstone(plan.transaction.number << _ID_BITS, removed)
        plan.tombstones_gone = self._tombstones.not_needed_without(plan.packs_gone)

    def _plan_packs(self, plan: PackPlan) -> None:
        """Pack small items that are likely to be deleted soon, if they are enough; the rest gets rows."""
        transaction = plan.transaction
        young = transaction.inserts_short_lived
        if count_of(young) < PACK_ITEMS_MIN or self._is_full:
            plan.inserts = [*transaction.inserts, *[one for item in young for one in singles(item)]]
            return
        rows = list(transaction.inserts)
        packable: list[ShardItem] = []
        for item in young:
            is_small = limits.PACKED_ITEM_BYTES + item.item_bytes_max <= PACK_ITEM_BYTES_MAX
            if is_small and item.due_at <= item.enqueued_at:
                packable.append(item)
            else:
                rows += singles(item)
        if count_of(packable) < PACK_ITEMS_MIN:
            rows += [one for item in packable for one in singles(item)]
            packable = []
        plan.inserts = rows
        # Equally urgent items are deleted at about the same time, and a pack deleted as a whole needs no tombstone.
        packable.sort(key=attrgetter("sort_key"))
        pack_id = transaction.number << _ID_BITS
        for items, size_bytes in _parts(packable):
            pack_id += 1
            plan.packs_new.append(Pack(pack_id, items, size_bytes, transaction.steady_ms))
        plan.packed_count = count_of(packable)

    @property
    def _is_full(self) -> bool:
        is_full = self.stored_bytes >= limits.PACKS_OF_SHARD_BYTES_MAX or len(self._packs) >= limits.PACKS_OF_SHARD_MAX
        return is_full or not self._budget.has_room

    def commit(self, plan: PackPlan) -> None:
        """Apply the plan of a committed transaction."""
        packed = self._packed
        self._has_failed, self._planned = False, None
        self._pause_if_promoted(plan)
        self._tombstones.remove(plan.tombstones_gone)
        for pack, keys in plan.leaving.items():
            pack.left_count -= len(keys)
            for key in keys:
                del packed[key]
            if not pack.left_count:
                self._drop(pack)
        if plan.tombstone is not None:
            self._tombstones.add(plan.tombstone, [pack.id for pack in plan.leaving if pack.left_count])
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
        """Note that the transaction of the plan certainly had no effect."""
        self._has_failed = True
        self._pause_if_promoted(plan)

    def _pause_if_promoted(self, plan: PackPlan) -> None:
        if plan.promotes_old:
            self._paused_until_ms = plan.transaction.steady_ms + PROMOTE_OLD_EVERY_MS

    def _drop(self, pack: Pack) -> None:
        del self._packs[pack.id]
        self._tombstones.forget_pack(pack.id)
        self.stored_bytes -= pack.size_bytes
        for topic in pack.topics:
            packs = self._of_topic[topic]
            del packs[pack.id]
            if not packs:
                del self._of_topic[topic]

    # ---- reads ----

    def rows(self, keys: Iterable[int]) -> dict[int, ItemRow]:
        """Return the packed ones among the items, by key, as rows."""
        packed = self._packed
        return {key: packed[key].row(key) for key in keys if key in packed}

    def after(self, lane: int, edge: int) -> Iterator[int]:
        """Yield the sort keys of packed items of a lane after `edge`, in order."""
        runs = []
        for pack in self._of_topic.get(lane, {}).values():
            sort_keys = pack.sort_keys_of(lane, self._packed)
            runs.append(sort_keys[bisect_right(sort_keys, order.on_last_shard(edge)) :])
        packed = self._packed
        for sort_key in merge(*runs):
            if order.key_of(sort_key) in packed:
                yield sort_key

    def page(self, lane: int, edge: int, limit: int, bytes_max: int) -> tuple[list[ItemRow], bool]:
        """Return up to `limit` packed items of a lane after `edge`, in order, and True if more can follow.

        Their contents have at most `bytes_max` together, except for a single larger item.
        """
        sort_keys = list(islice(self.after(lane, edge), limit))
        rows = self.rows(map(order.key_of, sort_keys))
        found: list[ItemRow] = []
        size_bytes = 0
        for sort_key in sort_keys:
            row = rows[order.key_of(sort_key)]
            size_bytes += row.size_bytes
            if found and size_bytes > bytes_max:
                return found, True
            found.append(row)
        return found, len(sort_keys) == limit

    def cells(self) -> list[Cell]:
        """Return the spread of the packed items over their keys."""
        return [Cell(pack.first_key - 1, pack.last_key, pack.left_count) for pack in self._packs.values()]

    def export_places(self, criteria: ExportCriteria, is_of_namespace: Callable[[int], bool]) -> PackedPlaces:
        """Return the places of the next wanted items in key order, and the key up to which they are complete.

        It examines up to EXPORT_SCANNED_MAX items, plus those of one more transaction.
        """
        if not (ItemState.READY in criteria.states or ItemState.LEASED in criteria.states):
            return PackedPlaces([], criteria.to_key)
        if criteria.keys is not None:
            keys, up_to = criteria.keys
            packed = [(key, self._packed[key]) for key in keys if key in self._packed]
            return PackedPlaces([(key, pack, pack.keys.index(key)) for key, pack in packed], up_to)
        places: list[tuple[int, Pack, int]] = []
        scanned_count = 0
        for pack in self._packs_by_key(criteria):
            is_enough = len(places) >= criteria.limit or scanned_count >= EXPORT_SCANNED_MAX
            # Packs of one transaction have overlapping key ranges, so all overlapping packs are examined.
            if is_enough and pack.first_key > max(criteria.after_key + 1, places[-1][0] if places else 0):
                return PackedPlaces(places, pack.first_key - 1)
            scanned_count += len(pack.keys)
            for at, key in enumerate(pack.keys):
                if criteria.after_key < key <= criteria.to_key and key in self._packed:
                    number = pack.topic_at(at)
                    if number in criteria.topics if criteria.topics is not None else is_of_namespace(number):
                        places.append((key, pack, at))
            places.sort(key=itemgetter(0))
        return PackedPlaces(places, criteria.to_key)

    def _packs_by_key(self, criteria: ExportCriteria) -> list[Pack]:
        """Return the packs that can hold wanted items, in the order of their first keys."""
        packs: Iterable[Pack] = self._packs.values()
        if criteria.topics is not None:
            packs = {
                pack.id: pack for number in criteria.topics for pack in self._of_topic.get(number, {}).values()
            }.values()
        found = [pack for pack in packs if pack.last_key > criteria.after_key and pack.first_key <= criteria.to_key]
        return sorted(found, key=attrgetter("first_key"))

    def expired(self, now_ms: int, limit: int) -> tuple[list[int], int]:
        """Return the keys of up to `limit` expired packed items, and the earliest expiry of all packed items.

        There can be more keys, by those of one pack. The next call begins at the next pack, because items under lease
        stay though they have expired. The expiry is limits.NEVER_MS if nothing is packed.
        """
        keys: list[int] = []
        first_ms, begin = limits.NEVER_MS, self._expiry_place
        packs = self._packs.values()
        later = [pack for pack in packs if pack.id > begin]
        for pack in [*later, *islice(packs, len(packs) - len(later))]:
            if pack.expires_first_ms <= now_ms and len(keys) < limit:
                left = [(key, end) for key, end in zip(pack.keys, pack.expires_at, strict=True) if key in self._packed]
                pack.expires_first_ms = min([expires_at for _, expires_at in left])
                over = [key for key, expires_at in left if expires_at <= now_ms]
                keys += over
                self._expiry_place = pack.id
            first_ms = min(first_ms, pack.expires_first_ms)
        return keys, first_ms


def _parts(items: list[ShardItem]) -> Iterator[tuple[list[ShardItem], int]]:
    """Split the items into parts for one pack each, and yield each part with its size in memory."""
    first = size_bytes = 0
    for end, item in enumerate(items, start=1):
        more_bytes = item.count * limits.PACKED_ITEM_BYTES + item.size_bytes
        if item.count > 1 and size_bytes and size_bytes + more_bytes > PACK_BYTES_MAX:
            yield items[first : end - 1], size_bytes
            first, size_bytes = end - 1, 0
        size_bytes += more_bytes
        if size_bytes >= PACK_BYTES_MAX or end == len(items):
            yield items[first:end], size_bytes
            first, size_bytes = end, 0


# ---- merging rows with packed items ----


def add_packed(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Add packed items to the reads of a transaction. Call it before the index commits the plan."""
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
        row.key, row.priority, row.enqueued_at, row.expires_at, row.lease_ms, row.at_most_once, row.deliveries,
        row.failed_attempts, int(row.was_dead), row.content,
    )  # fmt: skip


def add_looked_up(index: PackIndex, transaction: Transaction, result: TransactionResult) -> None:
    """Add packed items to the look-ups of a transaction. Call it after the index has committed the plan."""
    assert result.looked_up is not None
    for key, row in index.rows(transaction.look_ups).items():
        result.looked_up[key] = row if transaction.look_ups_with_payload else row._replace(content=NO_CONTENT)


Page = tuple[list[ItemRow], bool]
"""Rows in their order, and True if more can follow."""


def merged_pages(packed: Page, stored: Page, limit: int, bytes_max: int) -> Page:
    """Merge a page of packed items and a page of rows read a moment later; a row replaces its packed item."""
    rows = {row.key: row for row in [*packed[0], *stored[0]]}
    # Beyond the last row of an incomplete page, rows of the other page are not certain to be the next ones.
    known_up_to = min([_place(page[-1]) for page, more in (packed, stored) if page and more], default=None)
    merged: list[ItemRow] = []
    size_bytes = 0
    for row in sorted(rows.values(), key=_place):
        size_bytes += row.size_bytes
        is_full = len(merged) == limit or (bool(merged) and size_bytes > bytes_max)
        if is_full or (known_up_to is not None and _place(row) > known_up_to):
            return merged, True
        merged.append(row)
    return merged, packed[1] or stored[1]


class PackedPlaces(NamedTuple):
    """The places of packed items: key, pack and position there. The list is complete for keys up to `up_to`."""

    places: list[tuple[int, Pack, int]]
    up_to: int

    def page(self, criteria: ExportCriteria) -> KeyPage:
        """Return the items as rows; for any thread, because a pack's contents never change."""
        rows: list[ItemRow] = []
        size_bytes = 0
        for _, pack, at in self.places:
            row = without_contents(pack.row_at(at), criteria)
            size_bytes += row.size_bytes
            if len(rows) == criteria.limit or (rows and size_bytes > criteria.bytes_max):
                return KeyPage(rows, rows[-1].key)
            rows.append(row)
        return KeyPage(rows, self.up_to)


class ExpiredPage(NamedTuple):
    """A page of a walk through all items of a shard."""

    keys: list[int]
    """Keys of the expired items."""
    last_key: int
    """The key after which the next page begins; 0 if no rows follow."""
    expires_first_ms: int
    """The earliest expiry of the page's items, dead letters excepted; limits.NEVER_MS if it has none."""


def with_packed(packed: tuple[list[int], int], stored: ExpiredPage) -> ExpiredPage:
    """Add the result of `PackIndex.expired` to a page."""
    keys = dict.fromkeys([*packed[0], *stored.keys])
    return ExpiredPage([*keys], stored.last_key, min(packed[1], stored.expires_first_ms))


def _place(row: ItemRow) -> tuple[int, int, int]:
    return row.urgency, row.due_at, row.key
