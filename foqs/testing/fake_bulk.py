"""The bulk jobs of a meta database in memory: foqs.storage.meta.meta_bulk on dictionaries."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from foqs.model.bulk_work import (
    STOPPED_MAX,
    BulkAction,
    BulkPart,
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
)
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, UnknownNamespaceError
from foqs.model.jobs import Job, JobChanges, JobState, check_change, unknown_job
from foqs.model.namespace import Namespace
from foqs.storage.meta.meta_bulk import TOUCH_MS, WAITING_MS, BulkView
from foqs.storage.meta.meta_jobs import JobKey
from foqs.testing.fake_jobs import FakeJobs
from foqs.testing.fake_meta_tables import BulkRecord, JobTables, Reach


class FakeBulk:
    """The tables of bulk jobs."""

    def __init__(self, reach: Reach, jobs: FakeJobs) -> None:
        self._reach = reach
        self._jobs = jobs

    @property
    def _tables(self) -> JobTables:
        return self._reach().tables.jobs

    def create(self, namespace: Namespace, job_id: str, items_per_second_max: int, detail: str, work: BulkWork) -> Job:
        tables, all_tables, now_ms = self._tables, self._reach().tables, self._reach().now_ms()
        if namespace.number not in [one.number for one in all_tables.namespaces.values()]:
            raise UnknownNamespaceError(f"namespace {namespace.name!r} was deleted")
        work.text()
        key = JobKey(namespace.number, job_id)
        if (known := tables.bulk.get(key)) is not None:
            if not is_repeat(known.work, work):
                raise AlreadyExistsError(f"namespace {namespace.name!r} has a job {job_id!r} already")
            return self.get(namespace, job_id)
        self._check_room(namespace.number)
        parts = [BulkPart(shard_id=shard_id) for shard_id in sorted(all_tables.epochs)]
        if work.action is BulkAction.UNDO:
            undone = self._tables.bulk.get(JobKey(namespace.number, work.undoes))
            if undone is None:
                raise unknown_job(work.undoes, namespace.name)
            work = replace(undoing(work.undoes, undone.work, now_ms), items_max=work.items_max)
            parts = parts_to_undo(undone.parts)
        if work.action is BulkAction.REDRIVE and work.deliver_after_ms:
            used = {one.work.deliver_after_ms for key, one in tables.bulk.items() if key.namespace == namespace.number}
            work = replace(work, deliver_after_ms=free_time(work.deliver_after_ms, used))
        self._jobs.create(namespace, job_id, items_per_second_max, detail)
        if work.action is BulkAction.UNDO:
            self._end(JobKey(namespace.number, work.undoes), JobState.CANCELLED)
        by_shard = {part.shard_id: part for part in parts}
        tables.bulk[key] = BulkRecord(work, by_shard, dict.fromkeys(by_shard, now_ms))
        self._run(key)
        self._end_if_done(key)
        return self.get(namespace, job_id)

    def update(self, namespace: Namespace, job_id: str, changes: JobChanges) -> Job:
        tables, key = self._tables, JobKey(namespace.number, job_id)
        if key not in tables.jobs:
            raise unknown_job(job_id, namespace.name)
        state, record = tables.jobs[key].state, tables.bulk.get(key)
        check_change(job_id, state, changes)
        if record is not None and changes.state is JobState.RUNNING and state is JobState.PAUSED:
            if record.error:
                raise InvalidArgumentError(f"bulk job {job_id} cannot be resumed: {record.error}")
            self._check_room(namespace.number)
            self._run(key)
            record.error = ""
            record.active_at_ms = dict.fromkeys(record.parts, self._reach().now_ms())
        self._jobs.update(namespace, job_id, changes)
        if changes.state in (JobState.PAUSED, JobState.CANCELLED):
            self._stop(key)
        return self.get(namespace, job_id)

    def get(self, namespace: Namespace, job_id: str) -> Job:
        job, key = self._jobs.get(namespace, job_id), JobKey(namespace.number, job_id)
        record = self._tables.bulk.get(key)
        if record is None:
            return job
        late_ms = self._reach().now_ms() - WAITING_MS
        waiting = [
            part.shard_id
            for part in record.parts.values()
            if job.state is JobState.RUNNING and not part.is_done and record.active_at_ms[part.shard_id] < late_ms
        ]
        return replace(job, bulk=state_of(record.work, record.parts, waiting, record.error, is_over=job.state.is_over))

    def works(self, keys: Collection[JobKey]) -> dict[JobKey, BulkWork]:
        return {key: record.work for key in keys if (record := self._tables.bulk.get(key)) is not None}

    def views(self, keys: Collection[JobKey], shard_ids: Collection[int]) -> dict[JobKey, BulkView]:
        tables, now_ms, known = self._tables, self._reach().now_ms(), self._reach().tables.epochs.keys()
        views = {}
        for key in keys:
            job, record = tables.jobs.get(key), tables.bulk.get(key)
            if job is None or record is None:
                continue
            shards = {part.shard_id for part in record.parts.values() if not part.is_done}
            is_running = job.state is JobState.RUNNING
            if not shards & known and is_running:
                self._end_if_done(key)
                continue
            in_work = {part.shard_id for part in record.parts.values() if part.page_to}
            if not is_running and not in_work:
                self._stop(key)
                continue
            mine = frozenset((shards if is_running else in_work) & set(shard_ids))
            for shard_id in shards & set(shard_ids):
                if record.active_at_ms[shard_id] < now_ms - TOUCH_MS:
                    record.active_at_ms[shard_id] = now_ms
            views[key] = BulkView(job.created_at_ms, job.items_per_second_max, len(shards & known), mine, is_running)
        return views

    def take(self, key: JobKey, shard_id: int, epoch: int, beginning: PartBeginning) -> BulkPart | None:
        tables = self._tables
        job, record = tables.jobs.get(key), tables.bulk.get(key)
        part = None if record is None else record.parts.get(shard_id)
        if job is None or record is None or part is None or part.is_done:
            return None
        if job.state is not JobState.RUNNING and not part.page_to:
            return None
        part = taken(part, epoch, beginning)
        if part is not None:
            self._write(record, part)
        return part

    def report(self, key: JobKey, part: BulkPart, keys: Sequence[int] = (), page_to: int = 0) -> PartAnswer:
        tables = self._tables
        job, record = tables.jobs.get(key), tables.bulk.get(key)
        known = None if record is None else record.parts.get(part.shard_id)
        if job is None or record is None or known is None or known.version != part.version:
            return PartAnswer()
        part = replace(part, version=part.version + 1)
        is_running, count = job.state is JobState.RUNNING, 0
        if keys and is_running:
            count = granted(record.work, {**record.parts, part.shard_id: part}.values(), len(keys))
            part = with_page(part, keys, page_to, count)
        self._write(record, part)
        sums = state_of(record.work, record.parts, (), "", is_over=False)
        items_count = sums.matched if record.work.action is BulkAction.COUNT else sums.done
        tables.jobs[key] = replace(job, items_count=items_count, updated_at_ms=self._reach().now_ms())
        if not is_running:
            self._stop(key)
            return PartAnswer(part)
        if count < len(keys) and not any(one.page_to for one in record.parts.values()):
            record.error = too_many(record.work)
            self._end(key, JobState.PAUSED)
            return PartAnswer(part)
        self._end_if_done(key)
        return PartAnswer(part, is_running=True, granted_count=count)

    def _check_room(self, number: int) -> None:
        tables = self._tables
        known = [JobKey(at, job_id) for at, some in tables.bulk_running.items() for job_id in some]
        running = [key for key in known if key in tables.jobs and tables.jobs[key].state is JobState.RUNNING]
        check_room([key.namespace for key in running], number)
        for key in sorted({*known} - {*running})[STOPPED_MAX:]:
            self._jobs.stop_bulk(key)

    def _run(self, key: JobKey) -> None:
        running = self._tables.bulk_running
        mine = {**running.get(key.namespace, {}), key.id: True}
        self._tables.bulk_running = {**running, key.namespace: mine}

    def _end_if_done(self, key: JobKey) -> None:
        known = self._reach().tables.epochs
        if all(part.is_done or part.shard_id not in known for part in self._tables.bulk[key].parts.values()):
            self._end(key, JobState.SUCCEEDED)

    def _end(self, key: JobKey, state: JobState) -> None:
        job = self._tables.jobs[key]
        if not job.state.is_over:
            self._tables.jobs[key] = replace(job, state=state)
        self._stop(key)

    def _stop(self, key: JobKey) -> None:
        record = self._tables.bulk.get(key)
        if record is None or not any(part.page_to for part in record.parts.values()):
            self._jobs.stop_bulk(key)

    def _write(self, record: BulkRecord, part: BulkPart) -> None:
        record.parts[part.shard_id] = part
        record.active_at_ms[part.shard_id] = self._reach().now_ms()
