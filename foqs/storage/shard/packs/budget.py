"""The bound on the memory for packs of all shards of one host."""

from __future__ import annotations

from typing import Protocol


class KeepsPacks(Protocol):
    """The packs of one shard in memory."""

    @property
    def stored_bytes(self) -> int: ...


class PackBudget:
    """The bytes available to the packs of all shards of a host; the index of each shard's packs joins and leaves it.

    Each shard updates its own count and only reads the others', so threads need no lock.
    """

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` can be exceeded by the new packs of one transaction per shard."""
        self._bytes_max = bytes_max
        self._shards: list[KeepsPacks] = []

    def join(self, shard: KeepsPacks) -> None:
        """Count the packs of one more shard."""
        self._shards.append(shard)

    def leave(self, shard: KeepsPacks) -> None:
        """Stop counting the packs of a shard. Does nothing if it has left already."""
        self._shards = [one for one in self._shards if one is not shard]

    @property
    def used_bytes(self) -> int:
        return sum([shard.stored_bytes for shard in self._shards])

    @property
    def has_room(self) -> bool:
        return self.used_bytes < self._bytes_max

    def is_crowded_by(self, shard: KeepsPacks) -> bool:
        """True if half of the bytes are used, of which this shard uses an equal part or more, as one always does."""
        is_large = 2 * shard.stored_bytes * len(self._shards) >= self._bytes_max
        return is_large and 2 * self.used_bytes >= self._bytes_max
