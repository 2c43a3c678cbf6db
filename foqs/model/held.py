"""Dedup ids that items hold: an id of an item with DedupUntil.ACKED is taken as long as the item lives.

Each living copy of such an item has one row, which the transaction that inserts the item writes, and the one that ends
the item deletes (docs/decisions/0069-held-dedup-ids.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, NamedTuple

FREED: Final = 0
"""The `first` of an id of an item on another shard that an operator has made free. The row stays, so that the item does
not hold the id again when the slot returns to its shard.
"""


class HeldId(NamedTuple):
    """The stored row of an id that one copy of an item holds."""

    key: int
    """The key of the copy, which a row of another shard has once for all copies."""
    shard_id: int
    """The shard of the item. It is another one for an id whose slot has come from there since."""
    namespace: int
    digest: bytes
    first: int
    """The key of the first copy, by which the item is known, or FREED."""
    copies_count: int = 0
    """The copies behind the first one, ended ones included."""


class Holder(NamedTuple):
    """The item that holds an id: its shard, the key of its first copy, and the number of copies behind that."""

    shard_id: int
    first: int
    copies_count: int = 0

    def is_same(self, other: Holder | None) -> bool:
        """Return True if both are one item. Older hosts know no numbers of copies."""
        return other is not None and (self.shard_id, self.first) == (other.shard_id, other.first)


class NamespaceDigest(NamedTuple):
    """A dedup id as a shard knows it."""

    namespace: int
    digest: bytes


@dataclass(slots=True)
class HeldChanges:
    """The part of a transaction that reads and writes held ids. Its reads see no row that it writes."""

    reads: list[NamespaceDigest] = field(default_factory=list)
    """The ids whose holders are read."""
    new: list[HeldId] = field(default_factory=list)
    ended: list[int] = field(default_factory=list)
    """Keys of items of this shard that end. Most hold no id."""
    freed: list[NamespaceDigest] = field(default_factory=list)
    """The ids that no item holds from now on, by order of an operator."""
    released: list[tuple[NamespaceDigest, Holder]] = field(default_factory=list)
    """The ids of items on other shards that have ended."""
