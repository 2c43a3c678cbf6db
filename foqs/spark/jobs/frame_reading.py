"""The reader's options for jobs that read a namespace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from foqs.spark.read_options import topics_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_options_of(given: Mapping[str, object]) -> dict[str, str]:
    """The command's options as the reader's. For example, splits_per_shard is splitsPerShard; empty options are left
    out.
    """
    options: dict[str, str] = {}
    for name, value in given.items():
        if name == "no_payload":
            options["includePayload"] = "false" if value else "true"
        elif value:
            first, *others = name.split("_")
            camel = first + "".join(word.capitalize() for word in others)
            options[camel] = _text(name, value)
    return options


def _text(name: str, value: object) -> str:
    if not isinstance(value, tuple):
        return str(value)
    return topics_text(value) if name == "topics" else ",".join(value)


def read_frame(spark: SparkSession, options: Mapping[str, str], schema: str | None = None) -> DataFrame:
    """The selected items, with all columns or those of `schema`."""
    reader = spark.read.format("foqs").options(**options)
    return (reader if schema is None else reader.schema(schema)).load()
