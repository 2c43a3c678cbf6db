"""What a client says of the items on which it begins to work, so that others do not count as tried. State only, no I/O.

Of what was delivered before, the host is told before the work begins, for then even an item that ends its program at
once is counted. Of other items it is told once they have been in work for a moment, since most are done by then.
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
"""How the receipt of an item's first delivery ends."""
SAY_AFTER_MS = 50
"""An item that nobody waits to begin is said to be in work once it was for so long."""
SAY_AGAIN_MS = limits.SECOND_MS
"""The pause before an item is said to be in work again, after the host could not be told."""
SAY_MS_MAX = 2 * limits.SECOND_MS
"""How long the beginning of a handler waits for a host that does not answer. Then it begins all the same."""


@dataclass(slots=True, eq=False)
class Beginning:
    """One item on which somebody begins to work. `answer` gets None when the host knows, or could not be told."""

    item: BaseLeasedItem
    say_at_ms: int
    answer: Any = None
    """A queue; None if nobody waits."""


def was_delivered_before(item: BaseLeasedItem) -> bool:
    """Whether there was another delivery: that it was not counted does not say that nobody worked on the item."""
    return item.suspect or item.attempt > 1 or not item.receipt.endswith(_FIRST_DELIVERY)


class Beginnings:
    """The items whose beginning the host is to be told. A lease keeper owns it. Not safe for threads."""

    def __init__(self) -> None:
        self._now: deque[Beginning] = deque()
        self._later: deque[Beginning] = deque()
        """The beginnings that nobody waits for, in the order of their times."""
        self._again: deque[Beginning] = deque()

    def add(self, beginning: Beginning) -> bool:
        """Have it said at once if somebody waits, else at its time. Returns whether it is the first one."""
        waiting = self._later if beginning.answer is None else self._now
        waiting.append(beginning)
        return len(waiting) == 1

    def due(self, now_ms: int, count_max: int) -> list[Beginning]:
        """Take out what is to be said now, at most so many. Items that are settled already need no word."""
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
        """Enter what has come of it. Those who wait go on; what the host does not know is said again."""
        for position, beginning in enumerate(beginnings):
            error = errors.get(position) if isinstance(errors, dict) else errors
            if isinstance(error, LOST):
                beginning.item.lease_lost = True
            elif error is not None and not beginning.item.settled:
                self._again.append(Beginning(beginning.item, now_ms + SAY_AGAIN_MS))
        answer_all(beginnings)

    def end(self) -> None:
        """Let nobody wait any more: nothing will be said."""
        waiting, self._now = list(self._now), deque()
        answer_all(waiting)


def answer_all(beginnings: Iterable[Beginning]) -> None:
    """Let those go on who wait for these."""
    for beginning in beginnings:
        if beginning.answer is not None:
            beginning.answer.put_nowait(None)
