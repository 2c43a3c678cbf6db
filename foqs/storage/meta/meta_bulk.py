"""The bulk jobs in the meta database: their definitions, the part of each shard, and the list of those that run.

The owner of a shard writes its part, as a whole and with its epoch. Before it changes the items of a page it reports
the page, so that the next owner knows the items that were in work; docs/decisions/0077-bulk-by-filter.md.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import Connection, RowMapping, Select, insert, select

from foqs.model import limits
from foqs.model.bulk_work import (
    ERROR_BYTES_MAX,
    STOPPED_MAX,
    BulkAction,
    BulkPart,
    BulkState,
    BulkWork,
    PartAnswer,
    PartBeginning,
    check_room,
    free_time,
    granted,
    is_repeat,
    parts_to_undo,
    state_of,
    taken,
    too_many,
    undoing,
    with_page,
    work_of,
)
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnknownNamespaceError
from foqs.model.failures import cut
from foqs.model.jobs import Job, JobChanges, JobState, check_change, unknown_job
from foqs.model.namespace import Namespace
from foqs.storage.meta import meta_bulk_statements as sql
from foqs.storage.meta.meta_jobs import JobKey, insert_job, read_jobs, write_changes
from foqs.storage.meta.meta_policies import note_change
from foqs.storage.meta.meta_rows import Blocks, Kind
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import BULK_JOB, BULK_PART, BULK_RUNNING, NAMESPACE, NAMESPACE_NUMBER, SERVER_NOW_MS

TOUCH_MS = 3 * limits.SECOND_MS
"""The pause between two marks of parts that wait for their turn at the owner of their shard."""
WAITING_MS = 10 * limits.SECOND_MS
"""A part without a mark for this long is shown as waiting for an owner."""
_COUNTS = ("epoch", "version", "to_key", "after_key", "page_to", "of_items", "examined", "matched", "done", "skipped",
           "failed")  # fmt: skip
"""Columns that have the names and values of the fields of BulkPart."""


class BulkView(NamedTuple):
    """The part of a running bulk job that hosts need."""

    created_at_ms: int
    items_per_second_max: int
    open_count: int
    """Parts that have not ended, of all shards."""
    mine: frozenset[int]
    """The asked shards with work: those among them, or, if the job has stopped, those with a page in work."""
    is_running: bool = True


def running_blocks() -> Blocks[bool]:
    """The jobs that run, by namespace."""
    return Blocks(Kind(BULK_RUNNING, "job", lambda row: True))


class MetaBulk:
    """The tables of bulk jobs."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def create(
        self,
        connection: Connection,
        namespace: Namespace,
        job_id: str,
        items_per_second_max: int,
        detail: str,
        work: BulkWork,
    ) -> Job:
        """Make a job that runs, with a part for each shard, or return the one that an equal call has made.

        Raises UnknownNamespaceError, AlreadyExistsError, InvalidArgumentError, NotFoundError without the job to undo,
        and OverloadedError.
        """
        connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
        if connection.execute(select(NAMESPACE.c.number).where(NAMESPACE.c.number == namespace.number)).first() is None:
            raise UnknownNamespaceError(f"namespace {namespace.name!r} was deleted: no job was created")
        key = JobKey(namespace.number, job_id)
        if (known := _made_before(connection, namespace, key, work)) is not None:
            return known
        _check_room(connection, namespace.number)
        parts = [BulkPart(shard_id=shard_id) for shard_id in sorted(_shards(connection))]
        if work.action is BulkAction.UNDO:
            work, parts = _undoing(connection, namespace, work)
        if work.action is BulkAction.REDRIVE and work.deliver_after_ms:
            work = replace(work, deliver_after_ms=_own_time(connection, namespace.number, work.deliver_after_ms))
        insert_job(connection, namespace.number, namespace.name, job_id, items_per_second_max, detail)
        own_time = work.deliver_after_ms if work.action is BulkAction.REDRIVE else 0
        values = {**sql.named(key), "work": work.text().encode(), "deliver_after": own_time, "error": b""}
        connection.execute(insert(BULK_JOB).values(values))
        if parts:
            connection.execute(insert(BULK_PART), [_row_of(key, part) for part in parts])
            connection.execute(sql.touch_parts(key))
        connection.execute(sql.add_running(key))
        note_change(connection, namespace.number)
        _end_if_done(connection, key, {part.shard_id: part for part in parts})
        return _job(connection, namespace, job_id)

    @in_transaction
    def update(self, connection: Connection, namespace: Namespace, job_id: str, changes: JobChanges) -> Job:
        """Change a job. Raises NotFoundError, InvalidArgumentError, and OverloadedError if it cannot run again now."""
        key = JobKey(namespace.number, job_id)
        connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
        state = _lock(connection, key)
        if state is None:
            raise unknown_job(job_id, namespace.name)
        check_change(job_id, state, changes)
        if changes.state is JobState.RUNNING and state is JobState.PAUSED:
            _check_goes_on(connection, key)
            _check_room(connection, namespace.number)
            if connection.execute(sql.read_running(key)).first() is None:
                connection.execute(sql.add_running(key))
            connection.execute(sql.write_error(key, b""))
            connection.execute(sql.touch_parts(key))
            note_change(connection, key.namespace)
        write_changes(connection, namespace, job_id, changes)
        if changes.state in (JobState.PAUSED, JobState.CANCELLED):
            _stop(connection, key)
        return _job(connection, namespace, job_id)

    @in_transaction
    def get(self, connection: Connection, namespace: Namespace, job_id: str) -> Job:
        """Read a job with the sums of its parts. Raises NotFoundError."""
        return _job(connection, namespace, job_id)

    @in_transaction
    def views(
        self, connection: Connection, keys: Collection[JobKey], shard_ids: Collection[int]
    ) -> dict[JobKey, BulkView]:
        """Return the jobs that run, for the owner of these shards, whose open parts are marked as not waiting."""
        if not keys or not shard_ids:
            return {}
        open_, in_work = (_counts(connection, statement(keys)) for statement in (sql.count_open, sql.count_in_work))
        mine: dict[JobKey, dict[int, bool]] = {}
        late: set[JobKey] = set()
        for row in connection.execute(sql.read_own_parts(keys, shard_ids, TOUCH_MS)):
            key = JobKey(row.namespace, row.job.decode())
            mine.setdefault(key, {})[row.shard_id] = bool(row.page_to)
            if row.is_late:
                late.add(key)
        if late:
            connection.execute(sql.touch_own_parts(sorted(late), shard_ids))
        views: dict[JobKey, BulkView] = {}
        stale = {*keys}
        for job in connection.execute(sql.read_states(keys)).all():
            key = JobKey(job.namespace, job.id.decode())
            is_running, open_count = job.state == JobState.RUNNING, open_.get(key, 0)
            if not open_count and _lock(connection, key) is JobState.RUNNING:
                _end_if_done(connection, key, _parts(connection, key))  # The last open shard was removed.
                stale.discard(key)
                continue
            if not is_running and not in_work.get(key):
                continue
            stale.discard(key)
            wanted = frozenset(at for at, has_page in mine.get(key, {}).items() if is_running or has_page)
            views[key] = BulkView(job.created_at, job.items_per_second_max, open_count, wanted, is_running)
        for key in sorted(stale):  # Hosts of an earlier version have ended or deleted their records.
            if _lock(connection, key) is not JobState.RUNNING:
                _stop(connection, key)
        return views

    @in_transaction
    def works(self, connection: Connection, keys: Collection[JobKey]) -> dict[JobKey, BulkWork]:
        """Return the definitions of jobs. One of a later version is left out: its parts wait for hosts that know it."""
        rows = connection.execute(sql.read_works(keys)).all()
        found = {JobKey(row.namespace, row.job.decode()): _work_or_none(row.work) for row in rows}
        return {key: work for key, work in found.items() if work is not None}

    @in_transaction
    def take(
        self, connection: Connection, key: JobKey, shard_id: int, epoch: int, beginning: PartBeginning
    ) -> BulkPart | None:
        """Return the part of a shard for its owner, which begins or continues it, or None if it has none to do.

        A job that has stopped has only pages in work, whose items are still to be counted.
        """
        state = _lock(connection, key)
        part = _parts(connection, key).get(shard_id)
        if state is None or part is None or part.is_done or (state is not JobState.RUNNING and not part.page_to):
            return None
        keys = connection.execute(sql.read_keys(key, shard_id)).one()
        part = replace(part, page_keys=_unpacked(keys.page_keys), later_keys=_unpacked(keys.later_keys or b""))
        part = taken(part, epoch, beginning)
        if part is not None:
            _write(connection, key, part)
        return part

    @in_transaction
    def report(
        self, connection: Connection, key: JobKey, part: BulkPart, keys: Sequence[int] = (), page_to: int = 0
    ) -> PartAnswer:
        """Write a part, and take up the next page, with the items of `keys` that match up to `page_to`.

        The job ends with its last part, and pauses if the page has more items than it can take up.
        """
        state = _lock(connection, key)
        parts = _parts(connection, key)
        known = parts.get(part.shard_id)
        if state is None or known is None or known.version != part.version:
            return PartAnswer()
        part = replace(part, version=part.version + 1)
        work = _work(connection, key)
        count = 0
        if keys and state is JobState.RUNNING:
            count = granted(work, {**parts, part.shard_id: part}.values(), len(keys))
            part = with_page(part, keys, page_to, count)
        _write(connection, key, part)
        parts[part.shard_id] = part
        sums = state_of(work, parts, (), "", is_over=False)
        items_count = sums.matched if work.action is BulkAction.COUNT else sums.done
        connection.execute(sql.write_count(key, items_count))
        if state is not JobState.RUNNING:
            _stop(connection, key)
            return PartAnswer(part)
        # The pages in work are ended first, so that as many items are changed as can be.
        if count < len(keys) and not any(one.page_to for one in parts.values()):
            connection.execute(sql.write_error(key, _bytes(too_many(work))))
            connection.execute(sql.write_state(key, JobState.PAUSED))
            _stop(connection, key)
            return PartAnswer(part)
        _end_if_done(connection, key, parts)
        return PartAnswer(part, is_running=True, granted_count=count)


