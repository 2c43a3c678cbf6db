"""What is due when. What is removed takes no memory: a lease of twelve hours costs no more than its item."""

from __future__ import annotations

from heapq import heappop, heappush
from itertools import islice
from typing import Generic, TypeVar

T = TypeVar("T")

SLOT_MS = 100
_SLOTS_SPARE = 1_000
"""So many numbers of slots that are gone may stay in the order, or as many as there are slots."""


class Wheel(Generic[T]):
    """Entries by key in slots of SLOT_MS; an entry comes out within SLOT_MS after its time, never before."""

    def __init__(self) -> None:
        self._slots: dict[int, dict[int, T]] = {}
        self._order: list[int] = []

    def add(self, key: int, due_at: int, entry: T) -> None:
        number = due_at // SLOT_MS + 1
        slot = self._slots.get(number)
        if slot is None:
            slot = self._slots[number] = {}
            heappush(self._order, number)
            if len(self._order) > 2 * len(self._slots) + _SLOTS_SPARE:
                self._order = sorted(self._slots)
        slot[key] = entry

    def remove(self, key: int, due_at: int) -> None:
        number = due_at // SLOT_MS + 1
        slot = self._slots.get(number)
        if slot is not None:
            slot.pop(key, None)
            if not slot:
                del self._slots[number]

    def pop_due(self, now_ms: int, count_max: int) -> list[T]:
        """Take out what is due, at most so many; the rest comes with the next call."""
        due: list[T] = []
        while self._order and self._order[0] * SLOT_MS <= now_ms:
            slot = self._slots.get(self._order[0], {})
            due += [slot.pop(key) for key in list(islice(slot, count_max - len(due)))]
            if slot:
                break
            self._slots.pop(heappop(self._order), None)
        return due
