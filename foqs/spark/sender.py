"""Sends the rows of one task: several calls in flight, patience with hosts that are busy or away, refusals counted."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from foqs.client.aio import AsyncClient
from foqs.client.items import NewItem, enqueue_batches, faults_of
from foqs.client.retry import RetryPolicy
from foqs.model.calls import EnqueueResult
from foqs.model.errors import InternalError, InvalidArgumentError, TooLargeError
from foqs.spark.columns import Rows, rows_of
from foqs.spark.options import WriteOptions

if TYPE_CHECKING:
    import pyarrow as pa

CALL_TIMEOUT_MS = 30_000
BACKOFF_MS = 50
BACKOFF_MS_MAX = 5_000
REASONS_MAX = 10
"""Refused rows whose reasons a task reports, and a job; further ones are only counted."""
_REFUSALS = (InvalidArgumentError, TooLargeError)
"""What another attempt would meet again: the row itself is at fault."""


@dataclass(slots=True)
class Sent:
    """What became of the rows of one task."""

    rows_count: int = 0
    """Rows that were read."""
    items_count: int = 0
    """Rows that the service has stored."""
    refused_count: int = 0
    reasons: list[str] = field(default_factory=list)
    """The reasons of the first refused rows."""

    def refuse(self, row: int, reason: str) -> None:
        self.refused_count += 1
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"row {row}: {reason}")


class BulkClient(Protocol):
    """What a sender needs of a client; AsyncClient is the real one."""

    async def enqueue_many(
        self, namespace: str, items: list[NewItem], *, retry_unknown: bool, bulk: bool, return_errors: bool
    ) -> EnqueueResult: ...


def client_of(options: WriteOptions) -> AsyncClient:
    retry = RetryPolicy(deadline_ms=options.retry_timeout_ms, backoff_ms=BACKOFF_MS, backoff_ms_max=BACKOFF_MS_MAX)
    return AsyncClient(options.addresses, timeout_ms=CALL_TIMEOUT_MS, retry=retry)


async def send_rows(options: WriteOptions, batches: Iterator[pa.RecordBatch]) -> Sent:
    """Send all rows of a task. Raises the FoqsError of a call that could not be done within options.retry_timeout_ms.

    Stops when more rows are refused than the whole job may have: the rest would be sent in vain.
    """
    async with client_of(options) as client:
        return await Sender(options, client).send(batches)


class Sender:
    """One task's worth of sending."""

    def __init__(self, options: WriteOptions, client: BulkClient) -> None:
        self._options = options
        self._client = client
        self._sent = Sent()
        self._calls: set[asyncio.Task[None]] = set()

    async def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        loop = asyncio.get_running_loop()
        try:
            # The next batch may be long in coming, and what is in flight shall go on meanwhile.
            while (batch := await loop.run_in_executor(None, next, batches, None)) is not None:
                await self._send_batch(rows_of(batch, self._options.topic))
                if self._is_over():
                    break
            while self._calls:
                await self._wait_for_one()
        finally:
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
        self._check_balance()
        return self._sent

    def _check_balance(self) -> None:
        """Whatever a defect does: a row of which nothing is known fails the task, and Spark repeats it."""
        sent = self._sent
        if not self._is_over() and sent.items_count + sent.refused_count != sent.rows_count:
            raise InternalError(
                f"{sent.rows_count} rows were read, and {sent.items_count} are enqueued, {sent.refused_count} refused"
            )

    async def _send_batch(self, rows: Rows) -> None:
        first_row = self._sent.rows_count
        self._sent.rows_count += len(rows.items) + len(rows.refused)
        for number, reason in rows.refused:
            self._sent.refuse(first_row + number, reason)
        taken_count = 0
        for items in enqueue_batches(rows.items, self._options.batch_items):
            numbers = [first_row + n for n in rows.numbers[taken_count : taken_count + len(items)]]
            taken_count += len(items)
            while len(self._calls) >= self._options.calls_in_flight:
                await self._wait_for_one()
            if self._is_over():
                return
            self._calls.add(asyncio.create_task(self._call(items, numbers)))

    def _is_over(self) -> bool:
        return self._sent.refused_count > self._options.invalid_rows_max

    async def _wait_for_one(self) -> None:
        done, self._calls = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        failures = [failure for call in done if (failure := call.exception()) is not None]
        if failures:
            raise failures[0]

    async def _call(self, items: list[NewItem], numbers: list[int]) -> None:
        """One call; what it holds certainly fits into one."""
        try:
            result = await self._enqueue(items)
        except InvalidArgumentError:
            # One that cannot even be encoded spoils the call for all: it is found, and the others go without it.
            kept = self._encodable(items, numbers)
            if len(kept) == len(items):
                raise  # It is no row's fault.
            if kept:
                await self._call([item for item, _ in kept], [number for _, number in kept])
            return
        except TooLargeError as error:
            if len(items) == 1:
                self._sent.refuse(numbers[0], error.message)
                return
            # A row of it is, or all together are, and then halves are not.
            half = len(items) // 2
            await self._call(items[:half], numbers[:half])
            await self._call(items[half:], numbers[half:])
            return
        self._sent.items_count += len(result.ids) - result.ids.count("")
        for position, problem in result.errors.items():
            if not isinstance(problem, _REFUSALS):
                raise problem
            self._sent.refuse(numbers[position], problem.message)

    async def _enqueue(self, items: list[NewItem]) -> EnqueueResult:
        return await self._client.enqueue_many(
            self._options.namespace, items, retry_unknown=True, bulk=True, return_errors=True
        )

    def _encodable(self, items: list[NewItem], numbers: list[int]) -> list[tuple[NewItem, int]]:
        faults = dict(faults_of(items))
        for position, fault in faults.items():
            self._sent.refuse(numbers[position], fault.message)
        pairs = zip(items, numbers, strict=True)
        return [pair for position, pair in enumerate(pairs) if position not in faults]
