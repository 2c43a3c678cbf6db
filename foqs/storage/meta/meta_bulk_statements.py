"""The statements on the tables of bulk jobs (foqs.storage.meta.meta_bulk), each by its name.

Those of a look, which every host with shards makes twice a second while a job runs, read the index of open parts, and
rows of the host's own shards alone.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Delete, Insert, Select, Update, and_, delete, func, insert, or_, select, update

from foqs.model.cluster import ShardUse
from foqs.model.jobs import JobState
from foqs.storage.meta.meta_jobs import JobKey
from foqs.storage.meta.meta_tables import BULK_JOB, BULK_PART, BULK_RUNNING, JOB, SERVER_NOW_MS, SHARD

_BY_PROGRESS = "FORCE INDEX (bulk_part_by_progress)"
"""Its entries are much smaller than the rows, which servers do not know."""
_RUNS = JOB.c.state == int(JobState.RUNNING)


def named(key: JobKey) -> dict[str, Any]:
    """Return the columns that name a job in the tables of bulk jobs."""
    return {"namespace": key.namespace, "job": key.id.encode()}


def lock_job(key: JobKey) -> Select[Any]:
    """The state of a job, whose record is locked, and with it all its parts."""
    return select(JOB.c.state).where(_is_job(key)).with_for_update()


def read_definition(key: JobKey) -> Select[Any]:
    return select(BULK_JOB).where(_is(BULK_JOB, key))


def read_works(keys: Collection[JobKey]) -> Select[Any]:
    """The definitions of some jobs."""
    return select(BULK_JOB.c.namespace, BULK_JOB.c.job, BULK_JOB.c.work).where(_among(BULK_JOB, keys))


def read_states(keys: Collection[JobKey]) -> Select[Any]:
    """The records of some bulk jobs, without their definitions."""
    is_one = or_(*[_is_job(key) for key in keys])
    return select(JOB.c.namespace, JOB.c.id, JOB.c.state, JOB.c.items_per_second_max, JOB.c.created_at).where(is_one)


def count_open(keys: Collection[JobKey]) -> Select[Any]:
    """The numbers of open parts by job, of shards that were not removed."""
    is_open = and_(_among(BULK_PART, keys), BULK_PART.c.is_done == 0)
    is_known = SHARD.c.state != int(ShardUse.REMOVED)
    return (
        select(BULK_PART.c.namespace, BULK_PART.c.job, func.count().label("count"))
        .join(SHARD, and_(SHARD.c.shard_id == BULK_PART.c.shard_id, is_known))
        .where(is_open)
        .with_hint(BULK_PART, _BY_PROGRESS)
        .group_by(BULK_PART.c.namespace, BULK_PART.c.job)
    )


def count_in_work(keys: Collection[JobKey]) -> Select[Any]:
    """The numbers of pages in work by job."""
    is_in_work = and_(_among(BULK_PART, keys), BULK_PART.c.is_done == 0, BULK_PART.c.page_to > 0)
    return (
        select(BULK_PART.c.namespace, BULK_PART.c.job, func.count().label("count"))
        .where(is_in_work)
        .with_hint(BULK_PART, _BY_PROGRESS)
        .group_by(BULK_PART.c.namespace, BULK_PART.c.job)
    )


def read_own_parts(keys: Collection[JobKey], shard_ids: Collection[int], touch_ms: int) -> Select[Any]:
    """The open parts of some shards, with a flag for those that were not marked for long."""
    is_late = (BULK_PART.c.active_at < SERVER_NOW_MS - touch_ms).label("is_late")
    columns = (BULK_PART.c.namespace, BULK_PART.c.job, BULK_PART.c.shard_id, BULK_PART.c.page_to)
    return select(*columns, is_late).where(_own(keys, shard_ids), BULK_PART.c.is_done == 0)


def touch_own_parts(keys: Collection[JobKey], shard_ids: Collection[int]) -> Update:
    """Mark the open parts of some shards as not waiting."""
    return update(BULK_PART).where(_own(keys, shard_ids), BULK_PART.c.is_done == 0).values(active_at=SERVER_NOW_MS)


def touch_parts(key: JobKey) -> Update:
    return update(BULK_PART).where(_is(BULK_PART, key)).values(active_at=SERVER_NOW_MS)


def read_parts(key: JobKey) -> Select[Any]:
    """The parts of a job, without the keys of pages, which can be many."""
    columns = [column for column in BULK_PART.c if column.name not in ("page_keys", "later_keys")]
    return select(*columns).where(_is(BULK_PART, key))


def read_keys(key: JobKey, shard_id: int) -> Select[Any]:
    """The keys of one part."""
    return select(BULK_PART.c.page_keys, BULK_PART.c.later_keys).where(_is_part(key, shard_id))


def read_late_shards(key: JobKey, waiting_ms: int) -> Select[Any]:
    """The shards whose open parts nobody has marked for long."""
    is_late = and_(BULK_PART.c.is_done == 0, BULK_PART.c.active_at < SERVER_NOW_MS - waiting_ms)
    return select(BULK_PART.c.shard_id).where(_is(BULK_PART, key), is_late)


def write_part(key: JobKey, shard_id: int, values: dict[str, Any]) -> Update:
    return update(BULK_PART).where(_is_part(key, shard_id)).values({**values, "active_at": SERVER_NOW_MS})


def write_count(key: JobKey, items_count: int) -> Update:
    return update(JOB).where(_is_job(key)).values(items_count=items_count, updated_at=SERVER_NOW_MS)


def write_state(key: JobKey, state: JobState) -> Update:
    return update(JOB).where(_is_job(key)).values(state=int(state))


def write_error(key: JobKey, error: bytes) -> Update:
    return update(BULK_JOB).where(_is(BULK_JOB, key)).values(error=error)


def read_times(number: int, from_ms: int) -> Select[Any]:
    """The times of the delayed redrives of a namespace."""
    return select(BULK_JOB.c.deliver_after).where(BULK_JOB.c.namespace == number, BULK_JOB.c.deliver_after >= from_ms)


def read_running(key: JobKey) -> Select[Any]:
    return select(BULK_RUNNING.c.job).where(_is(BULK_RUNNING, key))


def read_all_running() -> Select[Any]:
    """The jobs that hosts know, with their states: some have stopped with a page in work."""
    record = and_(JOB.c.namespace == BULK_RUNNING.c.namespace, JOB.c.id == BULK_RUNNING.c.job)
    return select(BULK_RUNNING.c.namespace, BULK_RUNNING.c.job, _RUNS.label("runs")).outerjoin(JOB, record)


def add_running(key: JobKey) -> Insert:
    return insert(BULK_RUNNING).values(named(key))


def end_running(key: JobKey) -> Delete:
    return delete(BULK_RUNNING).where(_is(BULK_RUNNING, key))


def read_shards() -> Select[Any]:
    """The shards that were not removed."""
    return select(SHARD.c.shard_id).where(SHARD.c.state != int(ShardUse.REMOVED))


def _own(keys: Collection[JobKey], shard_ids: Collection[int]) -> ColumnElement[bool]:
    mine: Sequence[int] = sorted(shard_ids)
    return or_(*[and_(_is(BULK_PART, key), BULK_PART.c.shard_id.in_(mine)) for key in keys])


def _among(table: Any, keys: Collection[JobKey]) -> ColumnElement[bool]:
    return or_(*[_is(table, key) for key in keys])


def _is(table: Any, key: JobKey) -> ColumnElement[bool]:
    return and_(table.c.namespace == key.namespace, table.c.job == key.id.encode())


def _is_part(key: JobKey, shard_id: int) -> ColumnElement[bool]:
    return and_(_is(BULK_PART, key), BULK_PART.c.shard_id == shard_id)


def _is_job(key: JobKey) -> ColumnElement[bool]:
    return and_(JOB.c.namespace == key.namespace, JOB.c.id == key.id.encode())
