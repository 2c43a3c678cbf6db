"""The client of one task: bulk enqueues of encoded items, with retries as long as a job can wait."""

from __future__ import annotations

from contextlib import AsyncExitStack
from types import TracebackType
from typing import Protocol, Self

from foqs.client.aio.base import AsyncBaseClient
from foqs.client.encoded import EncodedItems
from foqs.client.encoded_enqueue import EncodedResult, enqueue_encoded
from foqs.client.retry import RetryPolicy
from foqs.model.errors import PermissionDeniedError
from foqs.spark.credentials import Replacements
from foqs.spark.plan import WritePlan

CALL_TIMEOUT_MS = 30_000
BACKOFF_MS = 50
BACKOFF_MS_MAX = 5_000
REPLACEMENTS_MAX = 100
"""Most times that one task takes new credentials. Its earlier connections are closed at its end."""


class BulkClient(Protocol):
    """The client interface of a sender."""

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        """Enqueue the items of one call and return errors by position."""


class TaskClient(AsyncBaseClient):
    """A client for the items of one write."""

    def __init__(self, plan: WritePlan) -> None:
        options = plan.options
        retry = RetryPolicy(deadline_ms=options.retry_timeout_ms, backoff_ms=BACKOFF_MS, backoff_ms_max=BACKOFF_MS_MAX)
        super().__init__(
            options.addresses, timeout_ms=CALL_TIMEOUT_MS, retry=retry, **options.credentials.client_arguments()
        )
        self._namespace = options.namespace
        self._job_id = plan.job_id if plan.has_record else None

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        return await self._run(enqueue_encoded(self._terms, self._namespace, items, self._job_id))


class RenewedClient:
    """A client of one task that connects anew when its credentials were replaced and the old ones are refused.

    Calls in flight of the old connections finish over them.
    """

    def __init__(self, plan: WritePlan) -> None:
        """Raises InvalidArgumentError for a file that is missing or of no use on this machine."""
        plan.options.credentials.check_files()
        self._plan = plan
        self._replacements = Replacements(plan.options.credentials)
        self._opened = AsyncExitStack()
        self._client = TaskClient(plan)
        self._clients_count = 1

    async def __aenter__(self) -> Self:
        self._opened.push_async_exit(self._client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._opened.aclose()

    async def enqueue(self, items: EncodedItems) -> EncodedResult:
        """Enqueue the items of one call. Raises PermissionDeniedError if the newest credentials are refused."""
        while True:
            client = self._client
            try:
                return await client.enqueue(items)
            except PermissionDeniedError:
                # Another call may have noticed the new credentials while this one was in flight.
                if client is self._client and not self._is_renewed():
                    raise

    def _is_renewed(self) -> bool:
        if self._clients_count > REPLACEMENTS_MAX or not self._replacements.came():
            return False
        self._client = TaskClient(self._plan)
        self._clients_count += 1
        self._opened.push_async_exit(self._client)
        return True
