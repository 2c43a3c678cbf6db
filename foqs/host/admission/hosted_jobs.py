"""The jobs whose calls this host gets: their rates, and their counts until these are written."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress

import structlog

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.admission.job_rate import JobRate
from foqs.model import limits
from foqs.model.bulk_work import is_bulk_job
from foqs.model.calls import EnqueueResult
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    OverloadedError,
    RateLimitedError,
    UnavailableError,
    shown,
)
from foqs.model.jobs import check_job_id, unknown_job
from foqs.model.namespace import Namespace
from foqs.storage.meta.meta_jobs import JobCounts, JobKey, JobView, MetaJobs

JOBS_PER_WRITE_MAX = 200
"""Jobs of one transaction of the meta database."""
JOIN_MS = limits.JOB_WRITE_MS + limits.SECOND_MS
"""A host that joins a job waits this long before it admits items, because the other hosts first lower their shares."""
_DRAIN_TRIES = 3

_log = structlog.get_logger(__name__)


class HostedJob:
    """The record of one job in this process, with its counts."""

    __slots__ = (
        "answered",
        "called_s",
        "calls_count",
        "duplicates",
        "is_known",
        "is_missing",
        "is_unwritten",
        "is_writing",
        "items",
        "key",
        "rate",
        "rejected",
    )

    def __init__(self, key: JobKey, answered: asyncio.Event) -> None:
        self.key = key
        self.answered = answered
        """Set once the record was read, or the meta database was found to be unreachable."""
        self.is_known = False
        """True if the record was read. Until then no rate applies."""
        self.is_missing = False
        """True if the meta database has no record of it."""
        self.rate = JobRate(0, 0.0)
        self.items = self.duplicates = self.rejected = 0
        self.is_unwritten = False
        """True if it had calls since the last write."""
        self.called_s = 0.0
        self.calls_count = 0
        """Calls in progress."""
        self.is_writing = False
        """True while its counts are written."""

    def counts(self) -> JobCounts:
        return JobCounts(self.items, self.duplicates, self.rejected)


class Admission:
    """A call's part in the rate of its job. The job is not forgotten inside the `with` block of the call."""

    __slots__ = ("_charged_count", "_job", "_now_s", "_rate")

    def __init__(self, job: HostedJob, count: int, now_s: Callable[[], float]) -> None:
        self._job = job
        self._rate = job.rate
        self._charged_count = count if job.rate.items_per_second else 0
        """Items that were charged: none without a rate, so that a rate set since gets none back."""
        self._now_s = now_s

    def __enter__(self) -> Admission:
        self._job.calls_count += 1
        return self

    def __exit__(self, *_: object) -> None:
        self._job.calls_count -= 1
        self._job.called_s = self._now_s()

    def refund(self, count: int) -> None:
        """Stop counting `count` items of the call."""
        self._rate.refund(min(count, self._charged_count))


