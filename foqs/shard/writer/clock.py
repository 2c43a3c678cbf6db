"""What the owner of a shard knows of its clocks, reckoned from the owner's own monotonic clock."""

from __future__ import annotations

from foqs.model import limits
from foqs.model.clock import Now

CLOCK_STEP_MS_MIN = 1 * limits.SECOND_MS
"""A server's clock that moved by more than this beside the host's own has stepped."""


class ShardClock:
    """The server's clock as far as probes prove it, and the steady clock.

    The steady clock goes on from what the last owner wrote, so that a lease has left at a take-over what it had at the
    last transaction: it ends later than it would have, never earlier, whatever the server's clock did meanwhile.
    """

    def __init__(self) -> None:
        self.steps_count = 0
        """How often the server's clock was seen to step."""
        self._steady_offset_ms = 0.0
        self._server_offset_ms = 0.0
        self._proven_ms = (0.0, 0.0)
        """Between these the offset of the server's clock was, by the last answer."""

    def at(self, monotonic_s: float) -> Now:
        own_ms = monotonic_s * 1000
        return Now(int(own_ms + self._server_offset_ms), int(own_ms + self._steady_offset_ms))

    def start(self, before_s: float, server_ms: int, steady_ms: int, after_s: float) -> None:
        """Begin at a take-over, which read both of them between these times of the monotonic clock."""
        self._steady_offset_ms = steady_ms - after_s * 1000
        self._proven_ms = (server_ms - after_s * 1000, server_ms - before_s * 1000)
        self._server_offset_ms = self._proven_ms[0]

    def probed(self, before_s: float, server_ms: int, after_s: float) -> int:
        """Follow the server's clock, which said `server_ms` between these times of the monotonic clock.

        A probe that took long moves the clock no further than it proves. Returns by how many ms the server's clock
        has stepped, 0 when the doubt of this probe and the last one explain it.
        """
        low_ms, high_ms = server_ms - after_s * 1000, server_ms - before_s * 1000
        self._server_offset_ms = min(max(self._server_offset_ms, low_ms), high_ms)
        (low_before_ms, high_before_ms), self._proven_ms = self._proven_ms, (low_ms, high_ms)
        step_ms = round(max(low_ms - high_before_ms, 0) or min(high_ms - low_before_ms, 0))
        if abs(step_ms) <= CLOCK_STEP_MS_MIN:
            return 0
        self.steps_count += 1
        return step_ms
