"""What is claimed and not handed out yet: the buffer of each topic, in order, and the memory that all may have."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import neg

from foqs.model import limits, order
from foqs.model.clock import Now
from foqs.model.item import ShardItem
from foqs.model.namespace import SettingsTable
from foqs.model.topic import ShardTopic

_MANY = 32
"""Where fewer times as many are held as come or go, sorting all is cheaper than to find the sort key of each."""


class PrefetchMemory:
    """What prefetched items have of the host's memory, and the most that those may have whose claims are on the way."""

    def __init__(self, settings: SettingsTable) -> None:
        self.prefetched_bytes = 0
        """Payload and metadata of all prefetch buffers."""
        self._settings = settings
        self._claiming_bytes = 0
        self._claiming_bytes_of: dict[ShardTopic, int] = {}
        """Of topics of healthy shards: what a sick one has on the way may come late, or never."""

    def room(self, namespace: int) -> int:
        """For how many items more there is, each as large as it may be; at least one, so that all goes on."""
        bytes_left = limits.PREFETCH_BYTES_MAX - self.prefetched_bytes - self._claiming_bytes
        return max(1, bytes_left // self._bytes_each(namespace))

    def hold(self, items: list[ShardItem]) -> None:
        sizes_bytes = [item.size_bytes for item in items]
        self.prefetched_bytes += sum(sizes_bytes)
        self._settings.note_item_bytes(items[0].topic.namespace, max(sizes_bytes))

    def release(self, items: list[ShardItem]) -> None:
        self.prefetched_bytes -= sum([item.size_bytes for item in items])

    def claims_started(self, topic: ShardTopic, count: int) -> None:
        size_bytes = count * self._bytes_each(topic.namespace)
        self._claiming_bytes_of[topic] = self._claiming_bytes_of.get(topic, 0) + size_bytes
        self._claiming_bytes += size_bytes

    def claims_ended(self, topic: ShardTopic, count: int) -> None:
        """So many, and the topic's `claiming_count` is what is left."""
        size_bytes = self._claiming_bytes_of.pop(topic, 0)
        if size_bytes:
            left_bytes = size_bytes * topic.claiming_count // (topic.claiming_count + count)
            self._claiming_bytes -= size_bytes - left_bytes
            if left_bytes:
                self._claiming_bytes_of[topic] = left_bytes

    def forget_claims(self, topic: ShardTopic) -> None:
        self._claiming_bytes -= self._claiming_bytes_of.pop(topic, 0)

    def _bytes_each(self, namespace: int) -> int:
        return limits.RESIDENT_ITEM_BYTES + self._settings.item_bytes_max(namespace)


class PrefetchBuffer:
    """The prefetched items of one topic, in order."""

    __slots__ = ("_items", "_sort_keys")

    def __init__(self) -> None:
        self._sort_keys: list[int] = []
        """The least urgent first, so that the most urgent comes last, where a list gives it up at once."""
        self._items: dict[int, ShardItem] = {}

    def __len__(self) -> int:
        return len(self._sort_keys)

    @property
    def items(self) -> list[ShardItem]:
        return list(self._items.values())

    @property
    def first(self) -> int:
        """The most urgent sort key; order.LAST when empty."""
        return self._sort_keys[-1] if self._sort_keys else order.LAST

    def oldest_due_at(self) -> int | None:
        """As that of a window: of each of the most urgent urgencies the first is looked at."""
        oldest: int | None = None
        end = len(self._sort_keys)
        for _ in range(limits.OLDEST_URGENCIES_MAX):
            if end == 0:
                break
            sort_key = self._sort_keys[end - 1]
            due_at = order.due_at_of(sort_key)
            oldest = due_at if oldest is None else min(oldest, due_at)
            end = bisect_right(
                self._sort_keys, -order.sort_key(order.urgency_of(sort_key) + 1, 0, 0, 0), 0, end, key=neg
            )
        return oldest

    @property
    def last(self) -> int:
        """The least urgent sort key; order.FIRST when empty."""
        return self._sort_keys[0] if self._sort_keys else order.FIRST

    def place_at(self, rank: int) -> int:
        """The sort key of the item that is the `rank`-th most urgent, from 1."""
        return self._sort_keys[-rank]

    def add(self, items: list[ShardItem]) -> None:
        added = [item.sort_key for item in items]
        self._items.update(zip(added, items, strict=True))
        if len(added) * _MANY < len(self._sort_keys):
            for sort_key in added:
                insort(self._sort_keys, sort_key, key=neg)
        else:
            self._sort_keys += added
            self._sort_keys.sort(reverse=True)

    def pop(self) -> ShardItem:
        """Take the most urgent one."""
        return self._items.pop(self._sort_keys.pop())

    def most_urgent(self, count: int) -> list[ShardItem]:
        """The most urgent ones, in order; `count` is at least 1."""
        return [self._items[sort_key] for sort_key in self._sort_keys[: -count - 1 : -1]]

    def prefetched_long(self, now: Callable[[int], Now]) -> list[ShardItem]:
        """What was held for so long that it goes back; `now` gives the clocks of a shard."""
        steady_ms: dict[int, int] = {}
        found: list[ShardItem] = []
        for item in self._items.values():
            shard_id = item.topic.shard_id
            if shard_id not in steady_ms:  # Once for all items: a clock costs more than all else here.
                steady_ms[shard_id] = now(shard_id).steady_ms
            if steady_ms[shard_id] - item.prefetched_at > limits.PREFETCH_HOLD_MS_MAX:
                found.append(item)
        return found

    def discard(self, item: ShardItem) -> None:
        del self._items[item.sort_key]
        del self._sort_keys[bisect_left(self._sort_keys, -item.sort_key, key=neg)]

    def count_up_to(self, sort_key: int, bound: int) -> int:
        """How many stand at or before `sort_key`, up to `bound`."""
        sort_keys = self._sort_keys
        bound = min(bound, len(sort_keys))
        if bound == 0 or sort_keys[-bound] <= sort_key:
            return bound
        count = 0
        while sort_keys[-1 - count] <= sort_key:
            count += 1
        return count

    def remove(self, items: list[ShardItem]) -> None:
        """Take these out."""
        if len(items) * _MANY < len(self._sort_keys):
            for item in items:
                self.discard(item)
        elif items:
            for item in items:
                del self._items[item.sort_key]
            self._sort_keys = sorted(self._items, reverse=True)
