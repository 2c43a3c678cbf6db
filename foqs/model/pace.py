"""The usual duration of a repeated action."""

from __future__ import annotations

from collections import deque

KEPT_COUNT = 5
"""The number of latest durations that count."""


class Pace:
    """The median of the last few durations, so that one outlier changes nothing."""

    def __init__(self) -> None:
        self._took: deque[float] = deque(maxlen=KEPT_COUNT)

    def note(self, took: float) -> None:
        """Note one duration, in any unit."""
        self._took.append(took)

    @property
    def usual(self) -> float:
        """The median, the lower one of two; 0 before the first duration."""
        return sorted(self._took)[(len(self._took) - 1) // 2] if self._took else 0.0
