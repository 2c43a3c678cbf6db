"""The pace of one copy of waiting items on one host: this host's part of the rate of its job."""

from __future__ import annotations

BURST_S = 2.0
"""The time whose items a copy can catch up after other copies had their turns."""


class CopyPace:
    """Says when a copy can continue. Its caller has the clock."""

    def __init__(self) -> None:
        self.items_per_second = 0.0
        """0 for no limit."""
        self._free_at_s = 0.0

    def set_share(self, items_per_second_max: int, own_count: int, all_count: int, now_s: float) -> None:
        """Set the part of the cluster's rate for `own_count` of the `all_count` shards that still copy.

        Each shard has one owner, so the parts of all hosts are no more than the rate.
        """
        rate = items_per_second_max * min(1.0, own_count / max(1, all_count))
        if rate != self.items_per_second:
            wait_s = max(0.0, self._free_at_s - now_s)
            self._free_at_s = now_s + (wait_s * self.items_per_second / rate if rate else 0.0)
            self.items_per_second = rate

    def is_free(self, now_s: float) -> bool:
        """Return True if the next step can begin."""
        return self._free_at_s <= now_s

    def wait_s(self, now_s: float) -> float:
        """Return the time until the next step can begin."""
        return self._free_at_s - now_s

    def step_items_max(self, items_max: int) -> int:
        """Return the number of items of a step: those of a second, so that a low rate has no long pauses."""
        rate = self.items_per_second
        return max(1, min(items_max, int(rate))) if rate else items_max

    def items_within(self, time_ms: int, items_max: int) -> int:
        """Return the number of items that the rate has in this time, at least one."""
        rate = self.items_per_second
        return max(1, min(items_max, int(rate * time_ms / 1000))) if rate else items_max

    def charge(self, items_count: int, now_s: float) -> None:
        """Count the items of a step."""
        if self.items_per_second:
            self._free_at_s = max(self._free_at_s, now_s - BURST_S) + items_count / self.items_per_second
