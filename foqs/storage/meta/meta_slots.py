"""The slot table in the meta database: made once, read repeatedly, and restored to a database that lost it.

It is made from the answers of all shards, and only if no shard knows a table: docs/decisions/0026-slots.md. The move of
slots that is under way stands beside it: docs/decisions/0036-moving-slots.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence

from sqlalchemy import Connection, delete, func, insert, select, text, update

from foqs.model import limits
from foqs.model.census import Census, CensusAnswer, Closed, ClosedKind, held_of
from foqs.model.cluster import ShardUse
from foqs.model.errors import SlotsBusyError, UnavailableError
from foqs.model.slot_gates import NO_GATES, GateState, SlotGate
from foqs.model.slots import NO_SLOTS, MovePhase, SlotMove, SlotTable, first_table, pack_slots, unpack_slots
from foqs.storage.meta import meta_statements as sql
from foqs.storage.meta.meta_censuses import counted, delete_census, insert_census
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import NAMESPACE_NUMBER, SHARD, SLOT, SLOT_GATE, SLOT_MOVE

_STAMP = select(func.count(), func.max(SLOT.c.version))


class SlotRows:
    """The slot table of the last read. Rows are read again only after their version has changed. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = NO_SLOTS

    def read(self, connection: Connection) -> SlotTable:
        """Return the table, or NO_SLOTS: the same object as the last time if it has not changed."""
        with self._lock:
            count, version = connection.execute(_STAMP).one()
            if not count:
                self._table = NO_SLOTS
            elif version != self._table.version:
                rows = connection.execute(select(SLOT.c.shard, SLOT.c.version).order_by(SLOT.c.slot)).all()
                # All rows are from one moment, which can be later than that of the version above.
                self._table = SlotTable(max(row.version for row in rows), tuple(row.shard for row in rows))
            return self._table


