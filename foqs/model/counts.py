"""Counts of items by state that are kept, so that nobody has to add them up over all topics."""

from __future__ import annotations


class ItemCounts:
    """Of a topic, of a namespace's part of a shard, or of a shard. What a part counts its parent counts as well."""

    __slots__ = ("dead", "delayed", "leased", "parent", "rows")

    def __init__(self, parent: ItemCounts | None) -> None:
        self.parent = parent
        """What this is a part of."""
        self.rows = 0
        """Ready, claimed or under lease."""
        self.leased = 0
        self.delayed = 0
        self.dead = 0

    @property
    def ready(self) -> int:
        return self.rows - self.leased

    @property
    def total(self) -> int:
        """Items in whatever state."""
        return self.rows + self.delayed + self.dead

    def count(self, rows: int = 0, leased: int = 0, delayed: int = 0, dead: int = 0) -> None:
        """So many more, or fewer, are in these states."""
        part: ItemCounts | None = self
        while part is not None:
            part.rows += rows
            part.leased += leased
            part.delayed += delayed
            part.dead += dead
            part = part.parent

    def count_leased(self, count: int) -> None:
        """The same for what happens most often."""
        part: ItemCounts | None = self
        while part is not None:
            part.leased += count
            part = part.parent
