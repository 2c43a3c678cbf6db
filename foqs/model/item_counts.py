"""Counts of items by state, which add up from topics to namespaces and shards; and those of keyed topics."""

from __future__ import annotations

from sortedcontainers import SortedDict


class ItemCounts:
    """The number of items in each state, of a topic, of a namespace on a shard, or of a shard.

    Counts of a part are added to its parent as well, so that no reader has to sum over all topics.
    """

    __slots__ = ("dead", "delayed", "leased", "parent", "rows")

    def __init__(self, parent: ItemCounts | None) -> None:
        self.parent = parent
        """The counts of which these are a part."""
        self.rows = 0
        """Items that are ready, claimed or under lease."""
        self.leased = 0
        self.delayed = 0
        self.dead = 0

    @property
    def ready(self) -> int:
        return self.rows - self.leased

    @property
    def total(self) -> int:
        """The number of items in all states."""
        return self.rows + self.delayed + self.dead

    def count(self, rows: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0) -> None:
        """Add these changes to the counts, of this part and its parents."""
        part: ItemCounts | None = self
        while part is not None:
            part.rows += rows
            part.leased += leased
            part.delayed += delayed
            part.dead += dead
            part = part.parent

    def count_leased(self, count: int) -> None:
        """Add a change of leases, which begin and end most often."""
        part: ItemCounts | None = self
        while part is not None:
            part.leased += count
            part = part.parent


class KeyedTopics(ItemCounts):
    """The keyed topics of one base on one shard: their counts together, and the topics by name, in order."""

    __slots__ = ("by_name", "holding_count")

    def __init__(self, namespace: ItemCounts) -> None:
        super().__init__(namespace)
        self.by_name: SortedDict = SortedDict()
        """ShardTopic by name."""
        self.holding_count = 0
        """The topics that have items."""
