"""The time in which the event loop turned: what was held up on this side is nobody's silence on the other."""

from __future__ import annotations

from foqs.model import limits


class TurningTime:
    """A clock in seconds that stops while the loop is held. Where there are no ticks it is the loop's own.

    `tick` is to be called every limits.TICK_MS. One that comes more than limits.LOOP_HELD_MS after the last shows that
    the loop did not turn, or the process did not run: answers may have been here, and nobody took them.
    """

    def __init__(self) -> None:
        self._ticked_s: float | None = None
        self._held_s = 0.0

    def at(self, now_s: float) -> float:
        """What it shows when the loop's clock shows `now_s`."""
        if self._ticked_s is None:
            return now_s
        return min(now_s, self._ticked_s + limits.LOOP_HELD_MS / 1000) - self._held_s

    def tick(self, now_s: float) -> float:
        """The loop turns. Returns what the clock shows."""
        shown_s = self.at(now_s)
        self._held_s = now_s - shown_s
        self._ticked_s = now_s
        return shown_s
