"""Reports of the items on which work begins, so that only these count as tried. State only, no I/O.

An item that was delivered before is reported before its work begins, so that its attempt counts even if it crashes the
program at once. Other items are reported after they have been in work for a moment, because most are done by then.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from foqs.client.leases import LOST, BaseLeasedItem
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError

_FIRST_DELIVERY = ":1"
"""End of the receipt of an item's first delivery."""
SAY_AFTER_MS = 50
"""Time in work after which an item is reported, in ms, if its handler did not wait for the report."""
SAY_AGAIN_MS = limits.SECOND_MS
"""Pause before a failed report is repeated, in ms."""
SAY_MS_MAX = 2 * limits.SECOND_MS
"""Longest wait of a handler for its report, in ms; it then begins without one."""


@dataclass(slots=True, eq=False)
class Beginning:
    """The beginning of work on one item. `answer` gets None after the report, even if it failed."""

    item: BaseLeasedItem
    say_at_ms: int
    answer: Any = None
    """A queue; None if no handler waits for the report."""


def was_delivered_before(item: BaseLeasedItem) -> bool:
    """True after an earlier delivery. The handler might have run even if that attempt was not counted."""
    return item.suspect or item.attempt > 1 or not item.receipt.endswith(_FIRST_DELIVERY)


class Beginnings:
    """Beginnings to report to the host. Owned by a lease keeper. Not safe for threads."""

    def __init__(self) -> None:
        self._now: deque[Beginning] = deque()
        self._later: deque[Beginning] = deque()
        """Beginnings without a waiting handler, by due time."""
        self._again: deque[Beginning] = deque()

    def add(self, beginning: Beginning) -> bool:
        """Report it at once if a handler waits, otherwise at its time. Returns True if it is the first of its queue."""
        waiting = self._later if beginning.answer is None else self._now
        waiting.append(beginning)
        return len(waiting) == 1

    def due(self, now_ms: int, count_max: int) -> list[Beginning]:
        """Take up to `count_max` beginnings that are due. Items that are settled already are skipped."""
        due: list[Beginning] = []
        while self._now and len(due) < count_max:
            due.append(self._now.popleft())
        for waiting in (self._later, self._again):
            while waiting and waiting[0].say_at_ms <= now_ms and len(due) < count_max:
                beginning = waiting.popleft()
                if not beginning.item.settled and not beginning.item.lease_lost:
                    due.append(beginning)
        return due

    def next_due_ms(self) -> int | None:
        if self._now:
            return 0
        return min((waiting[0].say_at_ms for waiting in (self._later, self._again) if waiting), default=None)

    def said(self, beginnings: Sequence[Beginning], errors: PositionErrors | FoqsError, now_ms: int) -> None:
        """Record the outcome of a report and release the waiting handlers. A failed report is repeated."""
        for position, beginning in enumerate(beginnings):
            error = errors.get(position) if isinstance(errors, dict) else errors
            if isinstance(error, LOST):
                beginning.item.lease_lost = True
            elif error is not None and not beginning.item.settled:
                self._again.append(Beginning(beginning.item, now_ms + SAY_AGAIN_MS))
        answer_all(beginnings)

    def end(self) -> None:
        """Release all waiting handlers, because no report follows."""
        waiting, self._now = list(self._now), deque()
        answer_all(waiting)


def answer_all(beginnings: Iterable[Beginning]) -> None:
    """Release the handlers that wait for these."""
    for beginning in beginnings:
        if beginning.answer is not None:
            beginning.answer.put_nowait(None)
