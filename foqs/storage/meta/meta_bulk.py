"""The bulk jobs in the meta database: their definitions, the part of each shard, and the list of those that run.

The owner of a shard writes its part, as a whole and with its epoch. Before it changes the items of a page it reports
the page, so that the next owner knows the items that were in work; docs/decisions/0077-bulk-by-filter.md.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, and_, delete, insert, select, tuple_, update

from foqs.model import limits
from foqs.model.bulk_work import (
    ERROR_BYTES_MAX,
    BulkAction,
    BulkPart,
    BulkState,
    BulkWork,
    PartAnswer,
    PartBeginning,
    check_room,
    free_time,
    granted,
    parts_to_undo,
    state_of,
    taken,
    too_many,
    undoing,
    with_page,
    work_of,
)
from foqs.model.cluster import ShardUse
from foqs.model.errors import InvalidArgumentError, UnknownNamespaceError
from foqs.model.failures import cut
from foqs.model.jobs import Job, JobChanges, JobState, check_change, unknown_job
from foqs.model.namespace import Namespace
from foqs.storage.meta.meta_jobs import JobKey, insert_job, read_jobs, write_changes
from foqs.storage.meta.meta_policies import note_change
from foqs.storage.meta.meta_rows import Blocks, Kind
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import (
    BULK_JOB,
    BULK_PART,
    BULK_RUNNING,
    JOB,
    NAMESPACE,
    NAMESPACE_NUMBER,
    SERVER_NOW_MS,
    SHARD,
)

TOUCH_MS = 3 * limits.SECOND_MS
"""The pause between two marks of parts that wait for their turn at the owner of their shard."""
WAITING_MS = 10 * limits.SECOND_MS
"""A part without a mark for this long is shown as waiting for an owner."""
_COUNTS = ("epoch", "version", "to_key", "after_key", "page_to", "of_items", "examined", "matched", "done", "skipped",
           "failed")  # fmt: skip
"""Columns that have the names and values of the fields of BulkPart."""


class BulkView(NamedTuple):
    """The part of a running bulk job that hosts need."""

    work: BulkWork
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
        """Make a job that runs, with a part for each shard.

        Raises UnknownNamespaceError, AlreadyExistsError, InvalidArgumentError, NotFoundError without the job to undo,
        and OverloadedError.
        """
        connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
        if connection.execute(select(NAMESPACE.c.number).where(NAMESPACE.c.number == namespace.number)).first() is None:
            raise UnknownNamespaceError(f"namespace {namespace.name!r} was deleted: no job was created")
        check_room(list(connection.execute(select(BULK_RUNNING.c.namespace)).scalars()), namespace.number)
        parts = [BulkPart(shard_id=shard_id) for shard_id in sorted(_shards(connection))]
        if work.action is BulkAction.UNDO:
            work, parts = _undoing(connection, namespace, work)
        if work.action is BulkAction.REDRIVE and work.deliver_after_ms:
            work = replace(work, deliver_after_ms=_own_time(connection, namespace.number, work.deliver_after_ms))
        insert_job(connection, namespace.number, namespace.name, job_id, items_per_second_max, detail)
        key = JobKey(namespace.number, job_id)
        own_time = work.deliver_after_ms if work.action is BulkAction.REDRIVE else 0
        values = {**_named(key), "work": work.text().encode(), "deliver_after": own_time, "error": b""}
        connection.execute(insert(BULK_JOB).values(values))
        if parts:
            connection.execute(insert(BULK_PART), [_row_of(key, part) for part in parts])
            connection.execute(update(BULK_PART).where(_is(BULK_PART, key)).values(active_at=SERVER_NOW_MS))
        connection.execute(insert(BULK_RUNNING).values(_named(key)))
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
            check_room(list(connection.execute(select(BULK_RUNNING.c.namespace)).scalars()), namespace.number)
            if connection.execute(select(BULK_RUNNING.c.job).where(_is(BULK_RUNNING, key))).first() is None:
                connection.execute(insert(BULK_RUNNING).values(_named(key)))
            connection.execute(update(BULK_JOB).where(_is(BULK_JOB, key)).values(error=b""))
            connection.execute(update(BULK_PART).where(_is(BULK_PART, key)).values(active_at=SERVER_NOW_MS))
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
        named = [(key.namespace, key.id.encode()) for key in keys]
        if not named:
            return {}
        jobs = (
            select(JOB.c.namespace, JOB.c.id, JOB.c.state, JOB.c.items_per_second_max, BULK_JOB.c.work)
            .join(BULK_JOB, and_(BULK_JOB.c.namespace == JOB.c.namespace, BULK_JOB.c.job == JOB.c.id))
            .where(tuple_(JOB.c.namespace, JOB.c.id).in_(named))
        )
        known = _shards(connection)
        open_: dict[JobKey, set[int]] = {}
        is_open = and_(tuple_(BULK_PART.c.namespace, BULK_PART.c.job).in_(named), BULK_PART.c.is_done == 0)
        late: set[int] = set()
        in_work: dict[JobKey, set[int]] = {}
        columns = (BULK_PART.c.namespace, BULK_PART.c.job, BULK_PART.c.shard_id, BULK_PART.c.page_to)
        is_late = (BULK_PART.c.active_at < SERVER_NOW_MS - TOUCH_MS).label("is_late")
        for row in connection.execute(select(*columns, is_late).where(is_open)):
            key = JobKey(row.namespace, row.job.decode())
            open_.setdefault(key, set()).add(row.shard_id)
            if row.page_to:
                in_work.setdefault(key, set()).add(row.shard_id)
            if row.is_late and row.shard_id in shard_ids:
                late.add(row.shard_id)
        if late:
            connection.execute(
                update(BULK_PART).where(is_open, BULK_PART.c.shard_id.in_(sorted(late))).values(active_at=SERVER_NOW_MS)
            )
        views: dict[JobKey, BulkView] = {}
        stale = {*keys}
        for job in connection.execute(jobs).all():
            key = JobKey(job.namespace, job.id.decode())
            shards = open_.get(key, set())
            if not shards & known and _lock(connection, key) is JobState.RUNNING:
                _end_if_done(connection, key, _parts(connection, key))  # The last open shard was removed.
                stale.discard(key)
                continue
            is_running = job.state == JobState.RUNNING
            if not is_running and key not in in_work:
                continue
            stale.discard(key)
            mine = frozenset((shards if is_running else in_work.get(key, set())) & set(shard_ids))
            work = _work_or_none(job.work)
            if work is not None:
                views[key] = BulkView(work, job.items_per_second_max, len(shards & known), mine, is_running)
        for key in sorted(stale):  # Hosts of an earlier version have ended or deleted their records.
            if _lock(connection, key) is not JobState.RUNNING:
                _stop(connection, key)
        return views

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
        part = taken(replace(part, page_keys=_page_keys(connection, key, shard_id)), epoch, beginning)
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
        counted = {"items_count": items_count, "updated_at": SERVER_NOW_MS}
        connection.execute(update(JOB).where(_is_job(key)).values(counted))
        if state is not JobState.RUNNING:
            _stop(connection, key)
            return PartAnswer(part)
        # The pages in work are ended first, so that as many items are changed as can be.
        if count < len(keys) and not any(one.page_to for one in parts.values()):
            error = _bytes(too_many(work))
            connection.execute(update(BULK_JOB).where(_is(BULK_JOB, key)).values(error=error))
            connection.execute(update(JOB).where(_is_job(key)).values(state=int(JobState.PAUSED)))
            _stop(connection, key)
            return PartAnswer(part)
        _end_if_done(connection, key, parts)
        return PartAnswer(part, is_running=True, granted_count=count)

    @in_transaction
    def note(self, connection: Connection, key: JobKey, shard_id: int, epoch: int, error: str) -> None:
        """Note why the part of a shard waits, for the owner of this epoch."""
        mine = and_(_is(BULK_PART, key), BULK_PART.c.shard_id == shard_id, BULK_PART.c.epoch == epoch)
        connection.execute(update(BULK_PART).where(mine).values(error=_bytes(error)))


def _work_or_none(text: bytes) -> BulkWork | None:
    """Return a definition, or None for that of a later version: its parts wait for hosts that know it."""
    try:
        return work_of(text)
    except InvalidArgumentError:
        return None


def _work(connection: Connection, key: JobKey) -> BulkWork:
    return work_of(connection.execute(select(BULK_JOB.c.work).where(_is(BULK_JOB, key))).scalar_one())


def _undoing(connection: Connection, namespace: Namespace, work: BulkWork) -> tuple[BulkWork, list[BulkPart]]:
    """Return the work and the parts of an UNDO, and cancel the job that it undoes."""
    key = JobKey(namespace.number, work.undoes)
    state = _lock(connection, key)
    row = connection.execute(select(BULK_JOB).where(_is(BULK_JOB, key))).mappings().first()
    if state is None or row is None:
        raise unknown_job(work.undoes, namespace.name)
    now_ms: int = connection.execute(select(SERVER_NOW_MS)).scalar_one()
    undone = undoing(work.undoes, work_of(row["work"]), now_ms)
    if not state.is_over:
        connection.execute(update(JOB).where(_is_job(key)).values(state=int(JobState.CANCELLED)))
        _stop(connection, key)
    return replace(undone, items_max=work.items_max), parts_to_undo(_parts(connection, key))


def _own_time(connection: Connection, number: int, wanted_ms: int) -> int:
    """Return a time that no other redrive of the namespace has: by it the items of a job are known."""
    times = select(BULK_JOB.c.deliver_after).where(
        BULK_JOB.c.namespace == number, BULK_JOB.c.deliver_after >= wanted_ms
    )
    return free_time(wanted_ms, set(connection.execute(times).scalars()))


def _check_goes_on(connection: Connection, key: JobKey) -> None:
    """Raise InvalidArgumentError for a job that has all the items that it can take up."""
    error = connection.execute(select(BULK_JOB.c.error).where(_is(BULK_JOB, key))).scalar()
    if error:
        raise InvalidArgumentError(f"bulk job {key.id} cannot be resumed: {error.decode(errors='replace')}")


def _end_if_done(connection: Connection, key: JobKey, parts: Mapping[int, BulkPart]) -> None:
    """End a job whose parts have all ended, those of removed shards apart, which have no items."""
    known = _shards(connection)
    if all(part.is_done or part.shard_id not in known for part in parts.values()):
        connection.execute(update(JOB).where(_is_job(key)).values(state=int(JobState.SUCCEEDED)))
        _stop(connection, key)


def _stop(connection: Connection, key: JobKey) -> None:
    """Let hosts forget a job that has stopped, once no page of it is in work."""
    if any(part.page_to for part in _parts(connection, key).values()):
        return
    if connection.execute(delete(BULK_RUNNING).where(_is(BULK_RUNNING, key))).rowcount:
        note_change(connection, key.namespace)


def _lock(connection: Connection, key: JobKey) -> JobState | None:
    """Lock the record of a job, and with it all its parts, and return its state."""
    state = connection.execute(select(JOB.c.state).where(_is_job(key)).with_for_update()).scalar()
    return None if state is None else JobState(state)


def _job(connection: Connection, namespace: Namespace, job_id: str) -> Job:
    found = read_jobs(connection, namespace, [job_id])
    if not found:
        raise unknown_job(job_id, namespace.name)
    (job,) = found
    key = JobKey(namespace.number, job_id)
    row = connection.execute(select(BULK_JOB).where(_is(BULK_JOB, key))).mappings().first()
    return job if row is None else replace(job, bulk=_bulk_state(connection, key, row, job.state))


def _bulk_state(connection: Connection, key: JobKey, row: RowMapping, state: JobState) -> BulkState:
    parts, waiting = _parts(connection, key), []
    if state is JobState.RUNNING:
        late = select(BULK_PART.c.shard_id).where(
            _is(BULK_PART, key), BULK_PART.c.is_done == 0, BULK_PART.c.active_at < SERVER_NOW_MS - WAITING_MS
        )
        waiting = list(connection.execute(late).scalars())
    work = _work_or_none(row["work"]) or BulkWork()
    return state_of(work, parts, waiting, row["error"].decode(errors="replace"), is_over=state.is_over)


def _page_keys(connection: Connection, key: JobKey, shard_id: int) -> tuple[int, ...]:
    mine = and_(_is(BULK_PART, key), BULK_PART.c.shard_id == shard_id)
    packed = connection.execute(select(BULK_PART.c.page_keys).where(mine)).scalar_one()
    return struct.unpack(f">{len(packed) // 8}Q", packed)


def _parts(connection: Connection, key: JobKey) -> dict[int, BulkPart]:
    """Read the parts, without the keys of the pages in work, which can be many."""
    columns = [column for column in BULK_PART.c if column.name != "page_keys"]
    rows = connection.execute(select(*columns).where(_is(BULK_PART, key))).mappings()
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
        **_named(key),
        "shard_id": part.shard_id,
        "active_at": 0,
        "as_of": part.as_of_ms,
        "page_keys": struct.pack(f">{len(part.page_keys)}Q", *part.page_keys),
        **{name: getattr(part, name) for name in _COUNTS},
        "is_done": int(part.is_done),
        "is_recounted": int(part.is_recounted),
        "error": _bytes(part.error),
    }


def _write(connection: Connection, key: JobKey, part: BulkPart) -> None:
    mine = and_(_is(BULK_PART, key), BULK_PART.c.shard_id == part.shard_id)
    connection.execute(update(BULK_PART).where(mine).values({**_row_of(key, part), "active_at": SERVER_NOW_MS}))


def _bytes(text: str) -> bytes:
    return cut(text.encode(errors="replace"), ERROR_BYTES_MAX)


def _named(key: JobKey) -> dict[str, Any]:
    return {"namespace": key.namespace, "job": key.id.encode()}


def _is(table: Any, key: JobKey) -> ColumnElement[bool]:
    return and_(table.c.namespace == key.namespace, table.c.job == key.id.encode())


def _is_job(key: JobKey) -> ColumnElement[bool]:
    return and_(JOB.c.namespace == key.namespace, JOB.c.id == key.id.encode())


def _shards(connection: Connection) -> frozenset[int]:
    """Read the shards that were not removed."""
    known = select(SHARD.c.shard_id).where(SHARD.c.state != int(ShardUse.REMOVED))
    return frozenset(connection.execute(known).scalars())
