"""PySpark finds data sources by this name: `df.write.format("foqs")` works without a registration.

Spark imports every module named pyspark_* when a session first asks for a format, so nothing of foqs is imported here
before the format is used.
"""

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


class DefaultSource(DataSource):
    """See foqs.spark.source.FoqsDataSource, which does the work."""

    @classmethod
    def name(cls) -> str:
        return "foqs"

    def schema(self) -> str:
        return str(self._source().schema())

    def reader(self, schema: StructType) -> DataSourceReader:
        reader: DataSourceReader = self._source().reader(schema)
        return reader

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        writer: DataSourceWriter = self._source().writer(schema, overwrite)
        return writer

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 (Spark's name)
        writer: DataSourceStreamWriter = self._source().streamWriter(schema, overwrite)
        return writer

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 (Spark's name)
        reader: DataSourceStreamReader = self._source().streamReader(schema)
        return reader

    def _source(self) -> Any:
        from foqs.spark.source import FoqsDataSource

        return FoqsDataSource(self.options)
