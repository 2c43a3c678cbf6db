"""Slots: which shard takes an item with a dedup id, so that all repeats of it meet on one shard.

A hash leads to one of 1,024 slots, and a table leads from the slot to its shard. Both are short enough to be computed
and kept by any client in any language, which may then send each call's items to the shard that takes them.

Slots move from shard to shard, a few at a time (docs/decisions/0036-moving-slots.md): here is which ones, and where to.
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
"""Slots of one move: ids of so many wait while a move ends."""
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


class MovePhase(IntEnum):
    """How far a move has come, as the meta database has it. The databases of the two shards say the rest."""

    COPYING = 0
    """The shard that gets the slots reads what ids of them the other one knows; that one goes on taking new ones."""
    GIVING = 1
    """The shard that has the slots is to give them: it takes no more ids of them, and says so in its copy."""


class SlotMove(NamedTuple):
    """A few slots go from one shard to another. There is one move at a time in a cluster."""

    version: int
    """The version of the table in which the slots lead to the other shard: the one after the present table's."""
    from_shard: int
    to_shard: int
    slots: tuple[int, ...]
    phase: MovePhase = MovePhase.COPYING

    def is_same(self, other: SlotMove) -> bool:
        """Whether both are one move, however far it has come."""
        return self[:4] == other[:4]


def moved(table: SlotTable, move: SlotMove) -> SlotTable:
    """The table once the slots are given."""
    assert table.version == move.version - 1, "a move is made for one table"
    slots = set(move.slots)
    shards = [move.to_shard if slot in slots else shard for slot, shard in enumerate(table.shards)]
    return SlotTable(move.version, tuple(shards))


def next_move(table: SlotTable, serving: Collection[int], draining: Collection[int]) -> SlotMove | None:
    """The next move that brings all slots to the shards that are `serving`, and as many to each; None if they are.

    Slots of `draining` shards go first. A shard that is in neither keeps what it has.
    """
    if not table.version or not serving:
        return None
    counts = Counter(dict.fromkeys([*serving, *draining], 0))
    counts.update([shard_id for shard_id in table.shards if shard_id in counts])
    smallest = min(sorted(serving), key=lambda shard_id: counts[shard_id])
    fewest, most = divmod(counts.total(), len(serving))
    most = fewest + (most > 0)
    leaving = [shard_id for shard_id in sorted(draining) if counts[shard_id]]
    if leaving:
        giver = leaving[0]
        count = min(counts[giver], most - counts[smallest])
    else:
        giver = max(sorted(serving), key=lambda shard_id: counts[shard_id])
        # No more than the one has too many, or the other too few.
        is_even = counts[giver] - counts[smallest] < 2
        count = 0 if is_even else max(1, min(counts[giver] - most, fewest - counts[smallest]))
    if not count:
        return None
    return SlotMove(table.version + 1, giver, smallest, _spread(table, giver, min(count, SLOTS_MOVED_MAX)))


def _spread(table: SlotTable, shard_id: int, count: int) -> tuple[int, ...]:
    """Some of a shard's slots, far from each other: those of one namespace follow each other."""
    mine = [slot for slot, shard in enumerate(table.shards) if shard == shard_id]
    return tuple(mine[number * len(mine) // count] for number in range(count))


def pack_slots(slots: Iterable[int]) -> bytes:
    """The slots of a move, as databases hold them."""
    numbers = list(slots)
    return Struct(f">{len(numbers)}H").pack(*numbers)


def unpack_slots(packed: bytes) -> tuple[int, ...]:
    return Struct(f">{len(packed) // 2}H").unpack(packed)


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
