"""The client of one task: bulk enqueues of encoded items, with retries as long as a job can wait."""

from __future__ import annotations

from typing import Protocol

from foqs.client.aio.base import AsyncBaseClient
from foqs.client.encoded import EncodedItems
from foqs.client.encoded_enqueue import EncodedResult, enqueue_encoded
from foqs.client.retry import RetryPolicy
from foqs.spark.plan import WritePlan

CALL_TIMEOUT_MS = 30_000
BACKOFF_MS = 50
BACKOFF_MS_MAX = 5_000


class BulkClient(Protocol):
    """The client interface of a sender."""

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        """Enqueue the items of one call and return errors by position."""


class TaskClient(AsyncBaseClient):
    """A client for the items of one write."""

    def __init__(self, plan: WritePlan) -> None:
        options = plan.options
        retry = RetryPolicy(deadline_ms=options.retry_timeout_ms, backoff_ms=BACKOFF_MS, backoff_ms_max=BACKOFF_MS_MAX)
        super().__init__(options.addresses, timeout_ms=CALL_TIMEOUT_MS, retry=retry)
        self._namespace = options.namespace
        self._job_id = plan.job_id if plan.has_record else None

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        return await self._run(enqueue_encoded(self._terms, self._namespace, items, self._job_id))
