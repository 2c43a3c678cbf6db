"""The verbs on jobs for a fake queue, on a dictionary."""

from __future__ import annotations

from dataclasses import asdict, replace

from foqs.contract import requests as of
from foqs.host.verbs.bulk_calls import checked_work
from foqs.model import limits
from foqs.model.audit import AuditPage
from foqs.model.bulk_work import BulkState, check_bulk_id
from foqs.model.calls import CallContext
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, shown
from foqs.model.jobs import Job, JobPage, check_job_id, checked_changes, unknown_job


class FakeJobCalls:
    """A part of tests.support.fake_queue.FakeQueue. Each new job is a millisecond younger than the last one."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str], Job] = {}
        self.job_ids: list[str | None] = []
        """What the enqueue calls named, in their order."""

    async def create_job(self, context: CallContext, request: of.CreateJobRequest) -> Job:
        key, at_ms = (request.namespace_name, check_job_id(request.id)), len(self.jobs) + 1
        if key in self.jobs:
            raise AlreadyExistsError(f"{key} exists already")
        self.jobs[key] = Job(
            id=request.id,
            namespace_name=request.namespace_name,
            created_at_ms=at_ms,
            updated_at_ms=at_ms,
            items_per_second_max=request.items_per_second_max,
            detail=request.detail,
        )
        return self.jobs[key]

    async def create_bulk_job(self, context: CallContext, request: of.CreateBulkJobRequest) -> Job:
        key, at_ms = (request.namespace_name, check_bulk_id(request.id)), len(self.jobs) + 1
        work = checked_work(request.bulk, 0, limits.DELAY_MS_MAX)
        self.jobs[key] = Job(
            id=request.id,
            namespace_name=request.namespace_name,
            created_at_ms=at_ms,
            updated_at_ms=at_ms,
            items_per_second_max=request.items_per_second_max,
            detail=request.detail,
            bulk=BulkState(work=work, shards=1),
        )
        return self.jobs[key]

    async def update_job(self, context: CallContext, request: of.UpdateJobRequest) -> Job:
        before = self._job(request.namespace_name, request.id)
        changes = asdict(
            checked_changes(request.state, request.items_per_second_max, request.rows_count, request.detail)
        )
        given = {name: value for name, value in changes.items() if value is not None}
        after = self.jobs[request.namespace_name, request.id] = replace(before, **given)
        return after

    async def get_job(self, context: CallContext, request: of.GetJobRequest) -> Job:
        return self._job(request.namespace_name, request.id)

    def _job(self, namespace_name: str, job_id: str) -> Job:
        job = self.jobs.get((namespace_name, job_id))
        if job is None:
            raise unknown_job(job_id, namespace_name)
        return job

    async def list_audit(self, context: CallContext, request: of.ListAuditRequest) -> AuditPage:
        return AuditPage()

    async def list_jobs(self, context: CallContext, request: of.ListJobsRequest) -> JobPage:
        limit, page_token = request.limit, request.page_token
        if page_token and not page_token.isdecimal():
            raise InvalidArgumentError(f"page_token {shown(page_token)} did not come from this service")
        found = [job for (name, _), job in reversed(self.jobs.items()) if name == request.namespace_name]
        at = int(page_token or 0)
        return JobPage(found[at : at + limit], str(at + limit) if at + limit < len(found) else "")
