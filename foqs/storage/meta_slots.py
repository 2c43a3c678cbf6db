"""The slot table in the meta database: made once, read again and again, and given back to a database that lost it.

It is made on the answers of all shards, none of which may know a table: docs/decisions/0026-slots.md.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable

from sqlalchemy import Connection, func, select
from sqlalchemy.dialects.mysql import insert

from foqs.model import limits
from foqs.model.census import CensusAnswer
from foqs.model.errors import UnavailableError
from foqs.model.slots import NO_SLOTS, SlotTable, first_table
from foqs.storage.meta_tables import SLOT

_STAMP = select(func.count(), func.max(SLOT.c.version))


class SlotRows:
    """The slot table as it was read last: its rows are read again only when its version has changed. For any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._table = NO_SLOTS

    def read(self, connection: Connection) -> SlotTable:
        """The table, or NO_SLOTS: the same object as the last time when it has not changed."""
        with self._lock:
            count, version = connection.execute(_STAMP).one()
            if not count:
                self._table = NO_SLOTS
            elif version != self._table.version:
                rows = connection.execute(select(SLOT.c.shard, SLOT.c.version).order_by(SLOT.c.slot)).all()
                # Of one moment, which the version above may not be.
                self._table = SlotTable(max(row.version for row in rows), tuple(row.shard for row in rows))
            return self._table


def make_slots(connection: Connection, answers: Iterable[CensusAnswer]) -> None:
    """Make the first table over the shards that have answered, unless there is a table.

    The caller holds the row of namespace_number, so that two hosts do not make it at once. Raises UnavailableError when
    one of them knows a table: this database has lost it, and gets it back from that one's owner.
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
    restore_slots(connection, first_table([answer.shard_id for answer in answers]))


def restore_slots(connection: Connection, table: SlotTable) -> None:
    """Write the table where this database has none or an older one."""
    rows = [{"slot": slot, "shard": shard, "version": table.version} for slot, shard in enumerate(table.shards)]
    statement = insert(SLOT).values(rows)
    given, kept = statement.inserted, SLOT.c
    # In this order: the version that is compared with must be the old one.
    changes = [
        ("shard", func.if_(given.version > kept.version, given.shard, kept.shard)),
        ("version", func.greatest(given.version, kept.version)),
    ]
    connection.execute(statement.on_duplicate_key_update(changes))
