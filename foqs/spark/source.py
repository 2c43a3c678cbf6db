"""What Spark asks when it meets `.format("foqs")`."""

from __future__ import annotations

from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamWriter, DataSourceWriter
from pyspark.sql.types import StructType

from foqs.model.errors import InvalidArgumentError
from foqs.spark.columns import SCHEMA
from foqs.spark.options import parse_write_options
from foqs.spark.writer import make_writer


class FoqsDataSource(DataSource):
    """Batch writes in mode append. Everything that can be wrong is one error before a task starts."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> str:
        return SCHEMA

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        if overwrite:
            raise InvalidArgumentError(
                "mode overwrite is refused: it would have to delete the items that others have enqueued; "
                'use mode("append"), and purge topics with the CLI where that is meant'
            )
        return make_writer(parse_write_options(self.options), schema)

    def reader(self, schema: StructType) -> DataSourceReader:
        raise InvalidArgumentError("reading with format foqs is not supported yet: it can be written to")

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        raise InvalidArgumentError(
            "streaming writes with format foqs are not supported yet: write each batch with foreachBatch"
        )
