"""The owner of a later shard answers the gates behind which it waits, whatever the items of other slots do."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.host.registry.kept_gates import GATES_PER_CALL_MAX, SlotGates
from foqs.model.slot_gates import GateState, SlotGate

EARLIER, LATER = 1, 2
EPOCH = 5


class World:
    """A host that owns the later shard, and the gates as the meta database has them."""

    def __init__(self, *gates: SlotGate) -> None:
        self.slots: Any = SimpleNamespace(gates=gates, apply_gates=Mock())
        self.busy_slots: set[int] = set()
        """Of these an item is out."""
        self.calls: list[list[int]] = []
        """The slots of the gates that each call has changed."""
        self.shard: Any = SimpleNamespace(shard_id=LATER, epoch=EPOCH, serial_topics_of=self._topics_of)
        self._namespaces: Any = SimpleNamespace(run_in_lane=self._run_in_lane, read=lambda meta: None)
        self._meta: Any = SimpleNamespace(gates=SimpleNamespace(advance=self._advance))
        self.kept = SlotGates(self._namespaces, cast(Any, None), self.slots)

    def states(self) -> dict[int, GateState]:
        return {gate.slot: gate.state for gate in self.slots.gates}

    async def check(self) -> None:
        await self.kept._wait_behind(self.shard)

    def _topics_of(self, slot: int) -> list[Any]:
        return [SimpleNamespace(is_idle=slot not in self.busy_slots)]

    async def _run_in_lane(self, call: Any) -> None:
        call(self._meta)

    def _advance(self, shard_id: int, epoch: int, gates: list[SlotGate], state: GateState) -> None:
        assert (shard_id, epoch) == (LATER, EPOCH)
        self.calls.append([gate.slot for gate in gates])
        ids = {gate.id for gate in gates}
        self.slots.gates = tuple([gate._replace(state=state) if gate.id in ids else gate for gate in self.slots.gates])


def gate(slot: int, state: GateState) -> SlotGate:
    return SlotGate(slot, EARLIER, LATER, 1_000 + slot, state, 0)


async def test_a_gate_opens_once_no_item_of_its_slot_is_out() -> None:
    world = World(gate(7, GateState.ASKED))
    world.busy_slots = {7}
    await world.check()
    assert world.states() == {7: GateState.SHUT}
    await world.check()
    assert world.states() == {7: GateState.SHUT}
    world.busy_slots = set()
    await world.check()
    assert world.states() == {7: GateState.OPEN}


@pytest.mark.parametrize("busy_count", [1, GATES_PER_CALL_MAX, 3 * GATES_PER_CALL_MAX])
async def test_gates_with_items_out_do_not_hold_up_those_behind_them(busy_count: int) -> None:
    world = World(*[gate(slot, GateState.SHUT) for slot in range(busy_count + 2)])
    world.busy_slots = set(range(busy_count))
    await world.check()
    assert {slot for slot, state in world.states().items() if state is GateState.OPEN} == {busy_count, busy_count + 1}


async def test_a_call_changes_a_bounded_number_of_gates_and_the_next_one_the_others() -> None:
    count = 2 * GATES_PER_CALL_MAX + 3
    world = World(*[gate(slot, GateState.SHUT) for slot in range(count)])
    for _ in range(3):
        await world.check()
    assert [len(slots) for slots in world.calls] == [GATES_PER_CALL_MAX, GATES_PER_CALL_MAX, 3]
    assert set(world.states().values()) == {GateState.OPEN}
