"""Defects of gates: of slots that move with items of serial topics, and of dead letters that stay behind."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection

from foqs.host.registry import slot_moves
from foqs.host.registry.held_topics import topics_holding
from foqs.host.registry.kept_gates import SlotGates
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.slot_moves import SlotMover
from foqs.model import limits
from foqs.model.census import Census
from foqs.model.namespace import SettingsTable
from foqs.model.serial import slot_of_serial
from foqs.model.slot_gates import GateState, shut_slots
from foqs.model.slots import SlotMove
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import is_keyed
from foqs.shard.state.engine import ShardState
from foqs.testing.fake_censuses import FakeSlots
from foqs.testing.fake_gates import FakeGates
from tests.sim.gate_runs import run_gates
from tests.sim.planting import in_place_of, runs_with

runs_with(__name__, run_gates)

_insert = FakeGates._insert


@in_place_of(SlotMover, "_make_gates")
async def gives_slots_without_a_gate(self: SlotMover, shard: ShardState, move: SlotMove) -> None:
    return None


@in_place_of(slot_moves, "held_slots")
async def gives_slots_without_gates_for_their_keys(
    shard: ShardState, settings: SettingsTable, slots: Collection[int]
) -> set[int]:
    found = {slot_of_serial(settings, one.namespace, one.name) async for one in _live(shard) if not is_keyed(one.name)}
    return {slot for slot in found if slot is not None and slot in slots}


async def _live(shard: ShardState) -> AsyncIterator[ShardTopic]:
    async for topic, is_live in topics_holding(shard, 0, limits.TOPICS_PER_TICK_MAX):
        if is_live:
            yield topic


@in_place_of(SlotGates, "_holds")
async def ends_a_gate_while_an_item_is_leased_or_delayed(self: SlotGates, shard: ShardState, slot: int) -> bool:
    return any(topic.ready for topic in shard.serial_topics_of(slot))


@in_place_of(SlotGates, "_holds")
async def ends_a_gate_while_items_wait(self: SlotGates, shard: ShardState, slot: int) -> bool:
    return any(topic.leased or topic.delayed for topic in shard.serial_topics_of(slot))


@in_place_of(Slots, "apply_gates")
def delivers_behind_a_gate(self: Slots, shard: ShardState) -> None:
    """It knows its own slots alone, and learns late of gates behind which it waits."""
    table = self.kept_by(shard)
    earlier = [gate for gate in self.gates if gate.from_shard == shard.shard_id]
    shard.shut_slots(shut_slots(shard.shard_id, table, earlier))


@in_place_of(Slots, "apply_gates")
def former_shard_delivers_without_regard_of_a_gate(self: Slots, shard: ShardState) -> None:
    """A shard that has given a slot continues with it if a gate is not open yet, has ended or is missing."""
    shard.shut_slots(frozenset(gate.slot for gate in self.gates if gate.to_shard == shard.shard_id))


@in_place_of(SlotGates, "_has_turn")
async def redrives_a_dead_letter_beside_the_gate(self: SlotGates, shard_id: int, slot: int) -> bool:
    return True


@in_place_of(FakeGates, "make")
def forgets_the_first_gate_when_its_slot_moves_on(self: FakeGates, move: SlotMove, held: Collection[int]) -> None:
    for slot in sorted(set(held).intersection(move.slots)):
        _insert(self, self._reach().tables, slot, move.from_shard, move.to_shard, GateState.OPEN)


@in_place_of(FakeSlots, "begin_move")
def moves_slots_back_to_a_shard_with_older_items(self: FakeSlots, census: Census, move: SlotMove) -> list[int]:
    _, missing = self._censuses.counted(census)
    tables = self._reach().tables
    if not missing and tables.slot_move is None and tables.slots.version == move.version - 1:
        tables.slot_move = move
        self._censuses.end(census)
    return missing


@in_place_of(SlotGates, "_wait_behind")
async def opens_a_gate_while_the_later_shard_has_an_item_out(self: SlotGates, shard: ShardState) -> None:
    self._slots.apply_gates(shard)
    waiting = [gate for gate in self._slots.gates if gate.to_shard == shard.shard_id and gate.state < GateState.OPEN]
    if waiting:
        await self._change(lambda meta: meta.gates.advance(shard.shard_id, shard.epoch, waiting, GateState.OPEN))


@in_place_of(SlotGates, "_end_gates")
async def ends_no_gates(self: SlotGates, shard: ShardState) -> None:
    return None
