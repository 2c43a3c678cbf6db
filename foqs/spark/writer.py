"""The writers for batches and streams: checks before a task starts, one sender a task, and totals at the end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs.model.errors import InternalError
from foqs.model.jobs import JobState
from foqs.spark import preparation, rejects
from foqs.spark.credentials import in_options
from foqs.spark.driver_output import note
from foqs.spark.json_types import json_problems
from foqs.spark.options import FAIL
from foqs.spark.plan import WritePlan, plan_write
from foqs.spark.rejects import Attempt, Rejects
from foqs.spark.sender import REASONS_MAX, Sender, Sent
from foqs.spark.task_client import RenewedClient

if TYPE_CHECKING:
    import pyarrow as pa

_QUERY_ID, _BATCH_ID = "sql.streaming.queryId", "streaming.sql.batchId"
"""Local properties of the tasks of a stream. The query's id is in its checkpoint, and survives a restart."""


class WriteFailedError(Exception):
    """The service refused the job, or more rows than the options allow, or it forgot ids too soon. Other rows are
    possibly enqueued.
    """


@dataclass
class SentMessage(WriterCommitMessage):
    """The result of one task, on its way to the driver."""

    sent: Sent


class FoqsWriter(DataSourceArrowWriter):
    """The writer of one batch job.

    Spark's planner makes it, and the tasks and the committing process get copies. So it holds only values, and the
    values that are drawn when it is made (the job's id, the start time) are the same in all copies.
    """

    def __init__(self, plan: WritePlan) -> None:
        super().__init__()
        self.plan = plan

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Enqueue the rows of one partition."""
        context = task_context()
        return send_task(self.plan, self.plan.run_id, self.plan.rejects_id, context, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Finish the job. Raises WriteFailedError here, because only now the total of refused rows is known.

        If a task raised it, Spark would repeat the task and its rows. No other error here fails a job whose rows are
        all enqueued.
        """
        total = total_of(messages)
        name_rejects(self.plan, self.plan.rejects_id, messages)
        refusal = refusal_of(self.plan, total)
        short = preparation.window_after(self.plan) if total.denial is None else None
        warnings = list(self.plan.warnings)
        if short is not None and self.plan.options.on_short_window == FAIL:
            refusal = refusal or short
        elif short is not None:
            note(f"warning: {short}")
            warnings.append(short)
        state = JobState.SUCCEEDED if refusal is None else JobState.FAILED
        detail = "; warning: ".join([refusal or summary(total), *warnings])
        preparation.finish(self.plan, state, total.rows_count, detail)
        end_write(self.plan, total, refusal)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Report that the job has failed. Enqueued rows stay, and tasks can still be running."""
        text = f"the job failed; by tasks that ended: {summary(total_of(messages))}"
        note(f"{self.plan.options.namespace}: {text}")
        preparation.finish_aborted(self.plan, JobState.FAILED, text, lambda job: job.state is not JobState.RUNNING)


class FoqsStreamWriter(DataSourceStreamArrowWriter):
    """The writer of one micro-batch, made anew for each one and again for its commit. It draws no values.

    A micro-batch that is repeated after a restart has the same rows. With a key their ids are the same anyway. Ids of
    the content are made of the ids of query and micro-batch, which are the same too, and of the partition. So they are
    the same only if the query splits its rows into as many partitions as before.
    """

    def __init__(self, plan: WritePlan, *, is_prepared: bool) -> None:
        """A plan that is not prepared is enough for a commit; tasks complete it."""
        super().__init__()
        self.plan = plan if is_prepared else preparation.stream_named(plan)
        self._is_prepared = is_prepared

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Enqueue the rows of one partition of a micro-batch."""
        context = task_context()
        query_id, batch_id = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        if query_id is None or batch_id is None:
            raise InternalError(
                f"this Spark tells a task neither {_QUERY_ID} nor {_BATCH_ID}: write with foreachBatch, "
                "and a jobId made of the batch's id"
            )
        plan = self.plan if self._is_prepared else preparation.prepare_stream(self.plan)
        run_id = f"{query_id}-{batch_id}"
        return send_task(plan, run_id, run_id, context, iterator)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Finish the micro-batch after its last task. Raises WriteFailedError as the batch writer does."""
        total = total_of(messages)
        name_rejects(self.plan, run_id_of(messages), messages)
        refusal = refusal_of(self.plan, total)
        preparation.finish(self.plan, None, None, f"{_committed(batchId)} {refusal or summary(total)}")
        end_write(self.plan, total, refusal)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        """Report that the micro-batch has failed. Spark repeats it when the query is started again."""
        text = f"micro-batch {batchId} failed; by tasks that ended: {summary(total_of(messages))}"
        note(f"{self.plan.options.namespace}: {text}")
        preparation.finish_aborted(self.plan, None, text, lambda job: job.detail.startswith(_committed(batchId)))


def _committed(batch_id: int) -> str:
    """The first words of a stream's record after an attempt to commit the micro-batch."""
    return f"micro-batch {batch_id}:"


