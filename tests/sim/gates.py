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
    """Yield the gates that should be gone, because nothing is left to consume: only dead letters can hold a topic."""
    for gate in world.meta.tables.gates:
        tables = world.servers[gate.from_shard].tables
        dead = {-row.lane for row in tables.items.values() if row.lane < 0}
        names = [parts(tables.topics[number][1].decode())[0] for number in dead]
        if gate.slot not in [serial_slot(SERIAL_NAMESPACE, name) for name in names]:
            yield f"a gate should be gone: {gate}"
