"""What Spark asks when it meets `.format("foqs")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from foqs.model.errors import InvalidArgumentError
from foqs.spark.columns import SCHEMA
from foqs.spark.options import parse_write_options
from foqs.spark.read_options import is_for_reading, parse_read_options
from foqs.spark.reader import make_reader
from foqs.spark.rows import READ_SCHEMA
from foqs.spark.writer import make_writer


class FoqsDataSource(DataSource):
    """Batch writes in mode append, and reads. Everything that can be wrong is one error before a task starts."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> str:
        return READ_SCHEMA if is_for_reading(self.options) else SCHEMA

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidArgumentError(
                "mode overwrite is refused: it would have to delete the items that others have enqueued; "
                'use mode("append"), and purge topics with the CLI where that is meant'
            )
        return make_writer(parse_write_options(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        return make_reader(parse_read_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        raise InvalidArgumentError(
            "streaming writes with format foqs are not supported yet: write each batch with foreachBatch"
        )
