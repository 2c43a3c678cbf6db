"""The prefetch buffer of one topic: items that are claimed and not handed out yet, in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable
from operator import neg

from foqs.core import limits, order
from foqs.core.clock import Now
from foqs.core.item import Item

_MANY = 32
"""Where fewer times as many are held as come or go, sorting all is cheaper than to find the place of each."""


class PrefetchBuffer:
    __slots__ = ("_items", "_places")

    def __init__(self) -> None:
        self._places: list[int] = []
        """The least urgent first, so that the most urgent comes last, where a list gives it up at once."""
        self._items: dict[int, Item] = {}

    def __len__(self) -> int:
        return len(self._places)

    @property
    def items(self) -> list[Item]:
        return list(self._items.values())

    @property
    def first(self) -> int:
        """The most urgent place; order.LAST when empty."""
        return self._places[-1] if self._places else order.LAST

    def oldest_due_at(self) -> int | None:
        """As that of a window: of each of the most urgent urgencies the first is looked at."""
        oldest: int | None = None
        end = len(self._places)
        for _ in range(limits.OLDEST_URGENCIES_MAX):
            if end == 0:
                break
            place = self._places[end - 1]
            due_at = order.due_at_of(place)
            oldest = due_at if oldest is None else min(oldest, due_at)
            end = bisect_right(self._places, -order.place(order.urgency_of(place) + 1, 0, 0, 0), 0, end, key=neg)
        return oldest

    @property
    def last(self) -> int:
        """The least urgent place; order.FIRST when empty."""
        return self._places[0] if self._places else order.FIRST

    def place_at(self, rank: int) -> int:
        """The place of the item that is the `rank`-th most urgent, from 1."""
        return self._places[-rank]

    def add(self, items: list[Item]) -> None:
        added = [item.place for item in items]
        self._items.update(zip(added, items, strict=True))
        if len(added) * _MANY < len(self._places):
            for place in added:
                insort(self._places, place, key=neg)
        else:
            self._places += added
            self._places.sort(reverse=True)

    def pop(self) -> Item:
        """Take the most urgent one."""
        return self._items.pop(self._places.pop())

    def most_urgent(self, count: int) -> list[Item]:
        """The most urgent ones, in order; `count` is at least 1."""
        return [self._items[place] for place in self._places[: -count - 1 : -1]]

    def held_long(self, now: Callable[[int], Now]) -> list[Item]:
        """What was held for so long that it goes back; `now` gives the clocks of a shard."""
        steady_ms: dict[int, int] = {}
        found: list[Item] = []
        for item in self._items.values():
            shard_id = item.topic.shard_id
            if shard_id not in steady_ms:  # Once for all items: a clock costs more than all else here.
                steady_ms[shard_id] = now(shard_id).steady_ms
            if steady_ms[shard_id] - item.held_at > limits.PREFETCH_HOLD_MS_MAX:
                found.append(item)
        return found

    def discard(self, item: Item) -> None:
        del self._items[item.place]
        del self._places[bisect_left(self._places, -item.place, key=neg)]

    def count_up_to(self, place: int, bound: int) -> int:
        """How many stand at or before `place`, up to `bound`."""
        places = self._places
        bound = min(bound, len(places))
        if bound == 0 or places[-bound] <= place:
            return bound
        count = 0
        while places[-1 - count] <= place:
            count += 1
        return count

    def remove(self, items: list[Item]) -> None:
        """Take these out."""
        if len(items) * _MANY < len(self._places):
            for item in items:
                self.discard(item)
        elif items:
            for item in items:
                del self._items[item.place]
            self._places = sorted(self._items, reverse=True)
