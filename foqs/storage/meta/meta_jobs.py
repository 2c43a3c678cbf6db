"""The job records in the meta database: made and changed by admin calls, counted by hosts.

A host writes its total counts of a job, in a row of its own, and never the difference to the last write, so it can
repeat a write whose response was lost. Why, and the losses in a crash: docs/decisions/0028-bulk-and-jobs.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Connection, RowMapping, Select, and_, delete, func, or_, select, tuple_, update
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import IntegrityError

from foqs.model import limits
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnknownNamespaceError
from foqs.model.jobs import Job, JobChanges, JobState, unknown_job
from foqs.model.namespace import Namespace
from foqs.storage.meta.meta_sessions import MetaSessions, in_transaction
from foqs.storage.meta.meta_tables import (
    BULK_JOB,
    BULK_PART,
    BULK_RUNNING,
    JOB,
    JOB_HOST,
    NAMESPACE,
    NAMESPACE_NUMBER,
    SERVER_NOW_MS,
)

_EXPIRED_AT_ONCE_MAX = 100
"""Old records that one creation deletes at most."""
_COUNTS = ("items_count", "duplicates_count", "rejected_count")
"""The columns of the fields of JobCounts."""
_BULK = (BULK_RUNNING, BULK_PART, BULK_JOB)
"""The tables of bulk jobs (foqs.storage.meta.meta_bulk), whose rows end with the records."""
_OVER = [int(state) for state in JobState if state.is_over]
_OF_JOB = (JOB.c.namespace, JOB.c.id)
_OF_HOST_ROW = (JOB_HOST.c.namespace, JOB_HOST.c.job)


class JobKey(NamedTuple):
    namespace: int
    id: str


class JobCounts(NamedTuple):
    """Counts of the positions in calls that named a job, by outcome."""

    items: int = 0
    duplicates: int = 0
    rejected: int = 0


class JobView(NamedTuple):
    """The part of a job record that hosts need."""

    items_per_second_max: int
    hosts_count: int
    """Hosts that had calls of the job within limits.JOB_ACTIVE_MS, including this one."""
    counts: JobCounts
    """The counts written by this process of this host."""


class MetaJobs:
    """The records of jobs, and the counts of hosts."""

    def __init__(self, sessions: MetaSessions) -> None:
        self._sessions = sessions

    @in_transaction
    def create(
        self, connection: Connection, namespace: Namespace, job_id: str, items_per_second_max: int, detail: str
    ) -> Job:
        """Make a record. Raises AlreadyExistsError, UnknownNamespaceError, and InvalidArgumentError without room."""
        # Serialize creations, so that the counts of records hold.
        connection.execute(select(NAMESPACE_NUMBER.c.last).with_for_update())
        if connection.execute(select(NAMESPACE.c.number).where(NAMESPACE.c.number == namespace.number)).first() is None:
            raise UnknownNamespaceError(f"namespace {namespace.name!r} was deleted: no job was created")
        insert_job(connection, namespace.number, namespace.name, job_id, items_per_second_max, detail)
        return read_jobs(connection, namespace, [job_id])[0]

    @in_transaction
    def update(self, connection: Connection, namespace: Namespace, job_id: str, changes: JobChanges) -> Job:
        """Change the fields that are not None in `changes`. Raises NotFoundError."""
        write_changes(connection, namespace, job_id, changes)
        return read_jobs(connection, namespace, [job_id])[0]

    @in_transaction
    def get(self, connection: Connection, namespace: Namespace, job_id: str) -> Job:
        """Read a job. Raises NotFoundError."""
        found = read_jobs(connection, namespace, [job_id])
        if not found:
            raise unknown_job(job_id, namespace.name)
        return found[0]

    @in_transaction
    def page(
        self, connection: Connection, namespace: Namespace, after: tuple[int, str] | None, limit: int
    ) -> list[Job]:
        """Return `limit` jobs, newest first, that come after a job with this creation time and id."""
        mine = select(JOB.c.id).where(JOB.c.namespace == namespace.number)
        if after is not None:
            created_at_ms, last_id = after
            is_older = JOB.c.created_at < created_at_ms
            mine = mine.where(or_(is_older, and_(JOB.c.created_at == created_at_ms, JOB.c.id > last_id.encode())))
        # A namespace has few enough jobs for a sort.
        found = connection.execute(mine.order_by(JOB.c.created_at.desc(), JOB.c.id).limit(limit))
        return read_jobs(connection, namespace, [row.id.decode() for row in found])

    @in_transaction
    def count(
        self,
        connection: Connection,
        host_name: str,
        started_at_ms: int,
        counts: Mapping[JobKey, JobCounts],
        asked: Collection[JobKey] = (),
    ) -> dict[JobKey, JobView]:
        """Write this process's total counts of each job, and read the records of these jobs and of the `asked` ones.

        A job without a record is missing in the result. A process asks for a job first, and counts on from the result,
        which is 0 unless the process had forgotten the job. The counts of an earlier process of this host are added to
        the record.
        """
        keys = sorted({*counts, *asked})
        rates = _rates(connection, keys)
        if not rates:
            return {}
        others = dict.fromkeys(rates, 1)
        mine: dict[JobKey, JobCounts] = {}
        for row in connection.execute(_host_rows(rates)):
            key = JobKey(row.namespace, row.job.decode())
            if row.host.decode() != host_name:
                others[key] += row.is_active
            elif row.started_at == started_at_ms:
                mine[key] = JobCounts(row.items_count, row.duplicates_count, row.rejected_count)
            else:
                _fold(connection, key, host_name, row.started_at)
        mine |= {key: counted for key, counted in counts.items() if key in rates}
        _write(connection, host_name, started_at_ms, {key: mine.get(key, JobCounts()) for key in rates})
        return {key: JobView(rate, others[key], mine.get(key, JobCounts())) for key, rate in rates.items()}


def insert_job(
    connection: Connection, number: int, namespace_name: str, job_id: str, items_per_second_max: int, detail: str
) -> None:
    """Make a record under the lock of all creations.

    Raises AlreadyExistsError, and InvalidArgumentError without room.
    """
    key = JobKey(number, job_id)
    if connection.execute(select(JOB.c.id).where(_is(key))).first() is not None:
        raise _exists(namespace_name, job_id)
    _make_room(connection, number, namespace_name)
    values = {
        "namespace": number,
        "id": job_id.encode(),
        "created_at": SERVER_NOW_MS,
        "updated_at": SERVER_NOW_MS,
        "state": int(JobState.RUNNING),
        "items_per_second_max": items_per_second_max,
        **dict.fromkeys(_COUNTS, 0),
        "rows_count": 0,
        "detail": detail.encode(),
    }
    try:
        connection.execute(JOB.insert().values(values))
    except IntegrityError as error:
        raise _exists(namespace_name, job_id) from error


def write_changes(connection: Connection, namespace: Namespace, job_id: str, changes: JobChanges) -> None:
    """Change the fields of a record that are not None in `changes`. Raises NotFoundError."""
    values: dict[str, object] = {name: value for name, value in asdict(changes).items() if value is not None}
    if changes.detail is not None:
        values["detail"] = changes.detail.encode()
    mine = _is(JobKey(namespace.number, job_id))
    if not connection.execute(update(JOB).where(mine).values(updated_at=SERVER_NOW_MS, **values)).rowcount:
        raise unknown_job(job_id, namespace.name)


def delete_jobs_of(connection: Connection, namespace: int) -> None:
    """Delete the records of a namespace that is being deleted."""
    for table in (JOB_HOST, *_BULK):
        connection.execute(delete(table).where(table.c.namespace == namespace))
    connection.execute(delete(JOB).where(JOB.c.namespace == namespace))


def _is(key: JobKey) -> ColumnElement[bool]:
    return and_(JOB.c.namespace == key.namespace, JOB.c.id == key.id.encode())


def _pairs(keys: Collection[JobKey]) -> list[tuple[int, bytes]]:
    return [(key.namespace, key.id.encode()) for key in keys]


def _exists(namespace_name: str, job_id: str) -> AlreadyExistsError:
    return AlreadyExistsError(f"namespace {namespace_name!r} has a job {job_id!r} already")


def _make_room(connection: Connection, number: int, namespace_name: str) -> None:
    """Delete expired records, and the job that ended first if the limit is reached."""
    oldest = select(*_OF_JOB).order_by(JOB.c.updated_at)
    expired = oldest.where(JOB.c.updated_at < SERVER_NOW_MS - limits.JOB_KEPT_MS).limit(_EXPIRED_AT_ONCE_MAX)
    _delete(connection, expired)
    mine = JOB.c.namespace == number
    for is_counted, most, where in (
        (mine, limits.JOBS_PER_NAMESPACE_MAX, f"namespace {namespace_name!r} has"),
        (JOB.c.namespace >= 0, limits.JOBS_MAX, "there are"),
    ):
        count: int = connection.execute(select(func.count()).select_from(JOB).where(is_counted)).scalar_one()
        ended = oldest.where(is_counted, JOB.c.state.in_(_OVER)).limit(1)
        if count >= most and not _delete(connection, ended):
            raise InvalidArgumentError(
                f"{where} {count} jobs that run, and the limit is {most}: no job was created; end some "
                "(updateJob with state SUCCEEDED or FAILED)"
            )


def _delete(connection: Connection, found: Select[Any]) -> int:
    """Delete the jobs that the query finds, and return their number."""
    keys = [JobKey(row.namespace, row.id.decode()) for row in connection.execute(found)]
    if keys:
        for table in (JOB_HOST, *_BULK):
            connection.execute(delete(table).where(tuple_(table.c.namespace, table.c.job).in_(_pairs(keys))))
        connection.execute(delete(JOB).where(tuple_(*_OF_JOB).in_(_pairs(keys))))
    return len(keys)


def _rates(connection: Connection, keys: Sequence[JobKey]) -> dict[JobKey, int]:
    """Mark the jobs as alive, and return the rates of the existing ones."""
    if not keys:
        return {}
    mine = tuple_(*_OF_JOB).in_(_pairs(keys))
    found = connection.execute(select(*_OF_JOB, JOB.c.items_per_second_max).where(mine))
    rates = {JobKey(row.namespace, row.id.decode()): row.items_per_second_max for row in found}
    if rates:
        connection.execute(update(JOB).where(mine).values(updated_at=SERVER_NOW_MS))
    return rates


def _host_rows(keys: Collection[JobKey]) -> Select[Any]:
    is_active = (JOB_HOST.c.active_at > SERVER_NOW_MS - limits.JOB_ACTIVE_MS).label("is_active")
    return select(JOB_HOST, is_active).where(tuple_(*_OF_HOST_ROW).in_(_pairs(keys)))


def _fold(connection: Connection, key: JobKey, host_name: str, started_at_ms: int) -> None:
    """Add the counts of an ended process to the record."""
    row = and_(
        JOB_HOST.c.namespace == key.namespace,
        JOB_HOST.c.job == key.id.encode(),
        JOB_HOST.c.host == host_name.encode(),
        JOB_HOST.c.started_at == started_at_ms,
    )
    counted = connection.execute(select(*(JOB_HOST.c[name] for name in _COUNTS)).where(row).with_for_update()).first()
    if counted is None:
        return
    added = {name: JOB.c[name] + count for name, count in zip(_COUNTS, counted, strict=True)}
    connection.execute(update(JOB).where(_is(key)).values(added))
    connection.execute(delete(JOB_HOST).where(row))


def _write(connection: Connection, host_name: str, started_at_ms: int, counts: Mapping[JobKey, JobCounts]) -> None:
    rows = [
        {
            "namespace": key.namespace,
            "job": key.id.encode(),
            "host": host_name.encode(),
            "started_at": started_at_ms,
            "active_at": SERVER_NOW_MS,
            **dict(zip(_COUNTS, counted, strict=True)),
        }
        for key, counted in counts.items()
    ]
    statement = insert(JOB_HOST).values(rows)
    connection.execute(
        statement.on_duplicate_key_update({name: statement.inserted[name] for name in ("active_at", *_COUNTS)})
    )


def read_jobs(connection: Connection, namespace: Namespace, job_ids: Sequence[str]) -> list[Job]:
    """Read the jobs with these ids, in their order, with the counts of all hosts."""
    if not job_ids:
        return []
    ids = [job_id.encode() for job_id in job_ids]
    rows = connection.execute(select(JOB).where(JOB.c.namespace == namespace.number, JOB.c.id.in_(ids))).mappings()
    sums = [func.sum(JOB_HOST.c[name]).label(name) for name in _COUNTS]
    of_hosts = select(JOB_HOST.c.job, *sums).where(JOB_HOST.c.namespace == namespace.number, JOB_HOST.c.job.in_(ids))
    by_id = {row["id"]: row for row in rows}
    counted = {row.job: row for row in connection.execute(of_hosts.group_by(JOB_HOST.c.job))}
    return [_job(by_id[one], counted.get(one), namespace.name) for one in ids if one in by_id]


def _job(row: RowMapping, counted: object, namespace_name: str) -> Job:
    def in_all(name: str) -> int:
        return int(row[name]) + int(getattr(counted, name, 0))

    return Job(
        id=row["id"].decode(),
        namespace_name=namespace_name,
        created_at_ms=row["created_at"],
        updated_at_ms=row["updated_at"],
        state=JobState(row["state"]),
        items_per_second_max=row["items_per_second_max"],
        items_count=in_all("items_count"),
        duplicates_count=in_all("duplicates_count"),
        rejected_count=in_all("rejected_count"),
        rows_count=row["rows_count"],
        detail=row["detail"].decode(),
    )
