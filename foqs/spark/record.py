"""The service's record of a write's job: made before its tasks start, and updated at the end."""

from __future__ import annotations

from foqs.client.sync import AdminClient
from foqs.model import limits
from foqs.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from foqs.model.jobs import Job, JobState
from foqs.spark.driver_output import note
from foqs.spark.options import CONTENT, WriteOptions

AWAY = (UnavailableError, OverloadedError)
"""Errors of hosts, or of their meta database, that do not answer now."""


def take(options: WriteOptions, job_id: str, admin: AdminClient) -> Job | None:
    """Make the record of a job, or take over that of an earlier write. None if the job has to do without a record.

    A job that needs no record runs without one if it cannot be made, for example because too many jobs run. Raises
    AlreadyExistsError for a job that has succeeded.
    """
    found = _found(options, job_id, admin) if options.job_id is not None else None
    if found is not None:
        return _taken_up(options, found, admin)
    try:
        return _made(options, job_id, admin)
    except (InvalidArgumentError, *AWAY) as error:
        if options.job_id is not None or options.items_per_second_max is not None:
            raise
        note(f"this job has no record in the service: {error.message}")
        return None


def take_for_stream(options: WriteOptions, admin: AdminClient) -> bool:
    """Do the same for a micro-batch, and return True if the job has a record. A stream has one if it has a jobId.

    Each of its micro-batches asks again, and none fails because the record is unavailable.
    """
    job_id = options.job_id
    if job_id is None:
        if options.items_per_second_max is not None:
            raise InvalidArgumentError("maxItemsPerSecond of a stream needs a jobId, whose record keeps the rate")
        return False
    try:
        found = _found(options, job_id, admin)
    except AWAY as error:
        # Most likely the record exists. Meanwhile hosts count for it, and hosts that know its rate keep to it.
        note(f"the record of job {job_id} was not read, and its rows go on: {error.message}")
        return True
    if found is None:
        try:
            _made(options, job_id, admin)
        except AWAY as error:
            note(f"job {job_id} has no record for now, and its rows go on uncounted: {error.message}")
            return False
        return True
    rate = found.items_per_second_max if options.items_per_second_max is None else options.items_per_second_max
    if (found.state, found.items_per_second_max) != (JobState.RUNNING, rate):
        try:
            admin.update_job(options.namespace, job_id, state=JobState.RUNNING, items_per_second_max=rate)
        except AWAY as error:
            note(f"the record of job {job_id} was not changed, and its rows go on: {error.message}")
    return True


def store_end(
    options: WriteOptions, job_id: str, admin: AdminClient, state: JobState | None, rows_count: int | None, detail: str
) -> None:
    """Store the end of the job in its record."""
    detail = detail.encode()[: limits.JOB_DETAIL_BYTES_MAX].decode(errors="ignore")
    admin.update_job(options.namespace, job_id, state=state, rows_count=rows_count, detail=detail)


def _found(options: WriteOptions, job_id: str, admin: AdminClient) -> Job | None:
    try:
        return admin.get_job(options.namespace, job_id)
    except NotFoundError:
        return None


def _made(options: WriteOptions, job_id: str, admin: AdminClient) -> Job:
    rate, detail = options.items_per_second_max or 0, f"PySpark into {options.topic or 'topics of the rows'}"
    try:
        made = admin.create_job(options.namespace, job_id, items_per_second_max=rate, detail=detail)
    except AlreadyExistsError:  # Another write of the job was faster.
        return admin.get_job(options.namespace, job_id)
    note(f"this is job {job_id} of namespace {options.namespace}: `foqs spark status` shows it")
    return made


def _taken_up(options: WriteOptions, job: Job, admin: AdminClient) -> Job:
    if job.state is JobState.SUCCEEDED:
        why = ": rows that are equal to its rows would be dropped as repeats" if options.dedup == CONTENT else ""
        raise AlreadyExistsError(
            f"job {job.id!r} of namespace {options.namespace!r} has succeeded, and a jobId names one load{why}; give "
            "the next load another jobId, such as one with its date, or none; to write the same load once more: "
            f"foqs spark update {options.namespace} {job.id} --state running"
        )
    known = ", and rows that it has enqueued are not enqueued again" if options.dedup == CONTENT else ""
    note(f"job {job.id} was begun before and has not succeeded: this write goes on with it{known}")
    rate = options.items_per_second_max or 0
    if rate == 0 != job.items_per_second_max:
        note(f"its rate was {job.items_per_second_max} items per second, and is no limit now, as no option sets one")
    return admin.update_job(options.namespace, job.id, state=JobState.RUNNING, items_per_second_max=rate)
