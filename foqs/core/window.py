"""The most urgent part of a lane in memory, the rest only in MySQL.

Invariant: every row of the lane at or before `edge` that is not taken is in the window; rows after it are
only in the database. So memory does not grow with the backlog, and a take-over serves its first item at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from sortedcontainers import SortedList

from foqs.core import limits, order


class Window:
    __slots__ = ("edge", "places", "refilling")

    def __init__(self, *, complete: bool) -> None:
        self.places: SortedList = SortedList()
        self.edge = order.LAST if complete else order.FIRST
        self.refilling = False

    def __len__(self) -> int:
        return len(self.places)

    @property
    def complete(self) -> bool:
        return self.edge == order.LAST

    @property
    def wants_refill(self) -> bool:
        return self.edge != order.LAST and not self.refilling and len(self.places) < limits.WINDOW_ITEMS_LOW

    @property
    def head(self) -> int:
        """No row of the lane that is not taken stands before this; order.LAST when there is none."""
        return self.places[0] if self.places else self.edge

    def add(self, place: int) -> None:
        if place <= self.edge:
            self.places.add(place)
            if len(self.places) > limits.WINDOW_ITEMS_MAX:
                self._trim()

    def remove(self, place: int) -> bool:
        """Take one place out; False when it is not here."""
        if place in self.places:
            self.places.remove(place)
            return True
        return False

    def first(self, count: int) -> list[int]:
        return list(islice(self.places, count))

    def take(self, count: int) -> list[int]:
        taken = list(islice(self.places, count))
        del self.places[: len(taken)]
        return taken

    def extend(self, places: Iterable[int], edge: int) -> None:
        """What a range scan from the old edge found, up to the new edge (order.LAST: nothing lies beyond)."""
        self.places.update(places)
        self.edge = edge
        if len(self.places) > limits.WINDOW_ITEMS_MAX:
            self._trim()

    def _trim(self) -> None:
        keep = limits.WINDOW_ITEMS_MAX * 3 // 4
        del self.places[keep:]
        self.edge = self.places[-1]
