"""The rate of a job on one host: smooth, with exact retry times.

It uses a virtual clock (the generic cell rate algorithm, ITU-T I.371) instead of a window, because a rate per second
must not come in bursts. Each admitted call advances the job's clock by the time that the rate needs for its items. A
call is admitted unless that clock is ahead of the real one by more than the burst. So in any time, a job gets at most
the items of that time and of the burst at its rate, and one call.

Refused calls get successive turns, so that the tasks of a job do not all come back at once.
"""

from __future__ import annotations

from math import ceil

from foqs.model import limits


class JobRate:
    """The rate of a job on one host. Times are milliseconds of any monotonic clock."""

    __slots__ = ("_free_at_ms", "_turns_until_ms", "items_per_second")

    def __init__(self, items_per_second: float, free_at_ms: float) -> None:
        """`free_at_ms` is the start of admissions. 0 items per second mean no limit."""
        self.items_per_second = items_per_second
        self._free_at_ms = free_at_ms
        """The time at which all admitted items are paid for."""
        self._turns_until_ms = free_at_ms
        """The time at which all refused calls have had their turns."""

    def admit(self, count: int, now_ms: float) -> int:
        """Count the items and return 0; or return the milliseconds until the turn of the call."""
        if not self.items_per_second:
            return 0
        due_at_ms = self._free_at_ms - limits.JOB_BURST_MS
        if due_at_ms <= now_ms:
            self._free_at_ms = max(self._free_at_ms, now_ms) + self._cost_ms(count)
            return 0
        turn_ms = max(self._turns_until_ms, self._free_at_ms)
        next_ms = turn_ms + self._cost_ms(count)
        # Calls beyond the bound share the last turn, and all but one call are then refused again.
        self._turns_until_ms = next_ms if next_ms <= self._free_at_ms + limits.JOB_TURNS_MS_MAX else turn_ms
        return max(1, ceil(turn_ms - limits.JOB_BURST_MS - now_ms))

    def refund(self, count: int) -> None:
        """Stop counting `count` of the admitted items."""
        if self.items_per_second:
            self._free_at_ms -= self._cost_ms(count)

    def change(self, items_per_second: float, now_ms: float) -> None:
        """Set the rate, by which earlier admitted items are paid for as well."""
        before, self.items_per_second = self.items_per_second, items_per_second
        if before == items_per_second:
            return
        owed_ms = max(0.0, self._free_at_ms - now_ms)
        self._free_at_ms = now_ms + (owed_ms * before / items_per_second if items_per_second else 0.0)
        self._turns_until_ms = self._free_at_ms

    def _cost_ms(self, count: int) -> float:
        return count * 1000 / self.items_per_second
