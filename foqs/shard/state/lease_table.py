"""The leases of one shard: the item of each receipt, and the end of each lease."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

from foqs.model import ids
from foqs.model.errors import StaleLeaseError
from foqs.model.item import Phase, ShardItem, move, move_all
from foqs.shard.state.index import ShardIndex

T = TypeVar("T")

SUSPECTS_MAX = 10_000
"""Suspects that a shard remembers; the oldest are forgotten, and delivered together with others again."""
SLOT_MS = 100
_SLOTS_SPARE = 1_000
"""The most numbers of removed slots that stay in the order, unless it has more slots than these."""


class LeaseTable:
    """The items under lease by receipt, and the wheel of the leases' ends.

    The dispatcher begins leases here. An operation ends a lease before it settles the item, so that no other one does.
    """

    def __init__(self, index: ShardIndex) -> None:
        self.by_receipt: dict[str, ShardItem] = {}
        self.unbegun: set[int] = set()
        """The keys of items whose consumers report the start of work, and have not reported it for these."""
        self.suspects: dict[int, None] = {}
        """The keys of items whose lease has ended during work on them, the oldest first."""
        self._index = index
        self._wheel: Wheel[ShardItem] = Wheel()
        self.is_due = self._wheel.is_due
        index.on_divided.append(self._divided)

    def find(self, key: int, delivery: int) -> ShardItem:
        """Return the item under this lease; `delivery` 0 means any. Raises StaleLeaseError if the lease has ended."""
        item = self._index.leased(key)
        if item is None or item.receipt not in self.by_receipt or delivery not in (0, item.deliveries + 1):
            raise stale_lease()
        return item

    def begin(self, items: Sequence[ShardItem], lease_due_at: int, delivered_at: int = 0) -> None:
        """Deliver items of one topic, all in the same phase, under leases that end at `lease_due_at`.

        That is on the steady clock, and `delivered_at` on the server's; 0 if it is unknown.
        """
        topic, keys = items[0].topic, [item.key for item in items]
        receipts = ids.receipts(self._index.shard_id, keys, [item.deliveries + 1 for item in items])
        by_receipt = self.by_receipt
        for item, receipt in zip(items, receipts, strict=True):
            item.receipt = receipt
            item.lease_due_at = lease_due_at
            item.delivered_at = delivered_at
            if item.bundle is None:
                by_receipt[receipt] = item
            else:
                deliveries = [item.deliveries + 1] * item.count
                item.bundle.receipts = ids.receipts(self._index.shard_id, item.keys, deliveries)
                by_receipt.update(dict.fromkeys(item.bundle.receipts, item))
        move_all(topic, items, items[0].phase, Phase.LEASED)
        self._wheel.add_all(keys, lease_due_at, items)

    def _divided(self, item: ShardItem, parts: list[ShardItem]) -> None:
        if self.by_receipt.get(item.receipt) is item:
            for part in parts:
                self.by_receipt.update(dict.fromkeys(part.receipts, part))
            self._wheel.remove(item.key, item.lease_due_at)
            self._wheel.add_all([part.key for part in parts], item.lease_due_at, parts)

    def hand_over(self, items: Sequence[ShardItem]) -> None:
        """Note that the leased items were delivered to a consumer that reports the start of work."""
        for item in items:
            self.unbegun.update(item.keys)

    def work_begins(self, item: ShardItem) -> None:
        """Note that its consumer works on the leased item from now on."""
        self.unbegun.discard(item.key)

    def ended_in_work(self, item: ShardItem) -> bool:
        """Return True if the consumer of an ended lease might have worked on the item, which is then a suspect."""
        if item.key in self.unbegun:
            self.unbegun.remove(item.key)
            return False
        self.suspects.pop(item.key, None)
        self.suspects[item.key] = None
        if len(self.suspects) > SUSPECTS_MAX:
            del self.suspects[next(iter(self.suspects))]
        return True

    def know_tries(self, past: LeaseTable) -> None:
        """Take over the same owner's notes on the same leases, from before it lost the shard and got it again."""
        self.unbegun.update([key for key in past.unbegun if key in self._index.leases])
        self.suspects.update(past.suspects)

    def end(self, items: Sequence[ShardItem]) -> None:
        """Reserve the ends of these leases for the caller, which must settle the items at once."""
        by_receipt, ends = self.by_receipt, dict[int, list[int]]()
        for item in items:
            if item.bundle is None:
                by_receipt.pop(item.receipt, None)
            else:
                for receipt in item.bundle.receipts:
                    by_receipt.pop(receipt, None)
            due_at = item.lease_due_at
            if due_at in ends:  # Leases that began together mostly end together.
                ends[due_at].append(item.key)
            else:
                ends[due_at] = [item.key]
        for due_at, keys in ends.items():
            self._wheel.remove_all(keys, due_at)
        if self.unbegun:
            for item in items:
                self.unbegun.difference_update(item.keys)

    def go_on(self, item: ShardItem) -> None:
        """Let the lease that `end` took out run on, because its end was not written."""
        move(item, Phase.LEASED)
        self.by_receipt.update(dict.fromkeys(item.receipts, item))
        self._wheel.add(item.key, item.lease_due_at, item)

    def pause(self, item: ShardItem) -> None:
        """Keep the lease from ending while its extension is under way."""
        self._wheel.remove(item.key, item.lease_due_at)

    def resume(self, item: ShardItem, lease_due_at: int) -> None:
        """Let a paused lease end at `lease_due_at`."""
        if item.phase is Phase.LEASED:
            self._wheel.remove(item.key, item.lease_due_at)  # The same transaction might have another extension.
            self._wheel.add(item.key, lease_due_at, item)
        item.lease_due_at = lease_due_at  # Also while the item is being settled, because that can fail.

    def pop_due(self, steady_ms: int, count_max: int) -> list[ShardItem]:
        """End up to `count_max` leases that are over, and return their items."""
        ended: list[ShardItem] = []
        for due in self._wheel.pop_due(steady_ms, count_max):
            if len(ended) >= count_max:
                self._wheel.add(due.key, due.lease_due_at, due)  # Bundles before it were more items than entries.
            elif due.phase is Phase.LEASED:
                for item in self._index.ones([due]):
                    self._wheel.remove(item.key, item.lease_due_at)  # The parts of a bundle have come back into it.
                    del self.by_receipt[item.receipt]
                    ended.append(item)
        return ended


