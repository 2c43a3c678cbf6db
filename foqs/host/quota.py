"""How many items a namespace may enqueue: never more than its limit in any minute.

A sliding window of small buckets instead of a token bucket, because a bucket that holds a minute's tokens
admits up to twice the limit around its first minute.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from foqs.model.errors import RateLimitedError, TooLargeError
from foqs.model.limits import MINUTE_MS
from foqs.model.namespace import Namespace

BUCKET_MS = 100


class MinuteWindow:
    """The items that one namespace was admitted with in the last minute."""

    __slots__ = ("_admitted_count", "_buckets")

    def __init__(self) -> None:
        self._buckets: deque[list[int]] = deque()
        """The time at which each begins, and its count."""
        self._admitted_count = 0

    def admit(self, count: int, limit: int, now_ms: int) -> int:
        """Count the items if they fit, and return 0; else return the milliseconds until they would fit.

        A count over the limit never fits; then the answer is a whole minute.
        """
        buckets = self._buckets
        while buckets and buckets[0][0] + MINUTE_MS + BUCKET_MS <= now_ms:
            self._admitted_count -= buckets.popleft()[1]
        excess = self._admitted_count + count - limit
        if excess > 0:
            return self._leave_ms(excess, now_ms)
        start_ms = now_ms - now_ms % BUCKET_MS
        if buckets and buckets[-1][0] >= start_ms:
            buckets[-1][1] += count
        else:
            buckets.append([start_ms, count])
        self._admitted_count += count
        return 0

    def give_back(self, count: int) -> None:
        """So many of those that were admitted last do not count after all, as far as they count still."""
        for bucket in reversed(self._buckets):
            part = min(bucket[1], count)
            bucket[1] -= part
            self._admitted_count -= part
            count -= part
            if not count:
                return

    def _leave_ms(self, excess: int, now_ms: int) -> int:
        """When so many will have left the window."""
        for start_ms, count in self._buckets:
            excess -= count
            if excess <= 0:
                return max(1, start_ms + MINUTE_MS + BUCKET_MS - now_ms)
        return MINUTE_MS


class Quota:
    """Admits enqueued items by namespace. `clock` is monotonic, in seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._windows: dict[int, MinuteWindow] = {}

    def admit(self, namespace: Namespace, count: int) -> None:
        """Count so many items against the limit of the namespace.

        Raises TooLargeError for more than can ever fit, and RateLimitedError for more than fit now; then none counts.
        """
        limit = namespace.settings.enqueues_per_minute_max
        if count > limit:
            raise TooLargeError(
                f"{count} items in one call can never fit into the {limit} enqueues per minute of namespace "
                f"{namespace.name!r}: send calls of {limit} items at most"
            )
        window = self._windows.get(namespace.number)
        if window is None:
            window = self._windows[namespace.number] = MinuteWindow()
        wait_ms = window.admit(count, limit, int(self._clock() * 1000))
        if wait_ms:
            raise RateLimitedError(
                f"namespace {namespace.name!r} is over its limit of {limit} enqueues per minute: "
                f"{count} more fit in {wait_ms} ms",
                retry_after_ms=wait_ms,
            )

    def give_back(self, namespace: Namespace, count: int) -> None:
        """So many of the items that were admitted last were not let in, or were there already."""
        window = self._windows.get(namespace.number)
        if window is not None and count:
            window.give_back(count)

    def forget(self, namespaces: set[int]) -> None:
        """Drop what is remembered of namespaces that are not in the set."""
        for number in self._windows.keys() - namespaces:
            del self._windows[number]
