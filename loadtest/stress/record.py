"""What client processes saw, in slices of a tenth of a second, so that any stretch of a run can be looked at later."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

SLICES_PER_S = 10


@dataclass(slots=True)
class Slice:
    """`due_count` calls were due in it, `latencies_us` are theirs; all else is by time of answer."""

    due_count: int = 0
    latencies_us: array[int] = field(default_factory=lambda: array("I"))
    """Of calls that did something, from when they were due."""
    ack_latencies_us: array[int] = field(default_factory=lambda: array("I"))
    """Of acks, by when they were sent."""
    taken_count: int = 0
    """Items that were enqueued, or handed out."""
    acked_count: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    """Calls by the name of their code."""
    hints_ms: Counter[int] = field(default_factory=Counter)
    """retry_after_ms of the refused; -1 for none."""
    retried_count: int = 0
    retried_taken_count: int = 0
    unsent_count: int = 0
    """Calls that were due while the client had as many open as it may."""
    late_by_shard: Counter[int] = field(default_factory=Counter)
    """Enqueue calls that took long and were taken, by the shard that took them in the end."""

    def add(self, other: Slice) -> None:
        self.due_count += other.due_count
        self.latencies_us.extend(other.latencies_us)
        self.ack_latencies_us.extend(other.ack_latencies_us)
        self.taken_count += other.taken_count
        self.acked_count += other.acked_count
        self.refused.update(other.refused)
        self.hints_ms.update(other.hints_ms)
        self.retried_count += other.retried_count
        self.retried_taken_count += other.retried_taken_count
        self.unsent_count += other.unsent_count
        self.late_by_shard.update(other.late_by_shard)

    def latency_ms(self, percentile: float) -> float:
        """0 when no call did anything."""
        return _percentile_ms(self.latencies_us, percentile)

    def ack_latency_ms(self, percentile: float) -> float:
        """0 when nothing was acked."""
        return _percentile_ms(self.ack_latencies_us, percentile)


def _percentile_ms(latencies_us: array[int], percentile: float) -> float:
    if not latencies_us:
        return 0.0
    ordered = sorted(latencies_us)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percentile / 100))] / 1_000


class Record:
    """By the time since the begin of the run."""

    def __init__(self) -> None:
        self._slices: dict[int, Slice] = {}

    def at(self, since_begin_ns: int) -> Slice:
        number = since_begin_ns * SLICES_PER_S // 1_000_000_000
        found = self._slices.get(number)
        if found is None:
            found = self._slices[number] = Slice()
        return found

    def between(self, from_s: float, until_s: float) -> Slice:
        """All slices that begin in that time, as one."""
        whole = Slice()
        for number, found in self._slices.items():
            if from_s <= number / SLICES_PER_S < until_s:
                whole.add(found)
        return whole

    def whole(self) -> Slice:
        return self.between(0, inf)

    def add(self, other: Record) -> None:
        for number, found in other._slices.items():
            self._slices.setdefault(number, Slice()).add(found)


def merged(records: Iterable[Record]) -> Record:
    whole = Record()
    for record in records:
        whole.add(record)
    return whole
