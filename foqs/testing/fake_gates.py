"""The gates of slots of a meta database in memory: foqs.storage.meta.meta_gates on a tuple."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from foqs.model.slot_gates import GateState, SlotGate
from foqs.model.slots import SlotMove
from foqs.storage.meta.meta_gates import other_move
from foqs.testing.fake_meta_tables import MetaTables, Reach


class FakeGates:
    """The table of gates."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def read(self) -> tuple[SlotGate, ...]:
        return self._reach().tables.gates

    def make(self, move: SlotMove, held: Collection[int]) -> None:
        tables = self._reach().tables
        if tables.slot_move is None or not tables.slot_move.is_same(move):
            raise other_move(move)
        coming = {gate.slot for gate in tables.gates if gate.to_shard == move.from_shard}
        for slot in sorted({*held, *coming}.intersection(move.slots)):
            self._insert(tables, slot, move.from_shard, move.to_shard, GateState.OPEN)

    def ask(self, shard_id: int, epoch: int, slots: Collection[int]) -> None:
        tables = self._reach().tables
        if not _owns(tables, shard_id, epoch):
            return
        moving = set(tables.slot_move.slots) if tables.slot_move is not None else set()
        for slot in sorted(set(slots) - moving - {gate.slot for gate in tables.gates}):
            if tables.slots.shards[slot] != shard_id:
                self._insert(tables, slot, shard_id, tables.slots.shards[slot], GateState.ASKED)

    def advance(self, shard_id: int, epoch: int, gates: Sequence[SlotGate], state: GateState) -> None:
        tables = self._reach().tables
        if _owns(tables, shard_id, epoch):
            ids = {gate.id for gate in gates}
            tables.gates = tuple([one._replace(state=state) if one.id in ids else one for one in tables.gates])

    def end(self, shard_id: int, epoch: int, gates: Sequence[SlotGate]) -> None:
        tables = self._reach().tables
        if _owns(tables, shard_id, epoch):
            waiting = {gate.slot for gate in tables.gates if gate.to_shard == shard_id}
            ids = {gate.id for gate in gates if gate.slot not in waiting}
            tables.gates = tuple([one for one in tables.gates if one.id not in ids])

    def remove(self, slot: int) -> tuple[SlotGate, ...]:
        tables = self._reach().tables
        found = tuple([gate for gate in tables.gates if gate.slot == slot])
        tables.gates = tuple([gate for gate in tables.gates if gate.slot != slot])
        return found

    def _insert(self, tables: MetaTables, slot: int, from_shard: int, to_shard: int, state: GateState) -> None:
        if not any((gate.slot, gate.from_shard) == (slot, from_shard) for gate in tables.gates):
            database = self._reach()
            made = SlotGate(slot, from_shard, to_shard, database.chance.getrandbits(63), state, database.now_ms())
            tables.gates = tuple(sorted([*tables.gates, made]))


def _owns(tables: MetaTables, shard_id: int, epoch: int) -> bool:
    return tables.cluster.shard(shard_id).epoch == epoch
