"""Slots: which shard takes an item with a dedup id, so that all repeats of it meet on one shard.

A hash leads to one of 1,024 slots, and a table leads from the slot to its shard. Both are short enough to be computed
and kept by any client in any language, which may then send each call's items to the shard that takes them.
"""

from __future__ import annotations

from zlib import crc32

SLOTS_COUNT = 1024


def slot_of(namespace: str, dedup_id: str, key_spread: int) -> int:
    """The slot of a dedup id: the namespace has `key_spread` slots in a row, and the id falls on one of them.

    The hash is CRC-32 of the UTF-8 bytes, as zlib has it. `key_spread` is a power of two of at most SLOTS_COUNT.
    """
    first = crc32(namespace.encode())
    if key_spread == 1:
        return first % SLOTS_COUNT
    return (first + crc32(dedup_id.encode()) % key_spread) % SLOTS_COUNT