def _work_or_none(text: bytes) -> BulkWork | None:
    """Return a definition, or None for that of a later version: its parts wait for hosts that know it."""
    try:
        return work_of(text)
    except InvalidArgumentError:
        return None


def _work(connection: Connection, key: JobKey) -> BulkWork:
    (row,) = connection.execute(sql.read_works([key])).all()
    return work_of(row.work)


def _undoing(connection: Connection, namespace: Namespace, work: BulkWork) -> tuple[BulkWork, list[BulkPart]]:
    """Return the work and the parts of an UNDO, and cancel the job that it undoes."""
    key = JobKey(namespace.number, work.undoes)
    state = _lock(connection, key)
    row = connection.execute(sql.read_definition(key)).mappings().first()
    if state is None or row is None:
        raise unknown_job(work.undoes, namespace.name)
    now_ms: int = connection.execute(select(SERVER_NOW_MS)).scalar_one()
    undone = undoing(work.undoes, work_of(row["work"]), now_ms)
    if not state.is_over:
        connection.execute(sql.write_state(key, JobState.CANCELLED))
        _stop(connection, key)
    return replace(undone, items_max=work.items_max), parts_to_undo(_parts(connection, key))


def _own_time(connection: Connection, number: int, wanted_ms: int) -> int:
    """Return a time that no other redrive of the namespace has: by it the items of a job are known."""
    return free_time(wanted_ms, set(connection.execute(sql.read_times(number, wanted_ms)).scalars()))