class Jobs(Service):
    """Counts the results of this host's calls by job, and enforces the rates of jobs.

    Calls that name a job use `open`, `admit` and `note`. The counts are written to the meta database every
    limits.JOB_WRITE_MS, on a separate thread; while it is unreachable they wait here.
    """

    def __init__(self, records: MetaJobs, host_name: str, started_at_ms: int, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic. The host's name and start time identify the process."""
        super().__init__("jobs")
        self._records = records
        self._host_name = host_name
        self._started_at_ms = started_at_ms
        self._now_s = now_s
        self._by_key: dict[JobKey, HostedJob] = {}
        self._asked = asyncio.Event()
        """Set if a job waits to be read."""
        self._writing = asyncio.Lock()
        self._lane = Lane(self.name)
        self._has_started = False

    @property
    def count(self) -> int:
        """Jobs with recent calls."""
        return len(self._by_key)

    # --- calls ---

    async def open(self, namespace: Namespace, job_id: object) -> HostedJob:
        """Return the job that a call names. Its first call waits for its record, up to limits.JOB_LOOK_UP_MS_MAX.

        Raises InvalidArgumentError, NotFoundError, and OverloadedError for too many jobs.
        """
        key = JobKey(namespace.number, check_job_id(job_id))
        if is_bulk_job(key.id):
            raise InvalidArgumentError(f"{shown(key.id)} is a bulk job, to which no enqueue belongs: name another one")
        job = self._by_key.get(key)
        if job is None:
            self._check_room()
            job = self._by_key[key] = HostedJob(key, asyncio.Event())
            self._asked.set()
        job.called_s = self._now_s()
        if not job.answered.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(limits.JOB_LOOK_UP_MS_MAX / 1000):
                    await job.answered.wait()
        if job.is_missing:
            raise unknown_job(key.id, namespace.name)
        return job

    def admit(self, job: HostedJob, count: int) -> Admission:
        """Count `count` items of a call against the rate of the job. Raises RateLimitedError."""
        job.is_unwritten = True
        admission = Admission(job, count, self._now_s)
        wait_ms = job.rate.admit(count, self._now_s() * 1000)
        if wait_ms:
            raise RateLimitedError(
                f"job {job.key.id!r} may enqueue {job.rate.items_per_second:g} items per second on this host: the turn "
                f"of these {count} comes in {wait_ms} ms",
                retry_after_ms=wait_ms,
            )
        return admission

    def note(self, job: HostedJob, result: EnqueueResult) -> None:
        """Count the results of a call. Items with retryable errors do not count as rejected."""
        failed_count = len(result.errors)
        rejected_count = sum([not error.retryable for error in result.errors.values()]) if failed_count else 0
        job.items += len(result.ids) - failed_count - len(result.duplicates)
        job.duplicates += len(result.duplicates)
        job.rejected += rejected_count
        job.is_unwritten = True

    def _check_room(self) -> None:
        if len(self._by_key) < limits.JOBS_PER_HOST_MAX:
            return
        self._forget_idle()
        if len(self._by_key) >= limits.JOBS_PER_HOST_MAX:
            raise OverloadedError(
                f"{len(self._by_key)} jobs have calls on this host, which is its limit: nothing was done, try again",
                retry_after_ms=limits.META_CALLS_RETRY_MS,
            )

    # --- the meta database ---

    async def write(self, key: JobKey) -> None:
        """Write the counts of the job if possible, and read its rate again."""
        job = self._by_key.get(key)
        if job is not None:
            job.is_unwritten = True
            with suppress(FoqsError):
                await self._write()

    async def write_all(self, tries: int = _DRAIN_TRIES) -> None:
        """Write all counts at the end of the host, in up to `tries` attempts. Log the counts that are lost."""
        for _ in range(tries):
            with suppress(FoqsError):
                await self._write()
            left = list(self._unwritten())
            if not left:
                return
        items_count = sum([job.items for job in left])
        _log.error("job_counts_lost", jobs=[job.key.id for job in left[:10]], items_at_most=items_count)

    async def _start(self) -> None:
        self._has_started = True
        outage = OutageLog(self._now_s, "job_counts_not_written", "job_counts_written")
        self._tasks.repeat(self._until_due, self._write_due, outage=outage)

    async def _drain(self) -> None:
        await self.write_all()

    async def _stop(self) -> None:
        if self._has_started:
            # Calls that outlasted the drain have been answered since.
            await self.write_all(tries=1)
        await self._lane.stop()

    async def _until_due(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(limits.JOB_WRITE_MS / 1000 if self._by_key else None):
                await self._asked.wait()
        self._asked.clear()

    async def _write_due(self) -> None:
        try:
            await self._write()
        finally:
            self._forget_idle()

    async def _write(self) -> None:
        """Write and read all jobs that changed or were not read yet. Raises FoqsError."""
        async with self._writing:
            due = list(self._unwritten())
            for start in range(0, len(due), JOBS_PER_WRITE_MAX):
                await self._write_some(due[start : start + JOBS_PER_WRITE_MAX])

    def _unwritten(self) -> Iterator[HostedJob]:
        return (job for job in list(self._by_key.values()) if job.is_unwritten or not job.is_known)

    async def _write_some(self, jobs: list[HostedJob]) -> None:
        counts = {job.key: job.counts() for job in jobs if job.is_known}
        asked = [job.key for job in jobs if not job.is_known]
        for job in jobs:
            job.is_unwritten, job.is_writing = False, True
        try:
            views = await self._lane.run(lambda: self._count(counts, asked))
        except BaseException as error:
            for job in jobs:
                job.is_unwritten = True
                if isinstance(error, UnavailableError):
                    job.answered.set()
            raise
        finally:
            for job in jobs:
                job.is_writing = False
        for job in jobs:
            self._take(job, views.get(job.key))
            job.answered.set()

    def _count(self, counts: dict[JobKey, JobCounts], asked: list[JobKey]) -> dict[JobKey, JobView]:
        return self._records.count(self._host_name, self._started_at_ms, counts, asked)

    def _take(self, job: HostedJob, view: JobView | None) -> None:
        """Apply the record of a job, or forget a job without one."""
        if view is None:
            job.is_missing = True
            self._by_key.pop(job.key, None)
            if any(job.counts()):
                _log.warning("job_without_record", job=job.key.id, namespace=job.key.namespace, counts=job.counts())
            return
        now_ms = self._now_s() * 1000
        share = view.items_per_second_max / view.hosts_count
        if job.is_known:
            job.rate.change(share, now_ms)
            return
        job.is_known = True
        job.rate = JobRate(share, now_ms if view.hosts_count == 1 else now_ms + JOIN_MS)
        job.is_unwritten = job.is_unwritten or any(job.counts())
        job.items += view.counts.items
        job.duplicates += view.counts.duplicates
        job.rejected += view.counts.rejected

    def _forget_idle(self) -> None:
        long_ago_s = self._now_s() - limits.JOB_IDLE_MS / 1000
        for job in list(self._by_key.values()):
            is_idle = job.called_s < long_ago_s and not job.calls_count
            if is_idle and job.is_known and not job.is_unwritten and not job.is_writing:
                del self._by_key[job.key]
