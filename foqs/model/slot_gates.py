"""Gates of slots: a slot's serial topics deliver from one shard at a time while their items are on several.

A slot moves with its serial topics. The items that came before stay on the former shard, and new ones come to the
next shard, which waits behind a gate until the former one has delivered all of its own (docs/decisions/0073-gates.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from foqs.model.slots import SLOTS_COUNT, SlotTable

ALL_SLOTS = frozenset(range(SLOTS_COUNT))
NO_GATES: tuple[SlotGate, ...] = ()


class GateState(IntEnum):
    """The progress of a gate. A gate of a move begins as OPEN, because its later shard has delivered nothing yet."""

    ASKED = 0
    """The earlier shard wants to deliver again. The later one can still deliver."""
    SHUT = 1
    """The later shard claims nothing more. It can have an item under lease, or one that waits for its next attempt."""
    OPEN = 2
    """The later shard has no item out, so the earlier shard delivers."""


class SlotGate(NamedTuple):
    """A gate of one slot: `to_shard` delivers no item of its serial topics while it stands."""

    slot: int
    from_shard: int
    """The earlier shard, whose items come first."""
    to_shard: int
    id: int
    """A random number, which no later gate of the two shards has."""
    state: GateState
    since_ms: int
    """The time at which the gate was made, by the clock of the meta database."""


def shut_slots(shard_id: int, table: SlotTable | None, gates: Iterable[SlotGate]) -> frozenset[int]:
    """Return the slots of whose serial topics a shard delivers nothing.

    `table` is the shard's own copy of the slot table. A shard delivers for the slots of its copy, and for those whose
    gate is open for its older items. A gate behind which it waits takes precedence.
    """
    if table is None or not table.version:
        return ALL_SLOTS
    delivering = {slot for slot, owner in enumerate(table.shards) if owner == shard_id}
    waiting: set[int] = set()
    for gate in gates:
        if gate.to_shard == shard_id:
            waiting.add(gate.slot)
        elif gate.from_shard == shard_id:
            (delivering if gate.state is GateState.OPEN else waiting).add(gate.slot)
    return ALL_SLOTS - (delivering - waiting)
