"""The bound of the windows of a shard together."""

from __future__ import annotations

from foqs.model import limits


class WindowBudget:
    """The bound of each window of a shard, by which all windows together stay within the shard's bound."""

    __slots__ = ("items_max",)

    def __init__(self) -> None:
        self.items_max = limits.WINDOW_ITEMS_MAX

    def share(self, window_count: int) -> None:
        """Divide the shard's bound among its windows; each adapts when it next grows."""
        fair = limits.WINDOWS_OF_SHARD_ITEMS_MAX // max(1, window_count)
        self.items_max = max(limits.WINDOW_ITEMS_MIN, min(limits.WINDOW_ITEMS_MAX, fair))

    @property
    def items_low(self) -> int:
        """A window with fewer items that is not complete is refilled."""
        return self.items_max // 4

    @property
    def refill_items(self) -> int:
        return self.items_max // 4
