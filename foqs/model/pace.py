"""How long something usually takes that is done again and again."""

from __future__ import annotations

from collections import deque

KEPT_COUNT = 5
"""The last times that are looked at."""


class Pace:
    """The median of the last few times: one that took long, or one that did not, changes nothing."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=KEPT_COUNT)

    def note(self, took: float) -> None:
        """It took so long once more, in whatever unit."""
        self._took.append(took)

    @property
    def usual(self) -> float:
        """The median, the lower one of two; 0 before the first time."""
        return sorted(self._took)[(len(self._took) - 1) // 2] if self._took else 0.0
