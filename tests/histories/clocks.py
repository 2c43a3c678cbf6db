"""What the checker knows of the clocks of a run: by how much they may differ, and how servers' clocks stepped."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from itertools import accumulate

from foqs.model import ids


class ClockSteps:
    """How the wall clocks of shards' servers stepped. A step moves dates, by as much as it is and no more.

    notice_ms: for so long a host may go by the clock from before a step.
    """

    def __init__(self, notice_ms: int = 0) -> None:
        self._notice_ms = notice_ms
        self._at_ms: dict[int, list[int]] = {}
        self._offsets_ms: dict[int, list[int]] = {}

    def note(self, shard_id: int, at_ms: int, offset_ms: int) -> None:
        """From `at_ms` on, by the clock of the calls, the shard's server is so far from where it was at first."""
        self._at_ms.setdefault(shard_id, []).append(at_ms)
        self._offsets_ms.setdefault(shard_id, [0]).append(offset_ms)

    def offsets_ms(self, shard_id: int, start_ms: int, end_ms: int) -> list[int]:
        """Those that a host may have gone by within the time, in order."""
        at_ms = self._at_ms.get(shard_id)
        if at_ms is None:
            return [0]
        first, last = bisect_left(at_ms, start_ms - self._notice_ms), bisect_right(at_ms, end_ms)
        return self._offsets_ms[shard_id][first : last + 1]

    def forward_ms(self, shard_id: int, start_ms: int, end_ms: int, *, dated: bool) -> int:
        """By how much what was asked for in the beginning may have come early by the end.

        dated: for a date by the clock of the calls, not for so long after its enqueue.
        """
        offsets_ms = [0] * dated + self.offsets_ms(shard_id, start_ms, end_ms)
        return _rise(offsets_ms)

    def backward_ms(self, shard_id: int, start_ms: int, end_ms: int, *, dated: bool) -> int:
        """The same for late."""
        offsets_ms = [0] * dated + [-offset_ms for offset_ms in self.offsets_ms(shard_id, start_ms, end_ms)]
        return _rise(offsets_ms)


def _rise(values: list[int]) -> int:
    """The most by which a later one is above an earlier one."""
    return max(value - least for value, least in zip(values, accumulate(values, min), strict=True))


@dataclass(frozen=True, slots=True)
class Clocks:
    tolerance_ms: int = 0
    """By how much the servers' clocks may differ from the clients', steps aside."""
    late_ms: int = 0
    """By how much a host's idea of its server's clock may be late besides: times that it reckons from its own "now" are
    earlier by as much. A slow answer at a take-over makes it so.
    """
    lease_ms: int = 0
    """By how much the ends of leases may differ from what the history says."""
    steps: ClockSteps = field(default_factory=ClockSteps)


def shard_of(item_ids: set[str]) -> int:
    """The shard of an item by the ids that were seen of it; 0 when there was none, for then nothing was seen."""
    return ids.parse(next(iter(item_ids)))[0] if item_ids else 0
