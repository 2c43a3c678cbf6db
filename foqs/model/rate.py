"""How many items a namespace may enqueue: never more than its limit in any minute.

A sliding window of small buckets instead of a token bucket, because a bucket that holds a minute's tokens
admits up to twice the limit around its first minute.
"""

from __future__ import annotations

from collections import deque

from foqs.model.limits import MINUTE_MS

BUCKET_MS = 100


class MinuteWindow:
    __slots__ = ("_buckets", "_used")

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque()
        self._used = 0

    def wait_ms(self, count: int, limit: int, now_ms: int) -> int:
        """The milliseconds until `count` items fit: 0 when they fit now.

        A count over the limit never fits; then the answer is a whole minute.
        """
        buckets = self._buckets
        while buckets and buckets[0][0] + MINUTE_MS + BUCKET_MS <= now_ms:
            self._used -= buckets.popleft()[1]
        excess = self._used + count - limit
        return self._leave_ms(excess, now_ms) if excess > 0 else 0

    def add(self, count: int, now_ms: int) -> None:
        """Count items that were admitted."""
        buckets = self._buckets
        start = now_ms - now_ms % BUCKET_MS
        if buckets and buckets[-1][0] >= start:
            buckets[-1][1] += count
        else:
            buckets.append([start, count])
        self._used += count

    def _leave_ms(self, excess: int, now_ms: int) -> int:
        for start, used in self._buckets:
            excess -= used
            if excess <= 0:
                return max(1, start + MINUTE_MS + BUCKET_MS - now_ms)
        return MINUTE_MS
