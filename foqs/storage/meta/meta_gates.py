"""The gates of slots in the meta database: made, opened and ended by the owners of shards, and removed by operators.

The owners of the shards are the only ones who change their gates, each under its epoch, so that one that has lost its
shard changes nothing (docs/decisions/0073-gates.md).
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Connection, and_, delete, select, update
from sqlalchemy.dialects.mysql import insert

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.model.slot_gates import GateState, SlotGate
from foqs.model.slots import SlotMove
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_slots import read_gates, read_move
from foqs.storage.meta.meta_tables import NAMESPACE_NUMBER, SERVER_NOW_MS, SHARD, SLOT, SLOT_GATE

_ID_BITS = 63


class MetaGates:
    """The table of gates."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def read(self, connection: Connection) -> tuple[SlotGate, ...]:
        """Return all gates, by slot. Hosts read them with the namespaces."""
        return read_gates(connection)

    @in_transaction
    def make(self, connection: Connection, move: SlotMove, held: Collection[int]) -> None:
        """Make the gates of a move under way, for the slots in `held`, and for those for which its giver waits itself.

        Raises UnavailableError if this database has another move.
        """
        _lock(connection)
        found = read_move(connection)
        if found is None or not found.is_same(move):
            raise other_move(move)
        coming = select(SLOT_GATE.c.slot).where(SLOT_GATE.c.to_shard == move.from_shard)
        slots = {*held, *connection.execute(coming).scalars()}.intersection(move.slots)
        for slot in sorted(slots):
            _insert(connection, slot, move.from_shard, move.to_shard, GateState.OPEN)

    @in_transaction
    def ask(self, connection: Connection, shard_id: int, epoch: int, slots: Collection[int]) -> None:
        """Ask the shards of these slots to let an earlier shard deliver, whose owner of this epoch asks.

        It leaves out slots that move, have a gate, or lead to the shard itself.
        """
        _lock(connection)
        if not _owns(connection, shard_id, epoch):
            return
        move = read_move(connection)
        moving = set(move.slots) if move is not None else set()
        gated = set(connection.execute(select(SLOT_GATE.c.slot)).scalars())
        wanted = set(slots) - moving - gated
        found = connection.execute(select(SLOT.c.slot, SLOT.c.shard).where(SLOT.c.slot.in_(wanted))).all()
        for row in sorted(found):
            if row.shard != shard_id:
                _insert(connection, row.slot, shard_id, row.shard, GateState.ASKED)

    @in_transaction
    def advance(
        self, connection: Connection, shard_id: int, epoch: int, gates: Sequence[SlotGate], state: GateState
    ) -> None:
        """Write the progress of gates behind which a shard waits. Does nothing unless its owner has this epoch."""
        if _owns(connection, shard_id, epoch):
            for gate in gates:
                connection.execute(update(SLOT_GATE).where(_is(gate)).values(state=int(state)))

    @in_transaction
    def end(self, connection: Connection, shard_id: int, epoch: int, gates: Sequence[SlotGate]) -> None:
        """End gates whose earlier shard has no items any more. Does nothing unless its owner has this epoch.

        A gate stays while its earlier shard itself waits behind another one of the slot.
        """
        _lock(connection)
        if not _owns(connection, shard_id, epoch):
            return
        waiting = set(connection.execute(select(SLOT_GATE.c.slot).where(SLOT_GATE.c.to_shard == shard_id)).scalars())
        for gate in gates:
            if gate.slot not in waiting:
                connection.execute(delete(SLOT_GATE).where(_is(gate)))

    @in_transaction
    def remove(self, connection: Connection, slot: int) -> tuple[SlotGate, ...]:
        """Remove all gates of a slot, also if its shards have items. Returns them."""
        _lock(connection)
        found = [gate for gate in read_gates(connection) if gate.slot == slot]
        connection.execute(delete(SLOT_GATE).where(SLOT_GATE.c.slot == slot))
        return tuple(found)


def other_move(move: SlotMove) -> UnavailableError:
    return UnavailableError(
        f"the meta database has another move of slots than to shard {move.to_shard}: nothing was done",
        retry_after_ms=limits.META_CALLS_RETRY_MS,
        nothing_done=True,
    )


def _lock(connection: Connection) -> None:
    """Lock the row that all changes of slots lock."""
    connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())


def _owns(connection: Connection, shard_id: int, epoch: int) -> bool:
    """True if the shard's last owner has this epoch; it stays so until the end of the transaction."""
    mine = select(SHARD.c.epoch).where(SHARD.c.shard_id == shard_id).with_for_update()
    return bool(connection.execute(mine).scalar() == epoch)


def _is(gate: SlotGate) -> ColumnElement[bool]:
    columns = SLOT_GATE.c
    return and_(columns.slot == gate.slot, columns.from_shard == gate.from_shard, columns.id == gate.id)


def _insert(connection: Connection, slot: int, from_shard: int, to_shard: int, state: GateState) -> None:
    values = {
        "slot": slot, "from_shard": from_shard, "to_shard": to_shard, "id": secrets.randbits(_ID_BITS),
        "state": int(state), "since_ms": SERVER_NOW_MS,
    }  # fmt: skip
    connection.execute(insert(SLOT_GATE).prefix_with("IGNORE").values(values))
