"""The audit of a meta database in memory: foqs.storage.meta.meta_audit on a dictionary."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.model.audit import AuditPlace, AuditRecord
from foqs.testing.fake_meta_tables import Reach


class FakeAudit:
    """The table of records."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    def write(self, records: Sequence[AuditRecord]) -> None:
        table = self._reach().tables.audit
        for record in records:
            table.setdefault(record.place, record)

    def page(self, after: AuditPlace, until_ms: int, limit: int) -> list[AuditRecord]:
        table = self._reach().tables.audit
        return [table[place] for place in sorted(table) if place > after and place.at_ms < until_ms][:limit]

    def prune(self, before_ms: int, limit: int) -> int:
        table = self._reach().tables.audit
        old = [place for place in sorted(table) if place.at_ms < before_ms][:limit]
        for place in old:
            del table[place]
        return len(old)