def make_writer(given: Mapping[str, str], schema: StructType) -> FoqsWriter:
    """A writer for rows of this schema, after options, columns and service have been checked. Raises FoqsError."""
    return FoqsWriter(preparation.prepare(_planned(given, schema)))


def make_stream_writer(given: Mapping[str, str], schema: StructType, *, for_commit: bool) -> FoqsStreamWriter:
    """The same for one micro-batch of a stream. A commit asks no host, because all rows are sent."""
    plan = _planned(given, schema)
    return FoqsStreamWriter(plan if for_commit else preparation.prepare_stream(plan), is_prepared=not for_commit)


def _planned(given: Mapping[str, str], schema: StructType) -> WritePlan:
    columns = [(field.name, field.dataType.simpleString()) for field in schema.fields]
    return plan_write(given, columns, json_problems(schema))


def task_context() -> TaskContext:
    context = TaskContext.get()
    if context is None:
        raise InternalError("a writer runs in a task of Spark")
    return context


def send_task(
    plan: WritePlan, run_id: str, rejects_id: str, context: TaskContext, batches: Iterator[pa.RecordBatch]
) -> SentMessage:
    """Send the rows of one task of the run, and return the result. `rejects_id` names files of rejected rows."""
    attempt = Attempt(rejects_id, context.partitionId(), context.taskAttemptId())
    sink = Rejects(plan.options.rejected_rows_path, attempt)
    encoder = plan.encoder(run_id, attempt.partition)

    async def send() -> Sent:
        async with RenewedClient(plan) as client:
            return await Sender(plan, encoder, client, sink).send(batches)

    return SentMessage(asyncio.run(send()))


def name_rejects(plan: WritePlan, run_id: str | None, messages: Sequence[WriterCommitMessage | None]) -> None:
    """Give the files of rejected rows their final names. A failure is printed, not raised, because valid rows are
    enqueued.
    """
    directory = plan.options.rejected_rows_path
    if directory is None or run_id is None:
        return
    attempts = [m.sent.attempt for m in messages if isinstance(m, SentMessage) and m.sent.attempt is not None]
    for problem in rejects.commit(directory, run_id, attempts):
        note(problem)


def refusal_of(plan: WritePlan, total: Sent) -> str | None:
    """The error if the service refused the job, or more rows than the options allow, else None."""
    if total.denial is not None:
        again = " again: rows that are enqueued are not enqueued twice" if plan.has_ids else ""
        return (
            f"the service refused the job: {in_options(total.denial)}; {total.items_count:,} items or more are "
            f"enqueued, the rest was not sent. Grant what is missing, or replace the credentials, and run it{again}"
        )
    invalid_rows_max = plan.invalid_rows_max
    if invalid_rows_max is None or total.refused_count <= invalid_rows_max:
        return None
    return (
        f"{total.refused_count} of {total.rows_count} rows were refused, {_allowed(plan)}; "
        f"{total.items_count} items are enqueued, the rest was not sent. Refused: {_reasons_of(total)}"
    )


def end_write(plan: WritePlan, total: Sent, refusal: str | None) -> None:
    """Print the totals, or raise WriteFailedError."""
    if refusal is not None:
        raise WriteFailedError(refusal)
    note(f"{plan.options.namespace}: {summary(total)}")


def run_id_of(messages: Sequence[WriterCommitMessage | None]) -> str | None:
    """The id of the run whose tasks have written rejected rows, or None."""
    return next((m.sent.attempt.run_id for m in messages if isinstance(m, SentMessage) and m.sent.attempt), None)


def total_of(messages: Sequence[WriterCommitMessage | None]) -> Sent:
    """The sum over the tasks. A failed task has no message."""
    total = Sent()
    for number, message in enumerate(messages):
        if isinstance(message, SentMessage):
            sent = message.sent
            total.rows_count += sent.rows_count
            total.items_count += sent.items_count
            total.duplicates_count += sent.duplicates_count
            total.refused_count += sent.refused_count
            total.denial = total.denial or sent.denial
            room = REASONS_MAX - len(total.reasons)
            total.reasons += [f"task {number} {reason}" for reason in sent.reasons[:room]]
    return total


def summary(total: Sent) -> str:
    """Return the totals in words."""
    before = f", {total.duplicates_count:,} were there before" if total.duplicates_count else ""
    refused = f", {total.refused_count:,} refused ({_reasons_of(total)})" if total.refused_count else ""
    return f"{total.items_count:,} items of {total.rows_count:,} rows enqueued{before}{refused}"


def _allowed(plan: WritePlan) -> str:
    options = plan.options
    return (
        f"maxInvalidRows is {options.invalid_rows_max}"
        if options.invalid_rows_max is not None
        else f"and onInvalidRow is {options.on_invalid_row}"
    )


def _reasons_of(total: Sent) -> str:
    more = total.refused_count - len(total.reasons)
    text = "; ".join(total.reasons)
    return f"{text}; and {more:,} more" if more else text
