"""Slots: which shard takes an item with a dedup id, so that all repeats of it meet on one shard.

A hash leads to one of 1,024 slots, and a table leads from the slot to its shard. Both are short enough to be computed
and kept by any client in any language, which may then send each call's items to the shard that takes them.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct
from typing import NamedTuple
from zlib import crc32

SLOTS_COUNT = 1024
_PACKED = Struct(f">{SLOTS_COUNT}H")


class SlotTable(NamedTuple):
    """Which shard each slot leads to. A table with a higher version takes the place of one with a lower."""

    version: int
    shards: tuple[int, ...]
    """The shard by slot; empty in NO_SLOTS alone."""

    def packed(self) -> bytes:
        """The shards as a shard's copy of the table holds them."""
        return _PACKED.pack(*self.shards)


NO_SLOTS = SlotTable(0, ())
"""Before the first table is made."""


def first_table(shard_ids: Sequence[int]) -> SlotTable:
    """The table that a cluster begins with: slot s leads to the (s mod n)-th of its n shards.

    Slots that follow each other lead to different shards, so that the slots of one namespace do.
    """
    ordered = sorted(shard_ids)
    return SlotTable(1, tuple(ordered[slot % len(ordered)] for slot in range(SLOTS_COUNT)))


def unpacked(version: int, packed: bytes) -> SlotTable:
    """The table of a shard's copy."""
    return SlotTable(version, _PACKED.unpack(packed))


def slot_of(namespace: str, dedup_id: str, key_spread: int) -> int:
    """The slot of a dedup id: the namespace has `key_spread` slots in a row, and the id falls on one of them.

    The hash is CRC-32 of the UTF-8 bytes, as zlib has it. `key_spread` is a power of two of at most SLOTS_COUNT.
    """
    first = crc32(namespace.encode())
    if key_spread == 1:
        return first % SLOTS_COUNT
    return (first + crc32(dedup_id.encode()) % key_spread) % SLOTS_COUNT
