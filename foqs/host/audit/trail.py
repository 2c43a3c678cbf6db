"""The audit of one host: each record goes to the log at once, and to the meta database soon."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from typing import Any, Protocol

import structlog

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.contract.audited import (
    PARTS_MAX,
    AuditKind,
    SettingsOf,
    audit_kind,
    changes_of,
    recorded_namespace,
    subject_of,
    texts_of,
)
from foqs.host.audit.sums import AuditSums, RecordedAddresses, RecordedNames
from foqs.model import limits
from foqs.model.audit import CREDENTIAL_BYTES_MAX, NAME_BYTES_MAX, SIGN_IN, AuditNote, AuditRecord, clipped
from foqs.model.calls import CallContext
from foqs.model.errors import ErrorCode, FoqsError, PermissionDeniedError

WAITING_MAX = 1_000
"""Records that wait to be written to the meta database; the log alone has those beyond."""
WAITING_SUMS_MAX = 800
"""Records that wait before sums, and the further parts of long changes, wait no more: the other places are for changes.
"""
WAITING_SIGN_INS_MAX = 400
"""Records that wait before those of refused sign-ins wait no more, because strangers make them."""
BATCH_RECORDS_MAX = 100
SUMS_PER_TURN_MAX = 100
"""Sums that one turn of the event loop tells."""
ITEMS_WINDOW_MS = 10 * limits.SECOND_MS
READS_WINDOW_MS = 60 * limits.SECOND_MS
REFUSALS_WINDOW_MS = 60 * limits.SECOND_MS
SIGN_INS_WINDOW_MS = 60 * limits.SECOND_MS
_DRAIN_TRIES = 3
_OK = "OK"

_log = structlog.get_logger(__name__)

Call = Callable[[CallContext, str, Any], Awaitable[Any]]


class NoteRefusal(Protocol):
    """Takes a call without permission, by its caller, its verb and its namespace."""

    def __call__(self, who: str, verb: str, namespace: str, /) -> None: ...


class AuditTable(Protocol):
    """The table of records; foqs.storage.meta.meta_audit.MetaAudit is the real one."""

    def write(self, records: Sequence[AuditRecord]) -> None:
        """Add records. One that is there already is left as it is."""


class Audit(Service):
    """Records audited calls. The router of the host gives it the calls, and nothing waits for it but the drain."""

    def __init__(
        self,
        table: AuditTable,
        host_id: str,
        wall_ms: Callable[[], int],
        now_s: Callable[[], float],
        settings_of: SettingsOf,
        request_ids: Iterator[str],
        note_refusal: NoteRefusal,
    ) -> None:
        """`host_id` is that of the process. `settings_of` returns the settings of a namespace before their change.

        `request_ids` are told to callers with errors. `note_refusal` takes the calls without permission.
        """
        super().__init__("audit")
        self._table = table
        self._host_id = host_id
        self._wall_ms = wall_ms
        self._now_s = now_s
        self._settings_of = settings_of
        self._request_ids = request_ids
        self._note_refusal = note_refusal
        self._lane = Lane("audit")
        self._sums = AuditSums()
        self._names = RecordedNames()
        self._addresses = RecordedAddresses()
        self._waiting: deque[AuditRecord] = deque()
        self._asked = asyncio.Event()
        self._writing = asyncio.Lock()
        self._has_failed = False
        self._number = 0
        self.lost_count = 0
        """Records that the log has and the meta database will not have."""

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    async def audited(self, context: CallContext, verb: str, request: Any, call: Call) -> Any:
        """Do the call, and record it with its outcome, also if it is cancelled."""
        began_s, request_id = self._now_s(), next(self._request_ids)
        changes = changes_of(request, self._settings_of)
        outcome = "CANCELLED, outcome unknown"
        try:
            result = await call(context, verb, request)
            outcome = _outcome_of(result)
            return result
        except FoqsError as error:
            outcome = error.code.name
            if error.code is ErrorCode.UNAVAILABLE and not error.nothing_done:
                outcome += ", outcome unknown"
            raise
        except Exception:
            outcome = ErrorCode.INTERNAL.name
            raise
        finally:
            took_ms = round((self._now_s() - began_s) * 1000)
            record = self._record(context, verb, request, outcome, request_id)
            self._add(audit_kind(verb, request) or AuditKind.CHANGE, replace(record, took_ms=took_ms), changes)

    def refused(self, context: CallContext, verb: str, request: Any, error: PermissionDeniedError) -> None:
        """Record a call of a caller without the permissions, which is done all the same while access is permissive.

        Those of one caller, verb and namespace are summed up.
        """
        error.request_id = next(self._request_ids)
        outcome = "permitted: access is permissive" if context.is_permissive else error.code.name
        record = self._record(context, verb, request, outcome, error.request_id)
        record = replace(record, namespace_name=self._names.name_of(record))
        self._note_refusal(record.principal, verb, record.namespace_name)
        self._sum(_kind_key(record), record, REFUSALS_WINDOW_MS)

    def sign_in_refused(self, note: AuditNote) -> None:
        """Record a credential that was refused, or a caller that is held back because it has none.

        Those of one address and outcome are summed up, and so are all addresses beyond the first ADDRESSES_MAX of a
        minute.
        """
        record = note.record(self._wall_ms(), self._host_id)
        record = replace(record, address=self._addresses.recorded(record.address))
        self._sum(_kind_key(record), record, SIGN_INS_WINDOW_MS)

    def noted(self, note: AuditNote) -> None:
        """Record a change of a secret that this host has made or refused by itself."""
        self._publish(note.record(self._wall_ms(), self._host_id), 1, 0, WAITING_MAX)

    def _record(self, context: CallContext, verb: str, request: Any, outcome: str, request_id: str) -> AuditRecord:
        return AuditRecord(
            at_ms=self._wall_ms(),
            host=self._host_id,
            number=0,
            request_id=request_id,
            principal=clipped(context.principal.name, NAME_BYTES_MAX),
            credential=clipped(context.credential, CREDENTIAL_BYTES_MAX),
            address=clipped(context.caller, NAME_BYTES_MAX),
            verb=verb,
            namespace_name=clipped(recorded_namespace(request), NAME_BYTES_MAX),
            subject=subject_of(request),
            changes="",
            outcome=clipped(outcome, NAME_BYTES_MAX),
        )

    def _add(self, kind: AuditKind, record: AuditRecord, changes: Sequence[str]) -> None:
        # A call that did nothing hides nothing, so one record has as much of it as fits.
        parts_max = PARTS_MAX if kind is AuditKind.CHANGE and _has_perhaps_changed(record.outcome) else 1
        first, *others = (replace(record, changes=text) for text in texts_of(changes, parts_max))
        match kind:
            case AuditKind.CHANGE:
                self._publish(first, 1, record.took_ms, WAITING_MAX)
                for other in others:
                    self._publish(other, 0, 0)
            case AuditKind.OF_ITEMS:
                topic = record.subject.partition(" ")[0] if record.subject.startswith("topic=") else ""
                self._sum((*_kind_key(record), topic), first, ITEMS_WINDOW_MS)
            case AuditKind.READ:
                self._sum(_kind_key(record), first, READS_WINDOW_MS)

    def _sum(self, key: tuple[str, ...], record: AuditRecord, window_ms: int) -> None:
        """Add a record to the sum of its kind."""
        for summed in self._sums.add(key, record, window_ms):
            self._publish(*summed)

    def _publish(self, record: AuditRecord, count: int, took_ms: int, waiting_max: int = WAITING_SUMS_MAX) -> None:
        """Log a record, and have it written unless `waiting_max` records wait."""
        if record.verb == SIGN_IN:
            waiting_max = WAITING_SIGN_INS_MAX
        self._number += 1
        # A reader continues from the newest time that it has seen, so no record has a time that is over.
        record = replace(record, at_ms=self._wall_ms(), number=self._number, count=count, took_ms=took_ms)
        _log.info("audit", **asdict(record))
        if len(self._waiting) >= waiting_max:
            self.lost_count += 1
            return
        self._waiting.append(record)
        self._asked.set()

    # --- the meta database ---

    async def _start(self) -> None:
        self._tasks.repeat(self._until_asked, self._write, outage=OutageLog(self._now_s, "audit_away", "audit_back"))
        self._tasks.every(limits.SECOND_MS, self._end_windows)

    async def _drain(self) -> None:
        await self._publish_in_turns(self._sums.end_all())
        for _ in range(_DRAIN_TRIES):
            with suppress(FoqsError):
                await self._write()
            if not self._waiting:
                return

    async def _stop(self) -> None:
        if self._number:
            await self._publish_in_turns(self._sums.end_all())
            with suppress(FoqsError):
                await self._write()
        if self._waiting:
            self.lost_count += len(self._waiting)
            _log.error("audit_lost", count=len(self._waiting))
        await self._lane.stop()

    async def _end_windows(self) -> None:
        now_ms = self._wall_ms()
        self._names.begin_anew(now_ms)
        self._addresses.begin_anew(now_ms)
        await self._publish_in_turns(self._sums.ended(now_ms))

    async def _publish_in_turns(self, sums: Iterator[tuple[AuditRecord, int, int]]) -> None:
        """Publish each sum, a bounded number in a turn of the event loop."""
        for place, summed in enumerate(sums, 1):
            self._publish(*summed)
            if place % SUMS_PER_TURN_MAX == 0:
                await asyncio.sleep(0)

    async def _until_asked(self) -> None:
        await self._asked.wait()
        if self._has_failed:
            await asyncio.sleep(limits.HEARTBEAT_MS / 1000)

    async def _write(self) -> None:
        """Write all records that wait. Raises FoqsError; then they wait on, and their repetition adds none twice."""
        # The drain can write while the task does.
        async with self._writing:
            self._has_failed = True
            while self._waiting:
                batch = [self._waiting[place] for place in range(min(BATCH_RECORDS_MAX, len(self._waiting)))]
                try:
                    await self._lane.run(lambda batch=batch: self._table.write(batch))  # type: ignore[misc]
                except FoqsError:
                    raise
                except Exception:
                    # The same would fail again, and all others wait behind it.
                    self._forget(batch)
                    self.lost_count += len(batch)
                    raise
                self._forget(batch)
            self._has_failed = False
            self._asked.clear()

    def _forget(self, batch: Sequence[AuditRecord]) -> None:
        for _ in batch:
            self._waiting.popleft()


def _outcome_of(result: Any) -> str:
    """OK, and how much of a batch was refused."""
    errors = result if isinstance(result, dict) else getattr(result, "errors", None)
    return f"{_OK}, {len(errors)} refused" if errors else _OK


def _has_perhaps_changed(outcome: str) -> bool:
    return outcome.startswith(_OK) or "unknown" in outcome or outcome == ErrorCode.INTERNAL.name


def _kind_key(record: AuditRecord) -> tuple[str, ...]:
    return record.principal, record.address, record.verb, record.namespace_name, record.outcome
