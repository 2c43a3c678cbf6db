"""Sends the rows of one task: several calls in flight, patience with hosts that are busy or unreachable, refusals
counted.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from foqs.client.encoded import EncodedItems
from foqs.client.encoded_enqueue import EncodedResult
from foqs.client.queue_items import ENQUEUE_BYTES_MAX
from foqs.model.errors import FoqsError, InternalError, InvalidArgumentError, PermissionDeniedError, TooLargeError
from foqs.model.slots import slot_of
from foqs.spark.encoding import EncodedRows, RowEncoder
from foqs.spark.plan import WritePlan
from foqs.spark.rejects import Attempt, Rejects
from foqs.spark.task_client import BulkClient
from foqs.spark.wire_columns import items_of

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_BYTES_MAX = 32 << 20
"""Most bytes of an Arrow batch that is encoded at once. Larger batches are encoded in parts, because the items are a
copy.
"""
REASONS_MAX = 10
"""Most refused rows whose reasons a task or a job reports; further rows are only counted."""
_REFUSALS = (InvalidArgumentError, TooLargeError)
"""Errors that another attempt would get again, because the row itself is at fault."""


@dataclass(slots=True)
class Sent:
    """The outcome for the rows of one task."""

    rows_count: int = 0
    """Number of rows that were read."""
    items_count: int = 0
    """Number of rows that became an item."""
    duplicates_count: int = 0
    """Number of rows whose item existed before, made by an earlier attempt or by another row with the same id."""
    refused_count: int = 0
    reasons: list[str] = field(default_factory=list)
    """The reasons of the first refused rows."""
    attempt: Attempt | None = None
    """The attempt, if it has written rejected rows."""
    denial: str | None = None
    """The reason for which the service refused the job itself. Its other rows are not sent."""

    def refuse(self, row: int, reason: str) -> None:
        self.refused_count += 1
        if len(self.reasons) < REASONS_MAX:
            self.reasons.append(f"row {row}: {reason}")


@dataclass(slots=True)
class _Batch:
    """A batch of rows that is being sent, and the number of its first row in the task."""

    rows: pa.RecordBatch
    first_row: int


class Sender:
    """Sends the rows of one task."""

    def __init__(self, plan: WritePlan, encoder: RowEncoder, client: BulkClient, rejects: Rejects) -> None:
        self._plan = plan
        self._encoder = encoder
        self._client = client
        self._rejects = rejects
        self._sent = Sent()
        self._calls: set[asyncio.Task[None]] = set()

    async def send(self, batches: Iterator[pa.RecordBatch]) -> Sent:
        """Send all rows. Raises the FoqsError of a call that could not be done in time.

        Stops when more rows are refused than the whole job allows, because the job fails anyway. It stops as well when
        the job itself lacks a permission, and returns that: if the task raised it, Spark would repeat the task.
        """
        loop = asyncio.get_running_loop()
        try:
            # The next batch can take long, and calls in flight shall go on meanwhile.
            while (batch := await loop.run_in_executor(None, next, batches, None)) is not None:
                for part in _parts(batch):
                    await self._send_batch(part)
                if self._rejects.is_full:
                    await loop.run_in_executor(None, self._rejects.flush)
                if self._is_over():
                    break
            while self._calls:
                await self._wait_for_one()
            self._sent.attempt = await loop.run_in_executor(None, self._rejects.close)
        except PermissionDeniedError as error:
            self._rejects.abandon()
            self._sent.denial = error.message
        except BaseException:
            self._rejects.abandon()
            raise
        finally:
            for call in self._calls:
                call.cancel()
            await asyncio.gather(*self._calls, return_exceptions=True)
        self._check_balance()
        return self._sent

    def _check_balance(self) -> None:
        """Fail the task if a row is unaccounted for after any defect, so that Spark repeats it."""
        sent = self._sent
        known_count = sent.items_count + sent.duplicates_count + sent.refused_count
        if not self._is_over() and sent.denial is None and known_count != sent.rows_count:
            raise InternalError(
                f"{sent.rows_count} rows were read, and {sent.items_count} are enqueued, "
                f"{sent.duplicates_count} were there before, {sent.refused_count} are refused"
            )

    async def _send_batch(self, rows: pa.RecordBatch) -> None:
        batch = _Batch(rows, self._sent.rows_count)
        self._sent.rows_count += rows.num_rows
        encoded = self._encoder.encode(rows, batch.first_row)
        self._refuse(batch, encoded.refused)
        for items, numbers in grouped(encoded, self._plan):
            for at, call_items in items.batches(self._plan.options.batch_items, ENQUEUE_BYTES_MAX):
                while len(self._calls) >= self._plan.options.calls_in_flight:
                    await self._wait_for_one()
                if self._is_over():
                    return
                call = self._call(call_items, numbers[at : at + len(call_items)], batch)
                self._calls.add(asyncio.create_task(call))

    def _is_over(self) -> bool:
        return self._plan.invalid_rows_max is not None and self._sent.refused_count > self._plan.invalid_rows_max

    def _refuse(self, batch: _Batch, refused: Sequence[tuple[int, str]]) -> None:
        for number, reason in refused:
            self._sent.refuse(batch.first_row + number, reason)
        self._rejects.add(batch.rows, refused)

    async def _wait_for_one(self) -> None:
        done, self._calls = await asyncio.wait(self._calls, return_when=asyncio.FIRST_COMPLETED)
        failures = [failure for call in done if (failure := call.exception()) is not None]
        if failures:
            raise failures[0]

    async def _call(self, items: EncodedItems, numbers: Sequence[int], batch: _Batch) -> None:
        """Make one call. Its items fit into one call, unless a single row is too large or the namespace was changed."""
        try:
            result = await self._client.enqueue(items)
        except TooLargeError as error:
            result = EncodedResult(errors=dict.fromkeys(range(len(items)), error))
        self._sent.duplicates_count += result.duplicates_count
        self._sent.items_count += result.stored_count - result.duplicates_count
        refused: list[tuple[int, str]] = []
        again: list[int] = []
        failure: FoqsError | None = None
        for position, problem in sorted(result.errors.items()):
            if isinstance(problem, TooLargeError) and len(items) > 1:
                again.append(position)
            elif isinstance(problem, _REFUSALS):
                refused.append((numbers[position], problem.message))
            else:
                failure = failure or problem
        self._refuse(batch, refused)
        if failure is not None:
            raise failure
        await self._halve(items, numbers, again, batch)

    async def _halve(self, items: EncodedItems, numbers: Sequence[int], places: list[int], batch: _Batch) -> None:
        """Send these of the items again in two calls. Either each item is too large, or they are too many together.

        Error positions do not identify large items, because a part of a call can be refused as a whole. A row that is
        refused alone is at fault.
        """
        half = len(places) // 2
        for some in (places[:half], places[half:]):
            if some and not self._is_over():
                await self._call(_picked(items, some), [numbers[place] for place in some], batch)


def _picked(items: EncodedItems, places: Sequence[int]) -> EncodedItems:
    first, last = places[0], places[-1]
    if last - first + 1 == len(places):
        return items[first : last + 1]
    return EncodedItems.of(items[place] for place in places)


def grouped(rows: EncodedRows, plan: WritePlan) -> Iterator[tuple[EncodedItems, Sequence[int]]]:
    """The items with the numbers of their rows, grouped by the shards of their ids if the ids have several shards.

    A call for one shard is one transaction; a call for four shards is four small ones.
    """
    if rows.ids is None or plan.key_spread == 1 or not plan.shard_by_slot:
        yield rows.items, rows.numbers
        return
    namespace, spread, shards = plan.options.namespace, plan.key_spread, plan.shard_by_slot
    places: dict[int, list[int]] = {}
    for place, text in enumerate(rows.ids.to_pylist()):
        places.setdefault(shards[slot_of(namespace, text.decode(), spread)], []).append(place)
    if len(places) == 1:
        yield rows.items, rows.numbers
        return
    for some in places.values():
        yield items_of(_taken(rows.array, some)), [rows.numbers[place] for place in some]


def _taken(array: pa.Array, places: list[int]) -> Any:
    import pyarrow as pa

    return array.take(pa.array(places, pa.int64()))


def _parts(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch in parts of bounded size; a single row can be larger."""
    if batch.nbytes <= BATCH_BYTES_MAX or batch.num_rows <= 1:
        yield batch
        return
    half = batch.num_rows // 2
    yield from _parts(batch.slice(0, half))
    yield from _parts(batch.slice(half))
