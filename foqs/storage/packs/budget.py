"""How many bytes of packs the shards of one host may keep in memory together."""

from __future__ import annotations

from typing import Protocol


class KeepsPacks(Protocol):
    """The packs of one shard in memory."""

    @property
    def stored_bytes(self) -> int: ...


class PackBudget:
    """The bytes that the packs of all shards of a host may have; the index of each shard's packs joins and leaves it.

    Each shard keeps its own count, and only reads those of the others: so threads need no lock for it.
    """

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` may be passed by what one transaction of each shard adds."""
        self._bytes_max = bytes_max
        self._shards: list[KeepsPacks] = []

    def join(self, shard: KeepsPacks) -> None:
        """Count the packs of one more shard."""
        self._shards.append(shard)

    def leave(self, shard: KeepsPacks) -> None:
        """Count the packs of a shard no more. Does nothing for one that has left."""
        self._shards = [one for one in self._shards if one is not shard]

    @property
    def used_bytes(self) -> int:
        return sum([shard.stored_bytes for shard in self._shards])

    @property
    def has_room(self) -> bool:
        return self.used_bytes < self._bytes_max
