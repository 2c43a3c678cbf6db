"""The writer of foqs with a clock for the processor time of its Python, and one that takes rows one by one beside it.

What a task took is a file in the directory `measures`: this is for one machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import Row, StructType

from foqs import AsyncClient, NewItem
from foqs.spark.plan import WritePlan
from foqs.spark.writer import FoqsWriter, make_writer, task_context

COLUMNS, ROWS = "columns", "rows"
"""The writers: what foqs ships, which encodes column by column, and one with an object for each row."""


class _Measures:
    def __init__(self, directory: str) -> None:
        self.directory = directory

    def leave(self, began_ns: int) -> None:
        name = f"{task_context().taskAttemptId()}-{time.time_ns()}"
        Path(self.directory, name).write_text(str(time.process_time_ns() - began_ns))


class MeasuredWriter(FoqsWriter):
    """The writer of foqs."""

    measures: _Measures

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        began_ns = time.process_time_ns()
        message = super().write(iterator)
        self.measures.leave(began_ns)
        return message


class RowWriter(DataSourceWriter):
    """What one would write with the plain client: an object for each row, encoded by itself."""

    def __init__(self, plan: WritePlan, measures: _Measures) -> None:
        self.plan = plan
        self.measures = measures

    def write(self, iterator: Iterator[Row]) -> WriterCommitMessage:
        began_ns = time.process_time_ns()
        asyncio.run(self._send(iterator))
        self.measures.leave(began_ns)
        return WriterCommitMessage()

    async def _send(self, rows: Iterator[Row]) -> None:
        plan = self.plan
        if plan.key_column is None:
            items = (NewItem(row.topic, bytes(row.payload)) for row in rows)
        else:
            items = (NewItem(row.topic, bytes(row.payload), dedup_id=row.dedup_id) for row in rows)
        async with AsyncClient(plan.options.addresses) as client:
            await client.enqueue_many(
                plan.options.namespace,
                items,
                retry_unknown=True,
                bulk=True,
                calls_in_flight=plan.options.calls_in_flight,
            )

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Every row is enqueued."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """What was enqueued stays."""


class MeasuredSource(DataSource):
    """The data source that makes them, by the option `writer`."""

    @classmethod
    def name(cls) -> str:
        return "foqs_measured"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        options = dict(self.options)
        kind, measures = options.pop("writer"), _Measures(options.pop("measures"))
        plan = make_writer(options, schema).plan
        if kind == ROWS:
            return RowWriter(plan, measures)
        writer = MeasuredWriter(plan)
        writer.measures = measures
        return writer
