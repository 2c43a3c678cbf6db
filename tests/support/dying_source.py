"""A data source for Spark whose worker dies; in a module of its own, which the workers import."""

from __future__ import annotations

import os
import signal
from typing import Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from foqs.spark.options import parse_write_options
from foqs.spark.writer import FoqsWriter, make_writer


class _DyingWriter(FoqsWriter):
    """Its worker is killed after it has sent all, once."""

    def write(self, iterator: Any) -> WriterCommitMessage:
        message = super().write(iterator)
        context = TaskContext.get()
        assert context is not None
        if context.partitionId() == 1 and context.attemptNumber() == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return message


class DyingSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return "foqs_dying"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        return _DyingWriter(make_writer(parse_write_options(self.options), schema).options)
