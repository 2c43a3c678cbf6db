"""How long things took, in buckets. Plain sums: a meter of the metrics library costs five times as much each time."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Distribution:
    """Any thread may read it; it grows on one."""

    __slots__ = ("counts", "seconds_sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """By bucket, the last one for what is beyond all bounds."""
        self.seconds_sum = 0.0

    def observe(self, seconds: float) -> None:
        self.seconds_sum += seconds
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """As Prometheus has them: of each bound, how many took no longer."""
        return list(zip([*map(str, BOUNDS_S), "+Inf"], accumulate(list(self.counts)), strict=True))
