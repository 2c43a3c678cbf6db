"""The bound of look-ups of dedup ids for a namespace over its quota. Repeats need no room in the quota.

A call over the quota costs only its refusal, unless its ids are looked up. These look-ups have a bound of their own
because they can be in vain: as many per minute as the quota admits items.
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
        """Count `count` ids and return True if the bound permits their look-up."""
        minute = int(self._now_s() / _MINUTE_S)
        if minute != self._minute:
            self._minute, self._counts = minute, {}
        total = self._counts.get(namespace.number, 0) + count
        if total > namespace.settings.enqueues_per_minute_max:
            return False
        self._counts[namespace.number] = total
        return True
