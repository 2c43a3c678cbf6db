"""The job records of a meta database in memory: foqs.storage.meta.meta_jobs on dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from foqs.model import limits
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError
from foqs.model.jobs import Job, JobChanges, unknown_job
from foqs.model.namespace import Namespace
from foqs.storage.meta.meta_jobs import JobCounts, JobKey, JobView
from foqs.testing.fake_meta_tables import JobTables, Reach


class FakeJobs:
    """The records of jobs, and the counts of hosts."""

    def __init__(self, reach: Reach) -> None:
        self._reach = reach

    @property
    def _tables(self) -> JobTables:
        return self._reach().tables.jobs

    def create(self, namespace: Namespace, job_id: str, items_per_second_max: int, detail: str) -> Job:
        jobs, key, now_ms = self._tables.jobs, JobKey(namespace.number, job_id), self._reach().now_ms()
        if key in jobs:
            raise AlreadyExistsError(f"namespace {namespace.name!r} has a job {job_id!r} already")
        self._make_room(namespace.number)
        jobs[key] = Job(
            id=job_id,
            namespace_name=namespace.name,
            created_at_ms=now_ms,
            updated_at_ms=now_ms,
            items_per_second_max=items_per_second_max,
            detail=detail,
        )
        return jobs[key]

    def update(self, namespace: Namespace, job_id: str, changes: JobChanges) -> Job:
        jobs, key = self._tables.jobs, JobKey(namespace.number, job_id)
        if key not in jobs:
            raise unknown_job(job_id, namespace.name)
        given = {name: value for name, value in asdict(changes).items() if value is not None}
        jobs[key] = replace(jobs[key], updated_at_ms=self._reach().now_ms(), **given)
        return self._job(key)

    def get(self, namespace: Namespace, job_id: str) -> Job:
        key = JobKey(namespace.number, job_id)
        if key not in self._tables.jobs:
            raise unknown_job(job_id, namespace.name)
        return self._job(key)

    def page(self, namespace: Namespace, after: tuple[int, str] | None, limit: int) -> list[Job]:
        mine = [self._job(key) for key in self._tables.jobs if key.namespace == namespace.number]
        place = (-1 << 63, "") if after is None else (-after[0], after[1])
        ordered = sorted(mine, key=lambda job: (-job.created_at_ms, job.id))
        return [job for job in ordered if (-job.created_at_ms, job.id) > place][:limit]

    def count(
        self, host_name: str, started_at_ms: int, counts: Mapping[JobKey, JobCounts], asked: Collection[JobKey] = ()
    ) -> dict[JobKey, JobView]:
        tables, now_ms = self._tables, self._reach().now_ms()
        views = {}
        for key in {*counts, *asked} & tables.jobs.keys():
            self._fold_earlier(key, host_name, started_at_ms)
            mine = (key, host_name, started_at_ms)
            counted = counts.get(key, tables.hosts[mine][1] if mine in tables.hosts else JobCounts())
            tables.hosts[mine] = (now_ms, counted)
            job = tables.jobs[key] = replace(tables.jobs[key], updated_at_ms=now_ms)
            since_ms = now_ms - limits.JOB_ACTIVE_MS
            active = {at[1] for at, (active_at, _) in tables.hosts.items() if at[0] == key and active_at > since_ms}
            views[key] = JobView(job.items_per_second_max, len(active | {host_name}), counted)
        return views

    def _fold_earlier(self, key: JobKey, host_name: str, started_at_ms: int) -> None:
        tables = self._tables
        earlier = [at for at in tables.hosts if at[:2] == (key, host_name) and at[2] != started_at_ms]
        for at in earlier:
            tables.jobs[key] = _plus(tables.jobs[key], tables.hosts.pop(at)[1])

    def _job(self, key: JobKey) -> Job:
        job = self._tables.jobs[key]
        for (at, _, _), (_, counted) in self._tables.hosts.items():
            job = _plus(job, counted) if at == key else job
        return job

    def _make_room(self, namespace: int) -> None:
        jobs = self._tables.jobs
        for key, job in list(jobs.items()):
            if job.updated_at_ms < self._reach().now_ms() - limits.JOB_KEPT_MS:
                self._forget_job(key)
        for mine, most in (
            ([key for key in jobs if key.namespace == namespace], limits.JOBS_PER_NAMESPACE_MAX),
            (list(jobs), limits.JOBS_MAX),
        ):
            if len(mine) >= most:
                ended = [key for key in mine if jobs[key].state.is_over]
                if not ended:
                    raise InvalidArgumentError(f"there are {len(mine)} jobs that run, and the limit is {most}")
                self._forget_job(min(ended, key=lambda key: jobs[key].updated_at_ms))

    def forget_all_of(self, namespace: int) -> None:
        for key in [key for key in self._tables.jobs if key.namespace == namespace]:
            self._forget_job(key)

    def stop_bulk(self, key: JobKey) -> None:
        """Let a bulk job run no more."""
        tables = self._tables
        mine = {job: True for job in tables.bulk_running.get(key.namespace, {}) if job != key.id}
        others = {number: some for number, some in tables.bulk_running.items() if number != key.namespace}
        tables.bulk_running = {**others, key.namespace: mine} if mine else others

    def _forget_job(self, key: JobKey) -> None:
        tables = self._tables
        del tables.jobs[key]
        tables.bulk.pop(key, None)
        self.stop_bulk(key)
        for at in [at for at in tables.hosts if at[0] == key]:
            del tables.hosts[at]


def _plus(job: Job, counted: JobCounts) -> Job:
    return replace(
        job,
        items_count=job.items_count + counted.items,
        duplicates_count=job.duplicates_count + counted.duplicates,
        rejected_count=job.rejected_count + counted.rejected,
    )
