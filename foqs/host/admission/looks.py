"""How many dedup ids a namespace that is over its quota may have looked up: repeats need no room in the quota.

A call over the quota costs nothing but its refusal, as long as nobody looks at its ids. So the ids that are looked up
for nothing have a bound of their own: as many in a minute as the quota lets items in.
"""

from __future__ import annotations

from collections.abc import Callable

from foqs.model.namespace import Namespace

_MINUTE_S = 60.0


class Looks:
    """Counts the ids that were looked up for calls over the quota, by namespace and minute. `Enqueues` owns it."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        self._now_s = now_s
        self._minute = -1
        self._counts: dict[int, int] = {}

    def admit(self, namespace: Namespace, count: int) -> bool:
        """Whether so many ids may be looked up; if so, they count."""
        minute = int(self._now_s() / _MINUTE_S)
        if minute != self._minute:
            self._minute, self._counts = minute, {}
        total = self._counts.get(namespace.number, 0) + count
        if total > namespace.settings.enqueues_per_minute_max:
            return False
        self._counts[namespace.number] = total
        return True
