"""The prefetched items of one topic, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Mapping
from operator import neg

from foqs.model import limits, order
from foqs.model.item import ShardItem
from foqs.model.topic import OLDEST_URGENCIES_MAX
from foqs.shard.writer.shard_writer import ShardWriter

_MANY = 32
"""Where fewer times as many are held as come or go, sorting all is cheaper than to find the sort key of each."""


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

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def items(self) -> list[ShardItem]:
        return list(self._items.values())

    @property
    def first(self) -> int:
        """The most urgent sort key; order.LAST when empty."""
        return self.sort_keys[-1] if self.sort_keys else order.LAST

    def oldest_due_at(self) -> int | None:
        """When the oldest was due. As in a window, the first of each of the most urgent urgencies is looked at."""
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
        return oldest

    @property
    def last(self) -> int:
        """The least urgent sort key; order.FIRST when empty."""
        return self.sort_keys[0] if self.sort_keys else order.FIRST

    def place_at(self, rank: int) -> int:
        """The sort key of the item that is the `rank`-th most urgent, from 1."""
        return self.sort_keys[-rank]

    def add(self, items: list[ShardItem]) -> None:
        added = [item.sort_key for item in items]
        self._items.update(zip(added, items, strict=True))
        if len(added) * _MANY < len(self.sort_keys):
            for sort_key in added:
                insort(self.sort_keys, sort_key, key=neg)
        else:
            self.sort_keys += added
            self.sort_keys.sort(reverse=True)

    def take(self, count: int) -> None:
        """Take the most urgent ones out; `count` is at least 1."""
        for sort_key in self.sort_keys[-count:]:
            del self._items[sort_key]
        del self.sort_keys[-count:]

    def most_urgent(self, count: int) -> list[ShardItem]:
        """The most urgent ones, in order; `count` is at least 1."""
        return [self._items[sort_key] for sort_key in self.sort_keys[: -count - 1 : -1]]

    def least_urgent(self, count: int) -> list[ShardItem]:
        return [self._items[sort_key] for sort_key in self.sort_keys[:count]]

    def prefetched_long(self, writers: Mapping[int, ShardWriter]) -> list[ShardItem]:
        """The items that were held so long that they go back; `writers`, by shard, have the clocks."""
        steady_ms: dict[int, int] = {}
        found: list[ShardItem] = []
        for item in self._items.values():
            shard_id = item.topic.shard_id
            if shard_id not in steady_ms:  # Once for all items: a clock costs more than all else here.
                steady_ms[shard_id] = writers[shard_id].now().steady_ms
            if steady_ms[shard_id] - item.prefetched_at > limits.PREFETCH_HOLD_MS_MAX:
                found.append(item)
        return found

    def discard(self, item: ShardItem) -> None:
        del self._items[item.sort_key]
        del self.sort_keys[bisect_left(self.sort_keys, -item.sort_key, key=neg)]

    def count_up_to(self, sort_key: int, bound: int) -> int:
        """How many stand at or before `sort_key`, up to `bound`."""
        sort_keys = self.sort_keys
        bound = min(bound, len(sort_keys))
        if bound == 0 or sort_keys[-bound] <= sort_key:
            return bound
        count = 0
        while sort_keys[-1 - count] <= sort_key:
            count += 1
        return count

    def remove(self, items: list[ShardItem]) -> None:
        """Take these out."""
        if len(items) * _MANY < len(self.sort_keys):
            for item in items:
                self.discard(item)
        elif items:
            for item in items:
                del self._items[item.sort_key]
            self.sort_keys = sorted(self._items, reverse=True)
