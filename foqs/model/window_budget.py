"""The bound of the windows of a shard together."""

from __future__ import annotations

from foqs.model import limits

_PARTS = 8
"""A window may have this part of the room that all windows leave."""


class WindowBudget:
    """The bound of each window of a shard, by which all windows together stay near the shard's bound.

    A window may have a part of the room that all leave (Choudhury and Hahne, Dynamic Queue Length Thresholds for
    Shared-Memory Packet Switches, 1998), so that one with many items has room beside those of very many ordering keys
    with an item each. It may always have an equal part of half of the shard's bound, for windows that come late: if
    these find no room, all together exceed the bound by a half.
    """

    __slots__ = ("_share", "items_count")

    def __init__(self) -> None:
        self.items_count = 0
        """The items in all windows, which the windows count."""
        self._share = limits.WINDOW_ITEMS_MAX

    def share(self, window_count: int) -> None:
        """Divide a half of the shard's bound among this number of windows."""
        self._share = max(limits.WINDOW_ITEMS_MIN, limits.WINDOWS_OF_SHARD_ITEMS_MAX // 2 // max(1, window_count))

    @property
    def items_max(self) -> int:
        """The bound of each window, WINDOW_ITEMS_MIN at least; each adapts when it next grows."""
        part = (limits.WINDOWS_OF_SHARD_ITEMS_MAX - self.items_count) // _PARTS
        return min(limits.WINDOW_ITEMS_MAX, max(self._share, part))

    @property
    def items_low(self) -> int:
        """A window with fewer items that is not complete is refilled."""
        return self.items_max // 4

    @property
    def refill_items(self) -> int:
        return self.items_max // 4
