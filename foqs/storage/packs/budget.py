"""How many bytes of packs the shards of one host may keep in memory together."""

from __future__ import annotations

from typing import Protocol


class KeepsPacks(Protocol):
    @property
    def stored_bytes(self) -> int: ...


class PackBudget:
    """Each shard keeps its own count, and only reads those of the others: so threads need no lock for it."""

    def __init__(self, bytes_max: int) -> None:
        """`bytes_max` may be passed by what one transaction of each shard adds."""
        self._bytes_max = bytes_max
        self._shards: list[KeepsPacks] = []

    def join(self, shard: KeepsPacks) -> None:
        self._shards.append(shard)

    @property
    def used_bytes(self) -> int:
        return sum([shard.stored_bytes for shard in self._shards])

    @property
    def has_room(self) -> bool:
        return self.used_bytes < self._bytes_max
