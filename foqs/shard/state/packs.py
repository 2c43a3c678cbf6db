"""Packs: rows that hold many young items each, since most items are gone soon after they came.

An item that outlives that, or needs more than to go, gets a row of its own (after the generations of a garbage
collector: Lieberman and Hewitt, A real-time garbage collector based on the lifetimes of objects, 1983). Every packed
item is in the window of its topic or among the leases: what the database shall find by order has a row.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.errors import FoqsError
from foqs.model.item import Item, Pack
from foqs.model.topic import ShardTopic
from foqs.shard.port import NewPack, PackRead, Tombstone, Transaction, TransactionResult
from foqs.shard.state.index import ShardIndex


class Packs:
    def __init__(self, index: ShardIndex) -> None:
        self.stored_bytes = 0
        """Of all packs, whatever has left them."""
        self._index = index
        self._by_age: OrderedDict[int, Pack] = OrderedDict()
        """By id, which grows."""
        self._tombstones: deque[int] = deque()
        """The ids of the rows that say what has left packs, in order."""
        self._leaving: dict[Pack, list[int]] = {}
        """Keys that leave with the next transaction, or with the one under way."""
        self._promoting: dict[int, None] = {}
        """Keys that get rows of their own with the next transaction."""
        self._reading: list[int] = []
        """Keys whose contents the next transaction needs."""
        self._read_ids: set[int] = set()
        """Of the packs that the next transaction reads for single items."""
        self._read_bytes = 0
        self._bytes_before = self._count_before = 0
        """What was read and promoted before the present share."""
        self._whole_ids: set[int] = set()
        """Of the packs that the next transaction unpacks as a whole, which have bounds of their own."""
        self._whole_bytes = 0
        self._whole_count = 0
        self._in_flight_new: list[Pack] = []
        self._in_flight_tombstones_gone: list[int] = []
        self._has_failed = False
        """The last transaction, so that the next one does without new rows: a server without room lets items go."""
        self._is_wanted = False
        """Something waits for the transaction after that."""
        self._rest_until_ms = 0
        """Before it no items get rows because they are old, but for those that go with other work."""

    # ---- what the other parts want of the next transaction, while it is put together ----

    def pack(self, transaction: Transaction, items: list[Item], now: Now) -> list[Item]:
        """Put into packs what is ready and will be in its window; returns the items that get rows."""
        is_full = self.stored_bytes >= limits.PACKS_OF_SHARD_BYTES_MAX or len(self._by_age) >= limits.PACKS_OF_SHARD_MAX
        if is_full or len(items) < limits.PACK_ITEMS_MIN:
            return items
        rows: list[Item] = []
        packed: list[Item] = []
        for item in items:
            is_ready = item.due_at <= item.enqueued_at and item.topic.window.edge == order.LAST
            is_small = limits.PACKED_ITEM_BYTES + item.size_bytes <= limits.PACK_ITEM_BYTES_MAX
            (packed if is_ready and is_small else rows).append(item)
        if len(packed) < limits.PACK_ITEMS_MIN:
            return items
        # What is as urgent goes as soon: packs that are gone as a whole leave no tombstones and no room unused.
        packed.sort(key=_sort_key)
        first = size_bytes = 0
        for end, item in enumerate(packed, start=1):
            size_bytes += limits.PACKED_ITEM_BYTES + item.size_bytes
            if size_bytes >= limits.PACK_BYTES_MAX or end == len(packed):
                self._add(transaction, packed[first:end], size_bytes, now)
                first, size_bytes = end, 0
        return rows

    def _add(self, transaction: Transaction, items: list[Item], size_bytes: int, now: Now) -> None:
        topics = dict.fromkeys([item.topic for item in items])
        pack = Pack(self._index.next_key(), [item.key for item in items], topics, size_bytes, now.steady_ms)
        transaction.packs_new.append(NewPack(pack.id, items))
        self._in_flight_new.append(pack)

    def remove(self, keys: list[int]) -> list[int]:
        """Let the items go; returns the keys of those that have rows of their own."""
        packed = self._index.packed
        if not packed:
            return keys
        rows = []
        leaving = self._leaving
        for key in keys:
            pack = packed.get(key)
            if pack is None:
                rows.append(key)
            elif pack in leaving:
                leaving[pack].append(key)
            else:
                leaving[pack] = [key]
        return rows

    def promote(self, keys: Iterable[int]) -> None:
        """Give rows to the items, but to those that go."""
        packed = self._index.packed
        for key in keys:
            pack = packed.get(key)
            if pack is not None:
                self._promoting[key] = None
                self._will_read(pack)

    def promote_topic(self, topic: ShardTopic, last_id: int) -> bool:
        """Give rows to the items of packs that have some of the topic, up to this id, as many as one transaction can.

        Whether that is all of them.
        """
        for pack in self._by_age.values():
            if pack.id > last_id:
                break
            if topic in pack.topics and pack.id not in self._whole_ids and not self._promote_pack(pack):
                return False
        return True

    def _promote_pack(self, pack: Pack) -> bool:
        """Whether the transaction has room for it; for one it always has."""
        is_full = self._whole_bytes > limits.PROMOTED_BYTES_MAX or self._whole_count >= limits.PROMOTED_ITEMS_MAX
        if not self.may_promote() or (is_full and self._whole_ids):
            return False
        self._whole_ids.add(pack.id)
        self._whole_bytes += pack.size_bytes
        before_count = len(self._promoting)
        self._promoting |= dict.fromkeys([key for key in pack.keys if key in self._index.packed])
        self._whole_count += len(self._promoting) - before_count
        return True

    def may_promote(self) -> bool:
        """If not, what needs rows of packed items has to wait for the next transaction."""
        self._is_wanted = self._is_wanted or self._has_failed
        return not self._has_failed

    def has(self, keys: Iterable[int]) -> bool:
        """Whether one of them is packed."""
        return not self._index.packed.keys().isdisjoint(keys)

    def read(self, key: int) -> bool:
        """Whether the contents of the item come from a pack, with the transaction's reads."""
        pack = self._index.packed.get(key)
        if pack is None:
            return False
        self._reading.append(key)
        self._will_read(pack)
        return True

    def begin_share(self) -> None:
        """What needs single items out of packs from here on has bounds of its own, whatever others took before."""
        self._bytes_before, self._count_before = self._read_bytes, self._single_count

    def reads_enough(self) -> bool:
        """What else of this share needs single items out of packs has to wait for the next transaction."""
        return (
            self._read_bytes - self._bytes_before >= limits.PACKS_READ_BYTES_MAX
            or self._single_count - self._count_before >= limits.PROMOTED_ITEMS_MAX
        )

    @property
    def _single_count(self) -> int:
        return len(self._promoting) - self._whole_count

    def _will_read(self, pack: Pack) -> None:
        if pack.id not in self._read_ids:
            self._read_ids.add(pack.id)
            self._read_bytes += pack.size_bytes

    # ---- part of a transaction ----

    def is_due(self, now: Now) -> bool:
        oldest = self._oldest
        if oldest is None:
            return self._is_wanted
        return self._is_wanted or now.steady_ms >= max(oldest.born_ms + limits.PACK_MS_MAX, self._rest_until_ms)

    @property
    def _oldest(self) -> Pack | None:
        return next(iter(self._by_age.values()), None)

    def take(self, transaction: Transaction, now: Now) -> None:
        self._promote_old(transaction, now.steady_ms)
        self._take_promotions(transaction)
        self._is_wanted = self._is_wanted and self._has_failed
        self._has_failed = False
        left_count = sum(map(len, self._leaving.values()))
        transaction.removed_count = left_count - len(transaction.promoted)
        removed: list[int] = []
        for pack, keys in self._leaving.items():
            if len(keys) == pack.left_count:
                transaction.packs_gone.append(pack.id)
            else:
                removed += keys
        if removed:
            transaction.tombstone = Tombstone(self._index.next_key(), removed)
        if self._tombstones and not transaction.is_empty:
            oldest = self._oldest
            while self._tombstones and (oldest is None or self._tombstones[0] < oldest.id):
                self._in_flight_tombstones_gone.append(self._tombstones.popleft())
            transaction.tombstones_gone = self._in_flight_tombstones_gone

    def _promote_old(self, transaction: Transaction, steady_ms: int) -> None:
        """A few now and then, and more with a transaction that has much else to do."""
        oldest = self._oldest
        if oldest is None or steady_ms - oldest.born_ms < limits.PACK_MS_MAX or not self.may_promote():
            return
        come_count = len(transaction.inserts) + sum([len(pack.items) for pack in transaction.packs_new])
        gone_count = len(transaction.deletes) + sum(map(len, self._leaving.values()))
        count = min((come_count + gone_count) // limits.UNPACK_OLD_RATIO, limits.PROMOTED_ITEMS_MAX)
        if steady_ms >= self._rest_until_ms:
            self._rest_until_ms = steady_ms + limits.UNPACK_OLD_EVERY_MS
            count = max(count, limits.UNPACK_OLD_ITEMS)
        packed, unpacking = self._index.packed, self._promoting
        for pack in self._by_age.values():
            if (
                not count
                or steady_ms - pack.born_ms < limits.PACK_MS_MAX
                or self._read_bytes > limits.PROMOTED_BYTES_MAX
            ):
                return
            keys = [key for key in pack.keys if key in packed and key not in unpacking][:count]
            self.promote(keys)
            count -= len(keys)

    def _take_promotions(self, transaction: Transaction) -> None:
        packed, leaving = self._index.packed, self._leaving
        reads: dict[int, list[int]] = {}
        for key in self._reading:
            reads.setdefault(packed[key].id, []).append(key)
        if self._promoting:
            going = {key for keys in leaving.values() for key in keys}
            transaction.promoted = [key for key in self._promoting if key not in going]
        for key in transaction.promoted:
            pack = packed[key]
            leaving.setdefault(pack, []).append(key)
            reads.setdefault(pack.id, []).append(key)
        transaction.packs_read = [PackRead(*read) for read in reads.items()]
        self._reading, self._read_ids, self._read_bytes = [], set(), 0
        self._bytes_before = self._count_before = 0
        self._promoting, self._whole_ids, self._whole_bytes, self._whole_count = {}, set(), 0, 0

    def committed(self, transaction: Transaction, result: TransactionResult, now: Now) -> None:
        index = self._index
        new, leaving = self._in_flight_new, self._leaving
        self._in_flight_new, self._leaving, self._in_flight_tombstones_gone = [], {}, []
        if transaction.tombstone is not None:
            self._tombstones.append(transaction.tombstone.id)
        for row in result.promoted.values():
            index.expires_first_ms = min(index.expires_first_ms, row.expires_at)
        for pack, keys in leaving.items():
            pack.left_count -= len(keys)
            for key in keys:
                del index.packed[key]
            if not pack.left_count:
                self._drop(pack)
        for pack in new:
            self._by_age[pack.id] = pack
            self.stored_bytes += pack.size_bytes
            index.packed.update(dict.fromkeys(pack.keys, pack))
            for topic in pack.topics:
                topic.pack_count += 1

    def _drop(self, pack: Pack) -> None:
        del self._by_age[pack.id]
        self.stored_bytes -= pack.size_bytes
        for topic in pack.topics:
            topic.pack_count -= 1

    def failed(self, error: FoqsError) -> None:
        self._tombstones.extendleft(reversed(self._in_flight_tombstones_gone))
        self._in_flight_new, self._leaving, self._in_flight_tombstones_gone = [], {}, []
        self._has_failed = True

    def abandon(self, unknown: FoqsError, undone: FoqsError) -> None:
        return None


def _sort_key(item: Item) -> int:
    return item.sort_key
