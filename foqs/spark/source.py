"""The data source that Spark uses for `.format("foqs")`."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from foqs.model.errors import InvalidArgumentError
from foqs.spark.columns import view_schema
from foqs.spark.option_texts import check_tokens
from foqs.spark.options import parse_options
from foqs.spark.read_options import is_for_reading, parse_read_options
from foqs.spark.reader import make_reader
from foqs.spark.rows import READ_SCHEMA
from foqs.spark.writer import make_stream_writer, make_writer


class FoqsDataSource(DataSource):
    """Writes batches and streams in mode append, and reads. All problems are one error before a task starts."""

    _is_copy = False
    """True in a copy that Spark has pickled. Spark makes a source for each micro-batch, and commits it with such a
    copy.
    """

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._is_copy = True

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> str:
        check_tokens(self.options)  # A view keeps its options before anything else looks at them.
        return READ_SCHEMA if is_for_reading(self.options) else view_schema(parse_options(self.options, []))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidArgumentError(
                "mode overwrite is refused: it would have to delete the items that others have enqueued; "
                'use mode("append"), and purge topics with the CLI where that is meant'
            )
        return make_writer(self.options, schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return make_reader(parse_read_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        if overwrite:
            raise InvalidArgumentError("output modes complete and update are refused: a queue only takes more items")
        return make_stream_writer(self.options, schema, for_commit=self._is_copy)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        raise InvalidArgumentError(
            "a queue is no source of a stream: it has no offsets that Spark could read again, since what is acked is "
            "gone; consume with foqs.Worker, or read a snapshot with spark.read"
        )