def _check_goes_on(connection: Connection, key: JobKey) -> None:
    """Raise InvalidArgumentError for a job that has all the items that it can take up."""
    row = connection.execute(sql.read_definition(key)).mappings().first()
    if row is not None and row["error"]:
        raise InvalidArgumentError(f"bulk job {key.id} cannot be resumed: {row['error'].decode(errors='replace')}")


def _made_before(connection: Connection, namespace: Namespace, key: JobKey, work: BulkWork) -> Job | None:
    """Return the job of this id. Raises AlreadyExistsError if it has another definition."""
    row = connection.execute(sql.read_definition(key)).mappings().first()
    if row is None:
        return None
    stored = _work_or_none(row["work"])
    if stored is None or not is_repeat(stored, work):
        raise AlreadyExistsError(f"namespace {namespace.name!r} has a job {key.id!r} already, which does other work")
    return _job(connection, namespace, key.id)


def _check_room(connection: Connection, number: int) -> None:
    """Raise OverloadedError if too many jobs run. Leave the pages of jobs that have stopped beyond STOPPED_MAX."""
    running, stopped = [], []
    for row in connection.execute(sql.read_all_running()):
        if row.runs:
            running.append(row.namespace)
        else:
            stopped.append(JobKey(row.namespace, row.job.decode()))
    check_room(running, number)
    for key in stopped[STOPPED_MAX:]:
        connection.execute(sql.end_running(key))
        note_change(connection, key.namespace)


