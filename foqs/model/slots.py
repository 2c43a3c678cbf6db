"""Slots: the choice of the shard for an item with a dedup id, so that all its repeats meet on one shard.

A hash leads to one of 1,024 slots, and a table leads from the slot to its shard. Both are simple enough for a client in
any language, which can then send each call's items to the right shard.

Slots move from shard to shard, a few at a time (docs/decisions/0036-moving-slots.md). This module plans the moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from enum import IntEnum
from struct import Struct
from typing import NamedTuple
from zlib import crc32

SLOTS_COUNT = 1024
SLOTS_MOVED_MAX = 64
"""Slots of one move. The ids of its slots wait while a move ends."""
_PACKED = Struct(f">{SLOTS_COUNT}H")


class SlotTable(NamedTuple):
    """The shard of each slot. A table with a higher version replaces one with a lower version."""

    version: int
    shards: tuple[int, ...]
    """The shard by slot; empty in NO_SLOTS alone."""

    def packed(self) -> bytes:
        """Return the shards in the form of a shard's copy of the table."""
        return _PACKED.pack(*self.shards)


NO_SLOTS = SlotTable(0, ())
"""The table before the first one is made."""


class MovePhase(IntEnum):
    """The progress of a move in the meta database. The databases of the two shards have the rest."""

    COPYING = 0
    """The receiving shard reads the ids of the slots that the other shard knows, while that one still takes new ids."""
    GIVING = 1
    """The giving shard must give the slots. It takes no more of their ids, and records that in its copy."""


class SlotMove(NamedTuple):
    """A move of a few slots from one shard to another. A cluster has one move at a time."""

    version: int
    """The version of the table in which the slots lead to the other shard: one above the present table's."""
    from_shard: int
    to_shard: int
    slots: tuple[int, ...]
    phase: MovePhase = MovePhase.COPYING

    def is_same(self, other: SlotMove) -> bool:
        """True if both are the same move, regardless of its progress."""
        return self[:4] == other[:4]


def moved(table: SlotTable, move: SlotMove) -> SlotTable:
    """Return the table after the slots are given."""
    assert table.version == move.version - 1, "a move is made for one table"
    slots = set(move.slots)
    shards = [move.to_shard if slot in slots else shard for slot, shard in enumerate(table.shards)]
    return SlotTable(move.version, tuple(shards))


def next_move(
    table: SlotTable, serving: Collection[int], draining: Collection[int], busy: Collection[int] = ()
) -> SlotMove | None:
    """Return the next move towards an equal number of slots on all `serving` shards, or None if none is possible.

    Slots of `draining` shards move first. A shard that is neither serving nor draining keeps its slots, and each shard
    keeps its `busy` ones.
    """
    if not table.version or not serving:
        return None
    held = Counter(table.shards)
    free = held - Counter([table.shards[slot] for slot in busy])
    counts = {shard_id: held[shard_id] for shard_id in [*serving, *draining]}
    smallest = min(sorted(serving), key=lambda shard_id: counts[shard_id])
    fewest, most = divmod(sum(counts.values()), len(serving))
    most = fewest + (most > 0)
    leaving = [shard_id for shard_id in sorted(draining) if free[shard_id]]
    if leaving:
        giver = leaving[0]
        count = min(free[giver], most - counts[smallest])
    else:
        giver = max(sorted(serving), key=lambda shard_id: counts[shard_id])
        # Move no more than the surplus of the giver or the deficit of the receiver.
        is_even = counts[giver] - counts[smallest] < 2
        count = 0 if is_even else min(free[giver], max(1, min(counts[giver] - most, fewest - counts[smallest])))
    if count <= 0:
        return None
    return SlotMove(table.version + 1, giver, smallest, _spread(table, giver, min(count, SLOTS_MOVED_MAX), busy))


def _spread(table: SlotTable, shard_id: int, count: int, busy: Collection[int]) -> tuple[int, ...]:
    """Choose some of a shard's slots far from each other, because the slots of one namespace are adjacent."""
    mine = [slot for slot, shard in enumerate(table.shards) if shard == shard_id and slot not in busy]
    return tuple(mine[number * len(mine) // count] for number in range(count))


def pack_slots(slots: Iterable[int]) -> bytes:
    """Return the slots of a move in the form of the databases."""
    numbers = list(slots)
    return Struct(f">{len(numbers)}H").pack(*numbers)


def unpack_slots(packed: bytes) -> tuple[int, ...]:
    return Struct(f">{len(packed) // 2}H").unpack(packed)


def first_table(shard_ids: Sequence[int]) -> SlotTable:
    """Return the table that a cluster begins with: slot s leads to the (s mod n)-th of its n shards.

    Adjacent slots lead to different shards, so that the slots of one namespace do.
    """
    ordered = sorted(shard_ids)
    return SlotTable(1, tuple(ordered[slot % len(ordered)] for slot in range(SLOTS_COUNT)))


def unpacked(version: int, packed: bytes) -> SlotTable:
    """Return the table of a shard's copy."""
    return SlotTable(version, _PACKED.unpack(packed))


def slot_of(namespace: str, dedup_id: str, key_spread: int) -> int:
    """Return the slot of a dedup id. The namespace has `key_spread` adjacent slots, and the id selects one.

    The hash is CRC-32 of the UTF-8 bytes, as zlib has it. `key_spread` is a power of two of at most SLOTS_COUNT.
    """
    first = crc32(namespace.encode())
    if key_spread == 1:
        return first % SLOTS_COUNT
    return (first + crc32(dedup_id.encode()) % key_spread) % SLOTS_COUNT
