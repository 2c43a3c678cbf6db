"""The records of the audit in the meta database. Hosts add records and read them; they change and delete none."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from sqlalchemy import Connection, select, tuple_

from foqs.model.audit import AuditPlace, AuditRecord
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import AUDIT

_NAMES = {"at_ms": "at", "namespace_name": "namespace"}
_COLUMN_OF = {field.name: AUDIT.c[_NAMES.get(field.name, field.name)] for field in fields(AuditRecord)}
_PLACE = (AUDIT.c.at, AUDIT.c.host, AUDIT.c.number)


class MetaAudit:
    """The table of records."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def write(self, connection: Connection, records: Sequence[AuditRecord]) -> None:
        """Add records. One that is there already, since the outcome of its write was unknown, is left as it is."""
        rows = [
            {column.name: _stored(getattr(record, name)) for name, column in _COLUMN_OF.items()} for record in records
        ]
        if rows:
            # The user of the hosts cannot change records, so the statement must not be one that could.
            connection.execute(AUDIT.insert().prefix_with("IGNORE").values(rows))

    @in_transaction
    def page(self, connection: Connection, after: AuditPlace, until_ms: int, limit: int) -> list[AuditRecord]:
        """Return up to `limit` records after a place and before a time, in their order."""
        place = tuple_(*_PLACE) > tuple_(after.at_ms, after.host.encode(), after.number)
        # MariaDB reads all rows for a comparison of tuples alone.
        found = select(*_COLUMN_OF.values()).where(AUDIT.c.at >= after.at_ms, AUDIT.c.at < until_ms, place)
        rows = connection.execute(found.order_by(*_PLACE).limit(limit))
        return [AuditRecord(**{name: _read(row[place]) for place, name in enumerate(_COLUMN_OF)}) for row in rows]

    @in_transaction
    def prune(self, connection: Connection, before_ms: int, limit: int) -> int:
        """Delete up to `limit` of the oldest records from before a time, and return how many. Hosts are not permitted
        to do it.
        """
        old = select(*_PLACE).where(AUDIT.c.at < before_ms).order_by(*_PLACE).limit(limit)
        last = connection.execute(old).all()
        if not last:
            return 0
        at, host, number = last[-1]
        up_to = tuple_(*_PLACE) <= tuple_(at, host, number)
        return connection.execute(AUDIT.delete().where(AUDIT.c.at <= at, up_to)).rowcount


def _stored(value: str | int) -> bytes | int:
    return value.encode() if isinstance(value, str) else value


def _read(value: Any) -> Any:
    return bytes(value).decode(errors="replace") if isinstance(value, bytes | bytearray) else value
