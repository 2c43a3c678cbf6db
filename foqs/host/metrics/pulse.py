"""How an event loop turns: it beats, and whoever asks, on any thread, learns how long ago that was."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from foqs.host.metrics.meters import Distribution


class Pulse:
    """`clock` gives monotonic seconds, the same on every thread, as an event loop's own need not do."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._beaten_s = clock()
        self.lags = Distribution()
        """How much longer each pause took than it should have."""

    async def pause(self, pause_ms: int) -> None:
        """Let the loop turn for so long, between two beats."""
        due_s = self._clock() + pause_ms / 1000
        await asyncio.sleep(pause_ms / 1000)
        self.beat(due_s)

    def beat(self, due_s: float) -> None:
        """The loop has beaten; the beat was due at `due_s`."""
        self._beaten_s = self._clock()
        self.lags.observe(max(0.0, self._beaten_s - due_s))

    @property
    def silent_ms(self) -> int:
        """How long ago the last beat was, or the making of the pulse."""
        return int((self._clock() - self._beaten_s) * 1000)
