"""The verbs on job records, and the enqueues that name a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from foqs.contract import requests as of
from foqs.host import arguments
from foqs.host.admission.hosted_jobs import Jobs
from foqs.host.registry.namespaces import Namespaces
from foqs.host.verbs.bulk_calls import shown_job
from foqs.model import limits
from foqs.model.bulk_work import is_bulk_job
from foqs.model.calls import CallContext, EnqueueResult
from foqs.model.errors import FoqsError, InvalidArgumentError, RateLimitedError, shown
from foqs.model.item import ItemEvent
from foqs.model.jobs import Job, JobPage, JobState, check_change, check_job_id, checked_changes, is_copy_job
from foqs.storage.meta.meta_jobs import JobKey

Enqueue = Callable[[CallContext, of.EnqueueRequest], Awaitable[EnqueueResult]]


class JobEnqueues:
    """The verb enqueue for calls with or without a job: calls with a job are held to its rate, and counted."""

    def __init__(
        self,
        namespaces: Namespaces,
        jobs: Jobs,
        enqueue: Enqueue,
        count_event: Callable[[int, ItemEvent, int], None],
    ) -> None:
        """`enqueue` does the work; `count_event` counts the outcomes of items by namespace."""
        self._namespaces = namespaces
        self._jobs = jobs
        self._enqueue = enqueue
        self._count_event = count_event

    def enqueue(self, context: CallContext, request: of.EnqueueRequest) -> Awaitable[EnqueueResult]:
        """Enqueue as foqs.host.verbs.enqueues does; a call without a job costs nothing more."""
        if request.job_id is None:
            return self._enqueue(context, request)
        return self._enqueue_for(request.job_id, context, request)

    async def _enqueue_for(self, job_id: str, context: CallContext, request: of.EnqueueRequest) -> EnqueueResult:
        namespace = self._namespaces.serving(request.namespace_name)
        items_count = len(request.items)
        job = await self._jobs.open(namespace, job_id)
        try:
            admission = self._jobs.admit(job, items_count)
        except RateLimitedError:
            self._count_event(namespace.number, ItemEvent.RATE_LIMITED, items_count)
            raise
        with admission:
            try:
                result = await self._enqueue(context, request)
            except FoqsError as error:
                if error.nothing_done:
                    admission.refund(items_count)
                raise
            admission.refund(sum([error.nothing_done for error in result.errors.values()]))
            self._jobs.note(job, result)
        return result


class JobCalls:
    """The verbs that make, change and show job records."""

    def __init__(self, namespaces: Namespaces, jobs: Jobs) -> None:
        self._namespaces = namespaces
        self._calls = namespaces.calls
        self._jobs = jobs

    async def create_job(self, _: CallContext, request: of.CreateJobRequest) -> Job:
        namespace = self._namespaces.get(request.namespace_name)
        job_id, items_per_second_max, detail = check_job_id(request.id), request.items_per_second_max, request.detail
        checked_changes(None, items_per_second_max, None, detail)
        if is_bulk_job(job_id):
            raise InvalidArgumentError(f"job id {job_id} is that of a bulk job, which createBulkJob makes")
        self._namespaces.require_durable()
        return await self._calls.run(
            lambda meta: meta.jobs.create(namespace, job_id, items_per_second_max or 0, detail or "")
        )

    async def update_job(self, context: CallContext, request: of.UpdateJobRequest) -> Job:
        namespace = self._namespaces.get(request.namespace_name)
        job_id = check_job_id(request.id)
        key = JobKey(namespace.number, job_id)
        changes = checked_changes(request.state, request.items_per_second_max, request.rows_count, request.detail)
        if is_copy_job(job_id) and request.state not in (None, JobState.FAILED):
            raise InvalidArgumentError(
                f"state of job {job_id} is {JobState(request.state).name}, but hosts end the job of a new group once "
                "all is copied, and it does not begin again: FAILED ends it early"
            )
        self._namespaces.require_durable()
        await self._jobs.write(key)
        check_change(job_id, JobState.RUNNING, changes)
        if is_bulk_job(job_id):
            job = await self._calls.run(lambda meta: meta.bulk.update(namespace, job_id, changes))
            return shown_job(context, namespace, job)
        updated = await self._calls.run(lambda meta: meta.jobs.update(namespace, job_id, changes))
        if request.items_per_second_max is not None:
            await self._jobs.write(key)  # So that the new rate holds here at once.
        return updated

    async def get_job(self, context: CallContext, request: of.GetJobRequest) -> Job:
        namespace = self._namespaces.get(request.namespace_name)
        job_id = check_job_id(request.id)
        await self._jobs.write(JobKey(namespace.number, job_id))
        if is_bulk_job(job_id):
            job = await self._calls.run(lambda meta: meta.bulk.get(namespace, job_id))
            return shown_job(context, namespace, job)
        return await self._calls.run(lambda meta: meta.jobs.get(namespace, job_id))

    async def list_jobs(self, _: CallContext, request: of.ListJobsRequest) -> JobPage:
        namespace = self._namespaces.get(request.namespace_name)
        limit = arguments.check_range("limit", request.limit, 1, limits.PAGE_ITEMS_MAX)
        after = _place_of(request.page_token)
        found = await self._calls.run(lambda meta: meta.jobs.page(namespace, after, limit + 1))
        last = found[limit - 1] if len(found) > limit else None
        return JobPage(found[:limit], "" if last is None else f"{last.created_at_ms}:{last.id}")


def _place_of(page_token: str | None) -> tuple[int, str] | None:
    """The time of creation and the id of the last job of a page."""
    if not page_token:
        return None
    created_at, _, job_id = page_token.partition(":")
    if not created_at.isascii() or not created_at.isdigit() or len(created_at) > len(str(limits.NEVER_MS)):
        raise InvalidArgumentError(f"page_token {shown(page_token)} is none of this host: begin with the first page")
    return int(created_at), check_job_id(job_id)
