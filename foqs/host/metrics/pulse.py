"""The beat of an event loop, whose age every thread can read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from foqs.host.metrics.meters import Distribution


class Pulse:
    """Measures the beats of an event loop, and how late they come.

    `clock` gives monotonic seconds, the same on every thread; an event loop's own clock does not guarantee that.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_s = clock()
        self.lags = Distribution()
        """Lateness of each beat, in seconds."""

    async def pause(self, pause_ms: int) -> None:
        """Yield to the loop for `pause_ms`, then beat."""
        due_s = self._clock() + pause_ms / 1000
        await asyncio.sleep(pause_ms / 1000)
        self.beat(due_s)

    def beat(self, due_s: float) -> None:
        """Note a beat that was due at `due_s`."""
        self._beaten_s = self._clock()
        self.lags.observe(max(0.0, self._beaten_s - due_s))

    @property
    def silent_ms(self) -> int:
        """Time since the last beat, or since the pulse was made, in milliseconds."""
        return int((self._clock() - self._beaten_s) * 1000)
