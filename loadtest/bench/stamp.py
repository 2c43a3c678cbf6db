"""What is written at the head of every payload, so that any process on the machine can tell how late an item is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from struct import Struct

from hdrh.histogram import HdrHistogram

from loadtest.bench.scenario import STAMP_BYTES

STAMP = Struct("!qQI")
"""When the item is ready (nanoseconds of the monotonic clock, which all processes share), its number, its topic's."""
OF_BACKLOG = 1 << 63
"""Set in the numbers of items that were there before the phase began."""
assert STAMP.size == STAMP_BYTES

_US_MAX = 3_600_000_000


def histogram(durations_ns: Iterable[int] = ()) -> HdrHistogram:
    """Of microseconds, to three digits."""
    found = HdrHistogram(1, _US_MAX, 3)
    for duration_ns in durations_ns:
        found.record_value(min(max(1, duration_ns // 1_000), _US_MAX))
    return found


@dataclass
class TopicDelay:
    """From ready to claimed, over the items of one topic."""

    count: int = 0
    total_ns: int = 0
    max_ns: int = 0

    def add(self, other: TopicDelay) -> None:
        self.count += other.count
        self.total_ns += other.total_ns
        self.max_ns = max(self.max_ns, other.max_ns)


@dataclass
class Lateness:
    """What the stamps of taken items say. `check` is the sum of their numbers: it shows a lost or doubled one."""

    ready: HdrHistogram = field(default_factory=histogram)
    backlog: HdrHistogram = field(default_factory=histogram)
    topics: dict[int, TopicDelay] = field(default_factory=dict)
    check: int = 0

    def read(self, claimed_ns: int, stamps: bytes) -> None:
        """`stamps` of items that were claimed together."""
        for ready_ns, number, topic in STAMP.iter_unpack(stamps):
            late_ns = claimed_ns - ready_ns
            of = self.backlog if number & OF_BACKLOG else self.ready
            of.record_value(min(max(1, late_ns // 1_000), _US_MAX))
            delay = self.topics.setdefault(topic, TopicDelay())
            delay.count += 1
            delay.total_ns += late_ns
            delay.max_ns = max(delay.max_ns, late_ns)
            self.check += number
