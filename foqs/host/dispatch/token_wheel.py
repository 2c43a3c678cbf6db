"""The wheel on which topics and namespaces wait for tokens of their caps."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from foqs.model import limits
from foqs.model.caps import NEVER_S, Cap

SLOT_MS = 20
"""The time that one slot of the wheel stands for."""
UNTIL_FED = -1
"""A number in place of a slot: `fed` reports when a token exists, or when one will."""


class Parked(Protocol):
    """A topic or a namespace that can wait."""

    cap: Cap | None
    parked_slot: int


P = TypeVar("P", bound=Parked)


class TokenWheel(Generic[P]):
    """What waits for tokens, by slots of time. It costs nothing until its slot is over.

    It writes the `parked_slot` of what waits.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        """`clock` is monotonic, in seconds."""
        self._clock = clock
        self._slots: dict[int, list[P]] = {}
        self._slot = self._slot_now()
        """The last slot that is over."""
        self._due: list[P] = []
        """What may go on, and has not been taken out yet."""

    def park(self, one: P) -> None:
        """Wait until the cap of `one` has a token. It may wait already, with another date."""
        cap = one.cap
        assert cap is not None
        slot, before = self._slot_after(cap.wait_s(self._clock())), one.parked_slot
        one.parked_slot = slot
        if slot not in (before, UNTIL_FED):
            self._slots.setdefault(slot, []).append(one)

    def park_for_a_turn(self, one: P) -> None:
        """Wait until the next `take_due`."""
        one.parked_slot = UNTIL_FED
        self._due.append(one)

    def wake(self, one: P) -> None:
        """Wait no longer than until the next `take_due`."""
        if one.parked_slot:
            self._due.append(one)

    def fed(self, one: P) -> None:
        """Wake `one` if its cap has a token, or note when it will."""
        if one.parked_slot and one.cap is not None:
            if one.cap.wait_s(self._clock()) > 0:
                self.park(one)
            else:
                self._due.append(one)

    def leave(self, one: P) -> None:
        """Wait no longer."""
        one.parked_slot = 0

    def take_due(self, count_max: int = sys.maxsize) -> list[P]:
        """Take out up to `count_max` of those whose wait is over."""
        slot = self._slot_now()
        for number in self._occupied(slot):
            self._due += [one for one in self._slots.pop(number) if one.parked_slot == number]
        self._slot = slot
        due = [one for one in dict.fromkeys(self._due) if one.parked_slot]
        some, self._due = due[:count_max], due[count_max:]
        for one in some:
            one.parked_slot = 0
        return some

    def _occupied(self, last: int) -> list[int]:
        """The occupied slots up to `last`, found by the slots or by the time, whichever are fewer."""
        if last - self._slot < len(self._slots):
            return [number for number in range(self._slot + 1, last + 1) if number in self._slots]
        return sorted([number for number in self._slots if number <= last])

    def _slot_after(self, wait_s: float) -> int:
        if wait_s == NEVER_S:
            return UNTIL_FED
        wait_s = min(wait_s, limits.DAY_MS / 1000)
        return max(self._slot + 1, math.ceil((self._clock() + wait_s) * 1000 / SLOT_MS))

    def _slot_now(self) -> int:
        return math.floor(self._clock() * 1000 / SLOT_MS)
