"""The prefetch buffer of one topic: items that are claimed and not handed out yet, in order."""

from __future__ import annotations

from bisect import insort
from operator import neg

from foqs.core import order
from foqs.core.item import Item

_MANY = 32
"""Where fewer times as many are held as come, sorting all is cheaper than to find a place for each."""


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

    def discard(self, item: Item) -> None:
        del self._items[item.place]
        self._places.remove(item.place)

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
        if items:
            for item in items:
                del self._items[item.place]
            self._places = sorted(self._items, reverse=True)
