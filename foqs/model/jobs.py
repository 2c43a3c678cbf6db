"""A job: a load of many calls, such as a Spark write. Its record counts the items and keeps the rate."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

from foqs.model import limits
from foqs.model.bulk_work import BulkState, is_bulk_job
from foqs.model.errors import InvalidArgumentError, NotFoundError, shown

COPY_ID_BYTES = 10
"""Random bytes in the id of a job that copies items for a new consumer group."""
_COPY_ID = re.compile(rf"copy-[0-9a-f]{{{2 * COPY_ID_BYTES}}}", re.ASCII)
_ID = re.compile(rf"[A-Za-z0-9._-]{{1,{limits.JOB_ID_CHARS_MAX}}}", re.ASCII)


class JobState(IntEnum):
    """The state of a job, as its client sets it. Hosts change that of jobs that hosts do: copies and bulk jobs."""

    RUNNING = 0
    SUCCEEDED = 1
    FAILED = 2
    PAUSED = 3
    """Only of a bulk job: RUNNING resumes it."""
    CANCELLED = 4
    """Only of a bulk job."""

    @property
    def is_over(self) -> bool:
        """True if the job has ended for good."""
        return self not in (JobState.RUNNING, JobState.PAUSED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job record. Times are milliseconds since the epoch, on the clock of the meta database's server.

    updated_at_ms: time of the last update or count.  items_per_second_max: 0 for no limit.
    items_count, duplicates_count, rejected_count: the hosts' counts for the calls that named the job.
    rows_count: the client's own count at the end of the job.  bulk: only of a bulk job, and not in lists.
    """

    id: str
    namespace_name: str
    created_at_ms: int
    updated_at_ms: int
    state: JobState = JobState.RUNNING
    items_per_second_max: int = 0
    items_count: int = 0
    duplicates_count: int = 0
    rejected_count: int = 0
    rows_count: int = 0
    detail: str = ""
    bulk: BulkState | None = None


@dataclass(slots=True)
class JobPage:
    """A page of jobs, the newest first. `next_page_token` is for the next page; it is "" on the last page."""

    jobs: list[Job]
    next_page_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class JobChanges:
    """Changes of a job. Fields that are None stay as they are."""

    state: JobState | None = None
    items_per_second_max: int | None = None
    rows_count: int | None = None
    detail: str | None = None


def copy_job_id(random_bytes: bytes) -> str:
    """Return the id of a job that copies items for a new consumer group."""
    return f"copy-{random_bytes.hex()}"


def is_copy_job(job_id: object) -> bool:
    """Return True for the id of a job that copies items for a new consumer group."""
    return isinstance(job_id, str) and _COPY_ID.fullmatch(job_id) is not None


def check_job_id(job_id: object) -> str:
    """Return the id, or raise InvalidArgumentError."""
    if not isinstance(job_id, str) or _ID.fullmatch(job_id) is None:
        raise InvalidArgumentError(
            f"job id {shown(job_id)} is not valid: use 1 to {limits.JOB_ID_CHARS_MAX} of A-Z a-z 0-9 . _ -"
        )
    return job_id


def checked_changes(
    state: int | None, items_per_second_max: int | None, rows_count: int | None, detail: str | None
) -> JobChanges:
    """Return the changes. Raises InvalidArgumentError, which names every field out of its bounds."""
    problems = []
    if state is not None and state not in frozenset(JobState):
        named = ", ".join([f"{known.name} ({known.value})" for known in JobState])
        problems.append(f"state {state!r:.40} is not one of {named}")
    for name, value, most in (
        ("items_per_second_max", items_per_second_max, limits.JOB_ITEMS_PER_SECOND_MAX),
        ("rows_count", rows_count, limits.NEVER_MS),
    ):
        if value is not None and not 0 <= value <= most:
            problems.append(f"{name} {value!r:.40} is not within 0..{most}")
    if detail is not None and len(detail.encode()) > limits.JOB_DETAIL_BYTES_MAX:
        problems.append(f"detail of {len(detail.encode())} bytes is over the limit of {limits.JOB_DETAIL_BYTES_MAX}")
    if problems:
        raise InvalidArgumentError("job: " + "; ".join(problems))
    return JobChanges(
        state=None if state is None else JobState(state),
        items_per_second_max=items_per_second_max,
        rows_count=rows_count,
        detail=detail,
    )


def check_change(job_id: str, before: JobState, changes: JobChanges) -> None:
    """Raise InvalidArgumentError for a state that a bulk job cannot come to, or that only a bulk job can have."""
    state = changes.state
    if state is None:
        return
    if not is_bulk_job(job_id):
        if state in (JobState.PAUSED, JobState.CANCELLED):
            raise InvalidArgumentError(
                f"job {job_id} is no bulk job and cannot be {state.name}: SUCCEEDED or FAILED ends it"
            )
        return
    if state in (JobState.SUCCEEDED, JobState.FAILED):
        raise InvalidArgumentError(
            f"hosts do bulk job {job_id} and end it: set PAUSED, RUNNING or CANCELLED, not {state.name}"
        )
    if before.is_over and state is not before:
        raise InvalidArgumentError(f"bulk job {job_id} is {before.name} and stays so: make another one")


def unknown_job(job_id: str, namespace_name: str) -> NotFoundError:
    return NotFoundError(f"namespace {namespace_name!r} has no job {job_id!r}: create it first, nothing was done")
