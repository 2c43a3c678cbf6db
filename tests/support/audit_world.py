"""An audit whose table is in memory and whose clock stands still, for tests of its records."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from itertools import count
from typing import Any

from foqs.host.audit.trail import Audit
from foqs.model.audit import AuditRecord
from foqs.model.calls import CallContext
from foqs.model.namespace import NamespaceSettings
from foqs.model.principal import Principal
from tests.support.waiting import PATIENCE_S, until

MAILER = CallContext("10.0.0.7", principal=Principal("mailer"), credential="tk_1")


class Table:
    """Keeps records by their places, as the real one does. `away` is the error of a write, which may have been done."""

    def __init__(self) -> None:
        self.rows: dict[tuple[Any, ...], AuditRecord] = {}
        self.away: Exception | None = None
        self.is_done_though_away = False
        self.tries_count = 0
        self.gate: threading.Event | None = None
        """A write stands still until it is set."""

    def write(self, records: Sequence[AuditRecord]) -> None:
        self.tries_count += 1
        if self.gate is not None:
            assert self.gate.wait(PATIENCE_S)
        if self.away is None or self.is_done_though_away:
            for record in records:
                self.rows.setdefault(record.place, record)
        if self.away is not None:
            raise self.away


class World:
    def __init__(self) -> None:
        self.now_s = 1_000.0
        self.table = Table()
        self.settings: dict[str, NamespaceSettings] = {}
        self.refusals: list[tuple[str, ...]] = []
        self.audit = Audit(
            self.table,
            "a:1#1",
            lambda: round(self.now_s * 1000),
            lambda: self.now_s,
            self.settings.get,
            (f"r-{number}" for number in count(1)),
            lambda *refusal: self.refusals.append(refusal),
        )
        self.result: object = None
        self.error: BaseException | None = None

    async def _call(self, context: CallContext, verb: str, request: Any) -> object:
        if self.error is not None:
            raise self.error
        return self.result

    async def call(self, verb: str, request: Any, context: CallContext = MAILER) -> object:
        return await self.audit.audited(context, verb, request, self._call)

    async def written(self, count: int) -> list[AuditRecord]:
        await until(lambda: len(self.table.rows) >= count)
        return [self.table.rows[place] for place in sorted(self.table.rows)]
