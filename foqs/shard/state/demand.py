"""What consumers want of a topic, as a value: the dispatcher says it, and a transaction is planned by it."""

from __future__ import annotations

from bisect import bisect_left
from typing import NamedTuple


class Demand(NamedTuple):
    """The items of one topic that are to be claimed of those that are ready, at most `items_max` of them.

    What is short, and whatever stands before an item that is prefetched for the demand: as a ready item it would hold
    that one back.
    """

    items_max: int
    shortage: int
    before: int
    """The sort key before which all are to be claimed."""

    def count_of(self, sort_keys: list[int]) -> int:
        """How many of what stands at these sort keys, which are in order."""
        return min(self.items_max, max(self.shortage, bisect_left(sort_keys, self.before)))
