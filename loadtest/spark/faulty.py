"""`format("foqs_faulty")`: the writers of foqs in tasks that die, linger and are repeated, for tests and proofs.

The option `faults` is JSON: a `directory`, where each attempt leaves a mark, and for each fault the partitions that
meet it. A fault happens once for each of them, on the first attempt that gets there:

    fail_midway     an exception after the first three batches of Arrow
    fail            an exception after all rows are sent
    kill_worker     SIGKILL of the Python worker after all rows are sent
    kill_executor   SIGKILL of the JVM of the executor after all rows are sent
    linger          after the first rows, until a second attempt of the partition has sent all of its own
    hold            after the first rows, until the file `go` is in the directory; `held-N` says that partition N waits

Each writer of a stream leaves a mark as well: `prepared-` for one whose tasks are to run, `for-commit-` for the other.
What waits gives up after `patience_s`. `fail_commit` lets the first commit raise. `positions` makes dedup ids of (job,
partition, position), which is wrong.
"""

from __future__ import annotations

import json
import os
import signal
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs.client.encoded import EncodedItems
from foqs.spark.dedup_ids import ContentIds
from foqs.spark.encoding import RowEncoder
from foqs.spark.plan import WritePlan
from foqs.spark.source import FoqsDataSource
from foqs.spark.writer import FoqsStreamWriter, FoqsWriter, make_stream_writer, make_writer, task_context

PATIENCE_S = 120.0
_LOOK_EVERY_S = 0.02


class InjectedError(Exception):
    """A failure that a test asked for."""


@dataclass(frozen=True)
class Faults:
    """Which faults which partitions meet."""

    directory: str
    fail: Sequence[int] = ()
    fail_midway: Sequence[int] = ()
    kill_worker: Sequence[int] = ()
    kill_executor: Sequence[int] = ()
    linger: Sequence[int] = ()
    hold: Sequence[int] = ()
    fail_commit: bool = False
    positions: bool = False
    patience_s: float = PATIENCE_S

    def mark(self, name: str) -> bool:
        """Leave a mark; False when it is there already."""
        try:
            Path(self.directory, name).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def first(self, fault: str, partition: int) -> bool:
        """Tell whether this partition meets the fault now."""
        return partition in getattr(self, fault) and self.mark(f"{fault}-{partition}")

    def wait_for(self, pattern: str) -> None:
        deadline_s = time.monotonic() + self.patience_s
        while not list(Path(self.directory).glob(pattern)):
            if time.monotonic() > deadline_s:
                raise InjectedError(f"no {pattern} within {self.patience_s} s")
            time.sleep(_LOOK_EVERY_S)


class PositionIds(ContentIds):
    """The wrong ids: a repeated task meets its rows in another order, and gives one row the id of another."""

    def __init__(self, job_id: str, partition: int) -> None:
        super().__init__(job_id, partition)
        self._prefix = f"{job_id}/{partition}"
        self._position = 0

    def take(self, rows: EncodedItems) -> list[str]:
        first, self._position = self._position, self._position + len(rows)
        return [f"{self._prefix}/{position}" for position in range(first, self._position)]


class PositionPlan(WritePlan):
    """The plan of a write with the wrong ids."""

    def encoder(self, run_id: str, partition: int) -> RowEncoder:
        return RowEncoder(topic=self.options.topic, content_ids=PositionIds(run_id, partition))


class _FaultyMixin:
    faults: Faults

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        faults, context = self.faults, task_context()
        partition, attempt = context.partitionId(), context.taskAttemptId()
        faults.mark(f"begun-{partition}-{context.attemptNumber()}-{attempt}")
        message: WriterCommitMessage = super().write(self._with_faults(iterator, partition, attempt))  # type: ignore[misc]
        faults.mark(f"sent-{partition}-{attempt}")
        if faults.first("fail", partition):
            raise InjectedError(f"partition {partition} fails after it has sent its rows")
        if faults.first("kill_worker", partition):
            os.kill(os.getpid(), signal.SIGKILL)
        if faults.first("kill_executor", partition):
            os.kill(_parent_of(os.getppid()), signal.SIGKILL)
        return message

    def _with_faults(self, iterator: Iterator[Any], partition: int, attempt: int) -> Iterator[Any]:
        for number, batch in enumerate(iterator):
            yield batch
            if number == 2 and self.faults.first("fail_midway", partition):
                raise InjectedError(f"partition {partition} fails after {number + 1} batches")
            if number == 0 and self.faults.first("hold", partition):
                self.faults.mark(f"held-{partition}")
                self.faults.wait_for("go")
            if number == 0 and self.faults.first("linger", partition):
                self.faults.mark(f"lingers-{partition}-{attempt}")
                self.faults.wait_for(f"sent-{partition}-*")


class FaultyWriter(_FaultyMixin, FoqsWriter):
    """The batch writer with faults."""

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        if self.faults.fail_commit and self.faults.mark("commit-failed"):
            raise InjectedError("the commit fails once")
        super().commit(messages)


class FaultyStreamWriter(_FaultyMixin, FoqsStreamWriter):
    """The stream writer with faults."""

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 (Spark's name)
        if self.faults.fail_commit and self.faults.mark("commit-failed"):
            raise InjectedError("the commit fails once")
        super().commit(messages, batchId)


class FaultySource(FoqsDataSource):
    """The data source that makes them."""

    @classmethod
    def name(cls) -> str:
        return "foqs_faulty"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        faults, options = self._split()
        plan = make_writer(options, schema).plan
        if faults.positions:
            plan = PositionPlan(**{field.name: getattr(plan, field.name) for field in fields(plan)})
        writer = FaultyWriter(plan)
        writer.faults = faults
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        faults, options = self._split()
        made = make_stream_writer(options, schema, for_commit=self._is_copy)
        faults.mark(f"{'for-commit' if self._is_copy else 'prepared'}-{uuid.uuid4()}")
        writer = FaultyStreamWriter(made.plan, is_prepared=not self._is_copy)
        writer.faults = faults
        return writer

    def _split(self) -> tuple[Faults, dict[str, str]]:
        options = dict(self.options)
        return Faults(**json.loads(options.pop("faults"))), options


def told(directory: Path, **faults: Any) -> str:
    """The option `faults`."""
    return json.dumps({"directory": str(directory), **faults})


def _parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
