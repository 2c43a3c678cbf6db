"""The prefetched items of one topic, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping, Sequence
from operator import neg

from foqs.model import limits, order
from foqs.model.item import Phase, ShardItem, count_of, divide, sort_keys_of, undivided
from foqs.model.topic import OLDEST_ITEMS_MAX, OLDEST_URGENCIES_MAX
from foqs.shard.writer.shard_writer import ShardWriter

_MANY = 32
"""The ratio of held items to added or removed ones below which sorting all is cheaper than a search for each."""


class PrefetchBuffer:
    """The prefetched items of one topic, in order.

    Its `TopicQueue` owns it, and the dispatcher fills and empties it.
    """

    __slots__ = ("_items", "sort_keys")

    def __init__(self) -> None:
        self.sort_keys: list[int] = []
        """The sort keys of all its items; others only read them.

        The least urgent comes first, so that the most urgent comes last, where a list gives it up at once.
        """
        self._items: dict[int, ShardItem] = {}
        """The item at each sort key; a bundle stands at several."""

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def items(self) -> list[ShardItem]:
        return undivided(dict.fromkeys(self._items.values()))

    @property
    def first(self) -> int:
        """The most urgent sort key; order.LAST when empty."""
        return self.sort_keys[-1] if self.sort_keys else order.LAST

    def oldest_due_at(self) -> int | None:
        """Return the due time of the oldest item, or None, as far as a window checks them
        (`ReadyWindow.oldest_due_at`).
        """
        oldest: int | None = None
        end = len(self.sort_keys)
        for _ in range(OLDEST_URGENCIES_MAX):
            if end == 0:
                break
            sort_key = self.sort_keys[end - 1]
            due_at = order.due_at_of(sort_key)
            oldest = due_at if oldest is None else min(oldest, due_at)
            end = bisect_right(
                self.sort_keys, -order.sort_key(order.urgency_of(sort_key) + 1, 0, 0, 0), 0, end, key=neg
            )
        else:
            oldest = min(map(order.due_at_of, self.sort_keys[-OLDEST_ITEMS_MAX:]), default=oldest)
        return oldest

    @property
    def last(self) -> int:
        """The least urgent sort key; order.FIRST when empty."""
        return self.sort_keys[0] if self.sort_keys else order.FIRST

    def place_at(self, rank: int) -> int:
        """Return the sort key of the `rank`-th most urgent item, from 1."""
        return self.sort_keys[-rank]

    def add(self, items: list[ShardItem]) -> None:
        added = sort_keys_of(items)
        for item in items:
            self._place(item)
        if len(added) * _MANY < len(self.sort_keys):
            for sort_key in added:
                insort(self.sort_keys, sort_key, key=neg)
        else:
            self.sort_keys += added
            self.sort_keys.sort(reverse=True)

    def take(self, count: int) -> None:
        """Remove the `count` most urgent items; `count` is at least 1."""
        for sort_key in self.sort_keys[-count:]:
            del self._items[sort_key]
        del self.sort_keys[-count:]

    def most_urgent(self, count: int, bytes_max: int = limits.PREFETCH_BYTES_MAX) -> list[ShardItem]:
        """Return the `count` most urgent items, in order; `count` is at least 1.

        A bundle is divided if it does not stand there as a whole, with nothing else among its items. All are divided if
        their contents together are larger than `bytes_max`.
        """
        found: list[ShardItem] = []
        end = len(self.sort_keys)
        last = end - count
        while end > last:
            item = self._items[self.sort_keys[end - 1]]
            if item.bundle is not None:
                item = self._standing(item, end, min(item.count, end - last))
            found.append(item)
            end -= item.count
        return found if sum([item.size_bytes for item in found]) <= bytes_max else self.ones(found)

    def _standing(self, item: ShardItem, end: int, count: int) -> ShardItem:
        """Return the part of a bundle, of up to `count` items, that ends the sort keys before `end`."""
        assert item.bundle is not None
        sort_key = self.sort_keys[end - 1]
        is_whole = not item.bundle.parts and item.sort_key == sort_key
        if is_whole and self.sort_keys[end - count] == item.sort_keys[count - 1]:
            if count < item.count:
                self._divide(item, count)
        else:
            self._divide(item)
        return self._items[sort_key]

    def least_urgent(self, count: int) -> list[ShardItem]:
        """Return the `count` least urgent items, each by itself."""
        sort_keys = self.sort_keys[:count]
        return self.ones([self._items[sort_key] for sort_key in sort_keys], sort_keys)

    def ones(self, items: list[ShardItem], sort_keys: Sequence[int] = ()) -> list[ShardItem]:
        """Return the items at these places, or all of these, each by itself."""
        for item in dict.fromkeys(items):
            if item.bundle is not None:
                self._divide(item)
        return [self._items[sort_key] for sort_key in sort_keys or sort_keys_of(items)]

    def _divide(self, item: ShardItem, at: int | None = None) -> None:
        """Divide a held bundle, unless that has happened already, and hold its parts."""
        assert item.bundle is not None
        if not item.bundle.parts:
            assert item.phase is Phase.PREFETCHED, "its leases are its only other holder"
            divide(item, at)
        for part in undivided([item]):
            if at is None and part.bundle is not None:
                self._divide(part)
            else:
                self._place(part)

    def _place(self, item: ShardItem) -> None:
        if item.bundle is None:
            self._items[item.sort_key] = item
        else:
            self._items.update(dict.fromkeys(item.sort_keys, item))

    def prefetched_long(self, writers: Mapping[int, ShardWriter]) -> list[ShardItem]:
        """Return the items that were held longer than limits.PREFETCH_HOLD_MS_MAX; `writers`, by shard, have clocks."""
        steady_ms: dict[int, int] = {}
        found: list[ShardItem] = []
        for item in self.items:
            shard_id = item.topic.shard_id
            if shard_id not in steady_ms:  # Read once for all items, because a clock costs more than all else here.
                steady_ms[shard_id] = writers[shard_id].now().steady_ms
            if steady_ms[shard_id] - item.prefetched_at > limits.PREFETCH_HOLD_MS_MAX:
                found.append(item)
        return found

    def discard(self, item: ShardItem) -> None:
        self._take_out(item)
        for sort_key in item.sort_keys:
            del self.sort_keys[bisect_left(self.sort_keys, -sort_key, key=neg)]

    def _take_out(self, item: ShardItem) -> None:
        held = self._items[item.sort_key]
        if held is not item and held.bundle is not None:
            self._divide(held)  # Its shard has divided it.
        for sort_key in item.sort_keys:
            del self._items[sort_key]

    def count_up_to(self, sort_key: int, bound: int) -> int:
        """Return the number of items at or before `sort_key`, up to `bound`."""
        sort_keys = self.sort_keys
        bound = min(bound, len(sort_keys))
        if bound == 0 or sort_keys[-bound] <= sort_key:
            return bound
        count = 0
        while sort_keys[-1 - count] <= sort_key:
            count += 1
        return count

    def remove(self, items: list[ShardItem]) -> None:
        if count_of(items) * _MANY < len(self.sort_keys):
            for item in items:
                self.discard(item)
        elif items:
            for item in items:
                self._take_out(item)
            self.sort_keys = sorted(self._items, reverse=True)