def _end_if_done(connection: Connection, key: JobKey, parts: Mapping[int, BulkPart]) -> None:
    """End a job whose parts have all ended, those of removed shards apart, which have no items."""
    known = _shards(connection)
    if all(part.is_done or part.shard_id not in known for part in parts.values()):
        connection.execute(sql.write_state(key, JobState.SUCCEEDED))
        _stop(connection, key)


def _stop(connection: Connection, key: JobKey) -> None:
    """Let hosts forget a job that has stopped, once no page of it is in work."""
    if any(part.page_to for part in _parts(connection, key).values()):
        return
    if connection.execute(sql.end_running(key)).rowcount:
        note_change(connection, key.namespace)


def _lock(connection: Connection, key: JobKey) -> JobState | None:
    """Lock the record of a job, and with it all its parts, and return its state."""
    state = connection.execute(sql.lock_job(key)).scalar()
    return None if state is None else JobState(state)


def _job(connection: Connection, namespace: Namespace, job_id: str) -> Job:
    found = read_jobs(connection, namespace, [job_id])
    if not found:
        raise unknown_job(job_id, namespace.name)
    (job,) = found
    key = JobKey(namespace.number, job_id)
    row = connection.execute(sql.read_definition(key)).mappings().first()
    return job if row is None else replace(job, bulk=_bulk_state(connection, key, row, job.state))


def _bulk_state(connection: Connection, key: JobKey, row: RowMapping, state: JobState) -> BulkState:
    parts, waiting = _parts(connection, key), []
    if state is JobState.RUNNING:
        waiting = list(connection.execute(sql.read_late_shards(key, WAITING_MS)).scalars())
    work = _work_or_none(row["work"]) or BulkWork()
    return state_of(work, parts, waiting, row["error"].decode(errors="replace"), is_over=state.is_over)


def _counts(connection: Connection, statement: Select[Any]) -> dict[JobKey, int]:
    rows = connection.execute(statement).mappings()
    return {JobKey(row["namespace"], row["job"].decode()): row["count"] for row in rows}


def _unpacked(keys: bytes) -> tuple[int, ...]:
    return struct.unpack(f">{len(keys) // 8}Q", keys)


def _packed(keys: Sequence[int]) -> bytes:
    return struct.pack(f">{len(keys)}Q", *keys)


def _parts(connection: Connection, key: JobKey) -> dict[int, BulkPart]:
    """Read the parts, without the keys of pages."""
    rows = connection.execute(sql.read_parts(key)).mappings()
    return {row["shard_id"]: _part_of(row) for row in rows}


def _part_of(row: RowMapping) -> BulkPart:
    return BulkPart(
        shard_id=row["shard_id"],
        as_of_ms=row["as_of"],
        **{name: row[name] for name in _COUNTS},
        is_done=bool(row["is_done"]),
        is_recounted=bool(row["is_recounted"]),
        error=row["error"].decode(errors="replace"),
    )


def _row_of(key: JobKey, part: BulkPart) -> dict[str, Any]:
    return {
        **sql.named(key),
        "shard_id": part.shard_id,
        "active_at": 0,
        "as_of": part.as_of_ms,
        "page_keys": _packed(part.page_keys),
        "later_keys": _packed(part.later_keys) or None,
        **{name: getattr(part, name) for name in _COUNTS},
        "is_done": int(part.is_done),
        "is_recounted": int(part.is_recounted),
        "error": _bytes(part.error),
    }


def _write(connection: Connection, key: JobKey, part: BulkPart) -> None:
    connection.execute(sql.write_part(key, part.shard_id, _row_of(key, part)))


def _bytes(text: str) -> bytes:
    return cut(text.encode(errors="replace"), ERROR_BYTES_MAX)


def _shards(connection: Connection) -> frozenset[int]:
    """Read the shards that were not removed."""
    return frozenset(connection.execute(sql.read_shards()).scalars())
