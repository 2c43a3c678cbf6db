"""The time in which the event loop turned: what was held up on this side is nobody's silence on the other."""

from __future__ import annotations

LOOP_HELD_MS = 100
"""An event loop that has not turned for longer was held: the rest of that time is no server's silence."""


class TurningTime:
    """A clock in seconds that stops while the event loop is held. Where there are no ticks it is the loop's own.

    The host calls `tick` every limits.TICK_MS. A tick that comes more than LOOP_HELD_MS after the last one shows that
    the loop did not turn, or that the process did not run: answers may have been here, and nobody took them.
    """

    def __init__(self) -> None:
        self._ticked_s: float | None = None
        self._held_s = 0.0

    def at(self, now_s: float) -> float:
        """What it shows when the loop's clock shows `now_s`."""
        if self._ticked_s is None:
            return now_s
        return min(now_s, self._ticked_s + LOOP_HELD_MS / 1000) - self._held_s

    def tick(self, now_s: float) -> float:
        """The loop turns. Returns what the clock shows."""
        shown_s = self.at(now_s)
        self._held_s = now_s - shown_s
        self._ticked_s = now_s
        return shown_s
