"""The verbs on jobs for a fake queue, on a dictionary."""

from __future__ import annotations

from dataclasses import asdict, replace

from foqs.model.calls import CallContext
from foqs.model.errors import AlreadyExistsError, InvalidArgumentError, shown
from foqs.model.jobs import Job, JobPage, check_job_id, checked_changes, unknown_job


class FakeJobCalls:
    """A part of tests.support.fake_queue.FakeQueue. Each new job is a millisecond younger than the last one."""

    def __init__(self) -> None:
        self.jobs: dict[tuple[str, str], Job] = {}
        self.job_ids: list[str | None] = []
        """What the enqueue calls named, in their order."""

    async def create_job(
        self, context: CallContext, namespace_name: str, job_id: str, items_per_second_max: int, detail: str
    ) -> Job:
        key, at_ms = (namespace_name, check_job_id(job_id)), len(self.jobs) + 1
        if key in self.jobs:
            raise AlreadyExistsError(f"{key} exists already")
        self.jobs[key] = Job(
            id=job_id,
            namespace_name=namespace_name,
            created_at_ms=at_ms,
            updated_at_ms=at_ms,
            items_per_second_max=items_per_second_max,
            detail=detail,
        )
        return self.jobs[key]

    async def update_job(
        self,
        context: CallContext,
        namespace_name: str,
        job_id: str,
        state: int | None,
        items_per_second_max: int | None,
        rows_count: int | None,
        detail: str | None,
    ) -> Job:
        before = await self.get_job(context, namespace_name, job_id)
        changes = asdict(checked_changes(state, items_per_second_max, rows_count, detail))
        given = {name: value for name, value in changes.items() if value is not None}
        after = self.jobs[namespace_name, job_id] = replace(before, **given)
        return after

    async def get_job(self, context: CallContext, namespace_name: str, job_id: str) -> Job:
        job = self.jobs.get((namespace_name, job_id))
        if job is None:
            raise unknown_job(job_id, namespace_name)
        return job

    async def list_jobs(self, context: CallContext, namespace_name: str, limit: int, page_token: str) -> JobPage:
        if page_token and not page_token.isdecimal():
            raise InvalidArgumentError(f"page_token {shown(page_token)} did not come from this service")
        found = [job for (name, _), job in reversed(self.jobs.items()) if name == namespace_name]
        at = int(page_token or 0)
        return JobPage(found[at : at + limit], str(at + limit) if at + limit < len(found) else "")