class MetaSlots:
    """The table of slots, and the move that is under way."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def begin(self, connection: Connection, slots: Sequence[int] = ()) -> Census:
        """Ask every shard for its version of the slot table, and close `slots` for items of serial topics meanwhile.

        Raises OverloadedError.
        """
        return insert_census(connection, 0, closes=closed_slots(slots))

    @in_transaction
    def finish(self, connection: Connection, census: Census) -> list[int]:
        """Make the first slot table over all shards, unless one exists, or return the shards without an answer.

        Raises the UnavailableError of make_slots, also if the census is over.
        """
        answers, missing = counted(connection, census)
        if not missing:
            connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
            make_slots(connection, answers)
            delete_census(connection, census)
        return missing

    @in_transaction
    def begin_move(self, connection: Connection, census: Census, move: SlotMove) -> list[int]:
        """Note a move for the table that all shards know, or return the shards that have not answered yet.

        Raises SlotsBusyError if the shard that is to receive the slots has older items of their serial topics. Raises
        UnavailableError if it drains, if this database has another table or a move, if a shard knows a newer table,
        which is then restored here, or if the census is over.
        """
        answers, missing = counted(connection, census)
        if missing:
            return missing
        connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
        check_slots_free(census, move, answers, read_gates(connection))
        version = connection.execute(select(func.max(SLOT.c.version))).scalar() or 0
        taker = select(SHARD.c.state).where(SHARD.c.shard_id == move.to_shard).with_for_update()
        if connection.execute(taker).scalar() != int(ShardUse.SERVING):
            raise UnavailableError(f"shard {move.to_shard} takes no slots now: nothing was done", nothing_done=True)
        newer = [answer.shard_id for answer in answers if answer.slots_version > version]
        if version != move.version - 1 or newer or read_move(connection) is not None:
            raise UnavailableError(
                f"slots move already, or shard {newer[0] if newer else move.from_shard} knows another table of slots "
                f"than that of version {move.version - 1}: nothing was done",
                retry_after_ms=limits.META_CALLS_RETRY_MS,
                nothing_done=True,
            )
        connection.execute(insert(SLOT_MOVE).values(**_columns_of(move)))
        delete_census(connection, census)
        return []

    @in_transaction
    def restore_move(self, connection: Connection, move: SlotMove) -> None:
        """Restore a move that this database has lost, unless it has a move or the table that the move leads to."""
        version = connection.execute(select(func.max(SLOT.c.version))).scalar() or 0
        if version < move.version and read_move(connection) is None:
            connection.execute(insert(SLOT_MOVE).values(**_columns_of(move)))

    @in_transaction
    def set_phase(self, connection: Connection, move: SlotMove) -> bool:
        """Write the phase of the move. Returns False if this move is not the one under way."""
        found = read_move(connection)
        if found is None or not found.is_same(move):
            return False
        connection.execute(update(SLOT_MOVE).values(phase=int(move.phase)))
        return True

    @in_transaction
    def restore(self, connection: Connection, table: SlotTable) -> None:
        """Write the table unless this database has the same or a newer one, and end the move that leads to it."""
        _write(connection, table)


def closed_slots(slots: Sequence[int]) -> tuple[Closed, ...]:
    return tuple([Closed(ClosedKind.SLOT, str(slot)) for slot in slots])


def check_slots_free(
    census: Census, move: SlotMove, answers: Iterable[CensusAnswer], gates: Iterable[SlotGate]
) -> None:
    """Raise SlotsBusyError if slots would return to a shard that still has items of their serial topics.

    These items are older than those of the shard that has the slots now, so no order of the two shards would be right.
    """
    of_taker = [answer for answer in answers if answer.shard_id == move.to_shard]
    busy = {int(one.name) for one in held_of(census, of_taker) if one.kind is ClosedKind.SLOT}
    busy |= {gate.slot for gate in gates if gate.from_shard == move.to_shard}
    if busy := busy.intersection(move.slots):
        raise SlotsBusyError(frozenset(busy), move.to_shard)


def make_slots(connection: Connection, answers: Iterable[CensusAnswer]) -> None:
    """Make the first table over the shards that have answered, unless a table exists.

    The caller locks the row of namespace_number, so that two hosts do not make it at once. Raises UnavailableError if a
    shard knows a table, because this database has then lost it; that shard's owner restores it.
    """
    answers = list(answers)
    if not answers or connection.execute(select(SLOT.c.slot).limit(1)).first() is not None:
        return
    known = [answer.shard_id for answer in answers if answer.slots_version]
    if known:
        raise UnavailableError(
            f"the meta database has lost its slot table, which shard {known[0]} knows: its host brings it back within "
            "seconds; nothing was done, try again",
            retry_after_ms=limits.META_CALLS_RETRY_MS,
            nothing_done=True,
        )
    _write(connection, first_table([answer.shard_id for answer in answers]))


def read_move(connection: Connection) -> SlotMove | None:
    row = connection.execute(select(SLOT_MOVE)).one_or_none()
    if row is None:
        return None
    return SlotMove(row.version, row.from_shard, row.to_shard, unpack_slots(row.slots), MovePhase(row.phase))


def read_gates(connection: Connection) -> tuple[SlotGate, ...]:
    rows = connection.execute(select(SLOT_GATE).order_by(SLOT_GATE.c.slot, SLOT_GATE.c.from_shard)).all()
    if not rows:
        return NO_GATES
    return tuple(
        SlotGate(row.slot, row.from_shard, row.to_shard, row.id, GateState(row.state), row.since_ms) for row in rows
    )


def _columns_of(move: SlotMove) -> dict[str, object]:
    return {
        "one": 1, "version": move.version, "from_shard": move.from_shard, "to_shard": move.to_shard,
        "slots": pack_slots(move.slots), "phase": int(move.phase),
    }  # fmt: skip


def _write(connection: Connection, table: SlotTable) -> None:
    """Write the table unless this database has the same or a newer one, and end the move that leads to it."""
    rows = ", ".join([f"({slot}, {shard}, {table.version})" for slot, shard in enumerate(table.shards)])
    connection.execute(text(sql.WRITE_SLOTS.format(rows)))
    connection.execute(delete(SLOT_MOVE).where(SLOT_MOVE.c.version <= table.version))
