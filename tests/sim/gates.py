"""The gates of slots as all-knowing eyes see them: gone at the end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from foqs.model.serial import serial_slot
from foqs.model.topic_name import parts
from tests.sim.serials import SERIAL_NAMESPACE

if TYPE_CHECKING:
    from tests.sim.world import World


def standing_gates(world: World) -> Iterator[str]:
    """Yield the gates that should be gone, because nothing is left to consume: only dead letters can hold a topic.

    Behind the gate of a shard that has one, those of later shards stand as well.
    """
    gates = world.meta.tables.gates
    held = {gate.slot for gate in gates if gate.slot in _slots_of_dead(world, gate.from_shard)}
    for gate in gates:
        if gate.slot not in held:
            yield f"a gate should be gone: {gate}"


def _slots_of_dead(world: World, shard_id: int) -> set[int]:
    """Return the slots of the dead letters of serial topics on a shard."""
    tables = world.servers[shard_id].tables
    dead = {-row.lane for row in tables.items.values() if row.lane < 0}
    names = [parts(tables.topics[number][1].decode())[0] for number in dead]
    return {serial_slot(SERIAL_NAMESPACE, name) for name in names}
