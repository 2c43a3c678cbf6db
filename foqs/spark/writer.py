"""The batch writer: checks before a task starts, one sender a task, and a sum at the end."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs.client.retry import RetryPolicy
from foqs.client.sync import AdminClient
from foqs.model.errors import UnavailableError
from foqs.model.namespace import NamespaceSettings
from foqs.spark.columns import check_columns
from foqs.spark.options import WriteOptions
from foqs.spark.sender import REASONS_MAX, Sent, send_rows

if TYPE_CHECKING:
    import pyarrow as pa

_FIRST_CALL_MS_MAX = 10_000
"""The deadline of the one call before the job, so that a wrong address is reported soon."""


class RowsRefusedError(Exception):
    """The service refused more rows than the option maxInvalidRows allows; all other rows may be enqueued."""


@dataclass
class SentMessage(WriterCommitMessage):
    """What one task did, on its way to the driver."""

    sent: Sent


class FoqsWriter(DataSourceArrowWriter):
    """Made by Spark's planner, sent to the tasks, and once more to the driver for the end of the job.

    So it holds nothing but what was checked. A task that Spark repeats sends its rows again.
    """

    def __init__(self, options: WriteOptions) -> None:
        super().__init__()
        self.options = options

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Enqueue the rows of one partition."""
        return SentMessage(asyncio.run(send_rows(self.options, iterator)))

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every task is done. Raises RowsRefusedError: only here is it known how many rows were refused in all.

        A task that raised it would be repeated, and its rows with it.
        """
        total = total_of(messages)
        if total.refused_count > self.options.invalid_rows_max:
            raise RowsRefusedError(
                f"{total.refused_count} of {total.rows_count} rows were refused, maxInvalidRows is "
                f"{self.options.invalid_rows_max}; {total.items_count} items are enqueued, the rest was not sent. "
                f"Refused: {_told(total)}"
            )
        print(f"foqs: {summary(total, self.options.namespace)}", file=sys.stderr, flush=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """The job has failed; what its tasks have enqueued stays, and tasks may still be running."""
        total = total_of(messages)
        print(
            f"foqs: the job failed; {summary(total, self.options.namespace)} by the tasks that ended", file=sys.stderr
        )


def make_writer(options: WriteOptions, schema: StructType) -> FoqsWriter:
    """A writer for rows of this schema, once the service has been asked for the namespace. Raises FoqsError."""
    check_columns(
        [(field.name, field.dataType.simpleString()) for field in schema.fields],
        topic_given=options.topic is not None,
        ignores_extra=options.ignores_extra_columns,
    )
    settings = _settings_of(options)
    # A call with more would be refused each time.
    items_max = min(options.batch_items, settings.batch_items_max, settings.enqueues_per_minute_max)
    return FoqsWriter(replace(options, batch_items=items_max))


def _settings_of(options: WriteOptions) -> NamespaceSettings:
    retry = RetryPolicy(deadline_ms=_FIRST_CALL_MS_MAX)
    try:
        with AdminClient(options.addresses, timeout_ms=_FIRST_CALL_MS_MAX, retry=retry) as client:
            return client.get_namespace(options.namespace).settings
    except UnavailableError as error:
        raise UnavailableError(f"no host of addresses={options.addresses} answers: {error.message}") from error


def total_of(messages: Sequence[WriterCommitMessage | None]) -> Sent:
    """The sum over the tasks; one that failed has no message."""
    total = Sent()
    for number, message in enumerate(messages):
        if isinstance(message, SentMessage):
            sent = message.sent
            total.rows_count += sent.rows_count
            total.items_count += sent.items_count
            total.refused_count += sent.refused_count
            room = REASONS_MAX - len(total.reasons)
            total.reasons += [f"task {number} {reason}" for reason in sent.reasons[:room]]
    return total


def summary(total: Sent, namespace: str) -> str:
    refused = f", {total.refused_count:,} refused ({_told(total)})" if total.refused_count else ""
    return f"{total.items_count:,} items of {total.rows_count:,} rows enqueued into {namespace}{refused}"


def _told(total: Sent) -> str:
    more = total.refused_count - len(total.reasons)
    told = "; ".join(total.reasons)
    return f"{told}; and {more:,} more" if more else told
