"""The most urgent part of a lane in memory, the rest only in MySQL.

Invariant: every row of the lane at or before `edge` that is not taken is in the window; rows after it are
only in the database. So neither memory nor the time from a take-over to its first item grows with the backlog.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable

from foqs.model import limits, order


class WindowBudget:
    """How large each window of a shard may be, so that all of them together stay within a bound."""

    __slots__ = ("items_max",)

    def __init__(self) -> None:
        self.items_max = limits.WINDOW_ITEMS_MAX

    def share(self, window_count: int) -> None:
        """Divide the shard's bound among its windows; each follows when it next grows."""
        fair = limits.WINDOWS_OF_SHARD_ITEMS_MAX // max(1, window_count)
        self.items_max = max(limits.WINDOW_ITEMS_MIN, min(limits.WINDOW_ITEMS_MAX, fair))

    @property
    def items_low(self) -> int:
        """A window that holds fewer, and is not complete, is refilled."""
        return self.items_max // 4

    @property
    def refill_items(self) -> int:
        return self.items_max // 4


class ReadyWindow:
    """The most urgent ready items of one lane, by sort key, up to an edge beyond which only the database knows.

    Each topic of a shard has one, and so has the timer lane. It takes what is added before the edge, gives up its least
    urgent part when the shard's budget asks for that, and wants a refill when it runs short.
    """

    __slots__ = ("budget", "edge", "refilling", "sort_keys")

    def __init__(self, budget: WindowBudget, *, complete: bool) -> None:
        self.sort_keys: list[int] = []
        """In order: a plain list, docs/decisions/0012."""
        self.edge = order.LAST if complete else order.FIRST
        self.refilling = False
        self.budget = budget

    def __len__(self) -> int:
        return len(self.sort_keys)

    @property
    def complete(self) -> bool:
        return self.edge == order.LAST

    @property
    def wants_refill(self) -> bool:
        return self.edge != order.LAST and not self.refilling and len(self.sort_keys) < self.budget.items_low

    @property
    def head(self) -> int:
        """No row of the lane that is not taken stands before this; order.LAST when there is none."""
        return self.sort_keys[0] if self.sort_keys else self.edge

    def add(self, sort_key: int) -> None:
        if sort_key <= self.edge:
            insort(self.sort_keys, sort_key)
            if len(self.sort_keys) > self.budget.items_max:
                self._trim()

    def remove(self, sort_key: int) -> bool:
        """Take one place out; False when it is not here."""
        at = bisect_left(self.sort_keys, sort_key)
        if at == len(self.sort_keys) or self.sort_keys[at] != sort_key:
            return False
        del self.sort_keys[at]
        return True

    def first(self, count: int, before: int = order.FIRST, bound: int = limits.WINDOW_ITEMS_MAX) -> list[int]:
        """The first `count` sort keys, and those after them that stand before `before`; `bound` in all."""
        return self.sort_keys[: min(bound, max(count, bisect_left(self.sort_keys, before)))]

    def take(self, count: int) -> list[int]:
        taken = self.sort_keys[:count]
        del self.sort_keys[:count]
        return taken

    def extend(self, sort_keys: Iterable[int], edge: int) -> None:
        """What a range scan from the old edge found, up to the new edge (order.LAST: nothing lies beyond)."""
        self.sort_keys += sort_keys
        self.sort_keys.sort()
        self.edge = edge
        if len(self.sort_keys) > self.budget.items_max:
            self._trim()

    def oldest_due_at(self) -> int | None:
        """The earliest due time here; None when empty.

        Within one urgency the first is the oldest, so only the urgencies are looked at, and of those the
        limits.OLDEST_URGENCIES_MAX most urgent.
        """
        oldest: int | None = None
        at = 0
        for _ in range(limits.OLDEST_URGENCIES_MAX):
            if at == len(self.sort_keys):
                break
            sort_key = self.sort_keys[at]
            due_at = order.due_at_of(sort_key)
            oldest = due_at if oldest is None else min(oldest, due_at)
            at = bisect_left(self.sort_keys, order.sort_key(order.urgency_of(sort_key) + 1, 0, 0, 0))
        return oldest

    def _trim(self) -> None:
        keep = self.budget.items_max * 3 // 4
        del self.sort_keys[keep:]
        self.edge = self.sort_keys[-1]
