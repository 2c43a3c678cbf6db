"""The verbs on job records, and the enqueues that name a job."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from foqs.host import arguments
from foqs.host.admission.hosted_jobs import Jobs
from foqs.host.registry.namespaces import Namespaces
from foqs.model import limits
from foqs.model.calls import CallContext, EnqueueResult, NewItemFields
from foqs.model.errors import FoqsError, InvalidArgumentError, RateLimitedError, shown
from foqs.model.item import ItemEvent
from foqs.model.jobs import Job, JobPage, check_job_id, checked_changes
from foqs.storage.meta.meta_jobs import JobKey

Enqueue = Callable[[CallContext, str, Sequence[NewItemFields], bool], Awaitable[EnqueueResult]]


class JobEnqueues:
    """The verb enqueue for calls that may name a job: those that do are held to its rate, and counted."""

    def __init__(
        self,
        namespaces: Namespaces,
        jobs: Jobs,
        enqueue: Enqueue,
        happened: Callable[[int, ItemEvent, int], None],
    ) -> None:
        """`enqueue` does the work; `happened` counts, by namespace, what became of items."""
        self._namespaces = namespaces
        self._jobs = jobs
        self._enqueue = enqueue
        self._happened = happened

    def enqueue(
        self,
        context: CallContext,
        namespace_name: str,
        items: Sequence[NewItemFields],
        bulk: bool,
        job_id: str | None = None,
    ) -> Awaitable[EnqueueResult]:
        """Enqueue as foqs.host.verbs.enqueues does; a call without a job costs nothing more."""
        if job_id is None:
            return self._enqueue(context, namespace_name, items, bulk)
        return self._enqueue_for(context, namespace_name, items, bulk, job_id)

    async def _enqueue_for(
        self, context: CallContext, namespace_name: str, items: Sequence[NewItemFields], bulk: bool, job_id: str
    ) -> EnqueueResult:
        namespace = self._namespaces.serving(namespace_name)
        job = await self._jobs.open(namespace, job_id)
        try:
            admission = self._jobs.admit(job, len(items))
        except RateLimitedError:
            self._happened(namespace.number, ItemEvent.RATE_LIMITED, len(items))
            raise
        with admission:
            try:
                result = await self._enqueue(context, namespace_name, items, bulk)
            except FoqsError as error:
                if error.nothing_done:
                    admission.give_back(len(items))
                raise
            admission.give_back(sum([error.nothing_done for error in result.errors.values()]))
            self._jobs.note(job, result)
        return result


class JobCalls:
    """Does the verbs that make, change and show job records. `Admin` calls it."""

    def __init__(self, namespaces: Namespaces, jobs: Jobs) -> None:
        self._namespaces = namespaces
        self._calls = namespaces.calls
        self._jobs = jobs

    async def create(self, namespace_name: str, job_id: str, items_per_second_max: int, detail: str) -> Job:
        namespace = self._namespaces.get(namespace_name)
        check_job_id(job_id)
        checked_changes(None, items_per_second_max, None, detail)
        self._namespaces.require_durable()
        return await self._calls.run(
            lambda meta: meta.create_job(namespace, job_id, items_per_second_max or 0, detail or "")
        )

    async def update(
        self,
        namespace_name: str,
        job_id: str,
        state: int | None,
        items_per_second_max: int | None,
        rows_count: int | None,
        detail: str | None,
    ) -> Job:
        namespace = self._namespaces.get(namespace_name)
        key = JobKey(namespace.number, check_job_id(job_id))
        changes = checked_changes(state, items_per_second_max, rows_count, detail)
        self._namespaces.require_durable()
        await self._jobs.write(key)
        updated = await self._calls.run(lambda meta: meta.update_job(namespace, job_id, changes))
        if items_per_second_max is not None:
            await self._jobs.write(key)  # So that the new rate holds here at once.
        return updated

    async def get(self, namespace_name: str, job_id: str) -> Job:
        namespace = self._namespaces.get(namespace_name)
        await self._jobs.write(JobKey(namespace.number, check_job_id(job_id)))
        return await self._calls.run(lambda meta: meta.get_job(namespace, job_id))

    async def page(self, namespace_name: str, limit: int, page_token: str) -> JobPage:
        namespace = self._namespaces.get(namespace_name)
        arguments.check_range("limit", limit, 1, limits.PAGE_ITEMS_MAX)
        after = _place_of(page_token)
        found = await self._calls.run(lambda meta: meta.page_jobs(namespace, after, limit + 1))
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