def stale_lease() -> StaleLeaseError:
    return StaleLeaseError("the lease of this receipt has ended: the item was settled or given to another")


class Wheel(Generic[T]):
    """Entries by key in slots of SLOT_MS; an entry is taken out within SLOT_MS after its time, never before.

    A removed entry takes no memory, so a lease of twelve hours costs no more than its item.
    """

    def __init__(self) -> None:
        self._slots: dict[int, dict[int, T]] = {}
        self._order: list[int] = []

    def add(self, key: int, due_at: int, entry: T) -> None:
        self._slot(due_at)[key] = entry

    def add_all(self, keys: Iterable[int], due_at: int, entries: Iterable[T]) -> None:
        self._slot(due_at).update(zip(keys, entries, strict=True))

    def _slot(self, due_at: int) -> dict[int, T]:
        number = due_at // SLOT_MS + 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heappush(self._order, number)
            if len(self._order) > 2 * len(self._slots) + _SLOTS_SPARE:
                self._order = sorted(self._slots)
        return slot

    def remove(self, key: int, due_at: int) -> None:
        self.remove_all([key], due_at)

    def remove_all(self, keys: Iterable[int], due_at: int) -> None:
        number = due_at // SLOT_MS + 1
        slot = self._slots.get(number)
        if slot is not None:
            for key in keys:
                slot.pop(key, None)
            if not slot:
                del self._slots[number]

    def is_due(self, now_ms: int) -> bool:
        """True if `pop_due` has something to do."""
        return bool(self._order) and self._order[0] * SLOT_MS <= now_ms

    def pop_due(self, now_ms: int, count_max: int) -> list[T]:
        """Take out up to `count_max` due entries; the rest follows with the next call."""
        due: list[T] = []
        while self._order and self._order[0] * SLOT_MS <= now_ms:
            slot = self._slots.get(self._order[0], {})
            due += [slot.pop(key) for key in list(islice(slot, count_max - len(due)))]
            if slot:
                break
            self._slots.pop(heappop(self._order), None)
        return due
