"""Verbs of service FoqsAdmin for bulk jobs, as methods of its client."""

from __future__ import annotations

from datetime import datetime, timedelta

from foqs.client import admin_verbs
from foqs.client.aio.base import AsyncBaseClient
from foqs.model.bulk_work import BulkAction, BulkWork
from foqs.model.given_times import time_ms
from foqs.model.item_filter import EVERYTHING, ItemFilter
from foqs.model.jobs import Job


class AsyncBulkVerbs(AsyncBaseClient):
    """Jobs that hosts do on all items that match. It is a part of `AsyncAdminClient`."""

    async def create_bulk_job(
        self,
        namespace: str,
        action: BulkAction,
        filter: ItemFilter = EVERYTHING,
        *,
        deliver_after_ms: int | None = None,
        deliver_after: datetime | None = None,
        items_max: int = 0,
        all_items: bool = False,
        items_per_second_max: int = 0,
        detail: str = "",
        job_id: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Job:
        """Begin a job that counts, deletes or redrives all stored items that match the filter, beside all other work.

        `get_job` shows its progress in `bulk`. `update_job` can set its state to PAUSED, RUNNING again or CANCELLED,
        and its rate.
        deliver_after_ms, deliver_after: delay redriven items until then; up to that time `undo_bulk_job` can bury them
            again.  items_max (0): the job pauses after this many items if more match; 0 for no limit.
        all_items (False): must be true for a DELETE whose filter has no condition.
        items_per_second_max (0): for all hosts together; 0 for 500 of a redrive, and 2,000 a shard of other changes.
        job_id (""): the id of the job, from `new_bulk_job_id`; "" for a new one. A caller that has chosen it knows the
            job also if the response got lost, and a repeat of the call returns the job that was made.
        A filter without states means dead letters for REDRIVE, and else all items that are not under lease.
        """
        until_ms = time_ms("deliver_after_ms", deliver_after_ms, deliver_after)
        work = BulkWork(filter=filter, action=action, deliver_after_ms=until_ms or 0, items_max=items_max)
        terms = self._within(deadline_ms, deadline)
        return await self._run(
            admin_verbs.create_bulk_job(
                terms, namespace, job_id, work, items_per_second_max, detail, all_items=all_items
            )
        )

    async def undo_bulk_job(
        self,
        namespace: str,
        undone_job_id: str,
        *,
        items_per_second_max: int = 0,
        job_id: str = "",
        deadline_ms: int | None = None,
        deadline: timedelta | None = None,
    ) -> Job:
        """Begin a job that buries the items again that a redrive has delayed, and cancel that one.

        The items have their old reasons of death, and died at the time of the undo. Raises InvalidArgumentError if the
        time of their delivery is over.
        """
        work = BulkWork(action=BulkAction.UNDO, undoes=undone_job_id)
        terms = self._within(deadline_ms, deadline)
        return await self._run(admin_verbs.create_bulk_job(terms, namespace, job_id, work, items_per_second_max, ""))
