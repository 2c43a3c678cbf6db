"""How an event loop turns: it beats, and whoever asks, on any thread, learns how long ago that was."""

from __future__ import annotations

import time
from collections.abc import Callable


class Pulse:
    """`clock` gives monotonic seconds, the same on every thread, as an event loop's own need not do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_s = clock()

    def beat(self) -> None:
        """To be called by the loop, again and again."""
        self._beaten_s = self._clock()

    @property
    def silent_ms(self) -> int:
        """How long ago the last beat was, or the making of the pulse."""
        return int((self._clock() - self._beaten_s) * 1000)
