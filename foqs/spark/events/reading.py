"""The source of reports: the Parquet files of `foqs spark compact`, within a span of time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NamedTuple

import click

from foqs.model.event_log import LIVES, ROLLUPS
from foqs.spark.events.parsing import SCHEMAS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class Span(NamedTuple):
    """A span of time in UTC, from `since` until before `until`; None is no bound."""

    since: datetime | None
    until: datetime | None


def parse_time(text: str | None) -> datetime | None:
    """Parse a time such as 2026-11-25 or 2026-11-25T04:30, in UTC unless it names a zone.

    Raises click.UsageError.
    """
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is not a time such as 2026-11-25 or 2026-11-25T04:30") from error
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


def read_log(spark: SparkSession, root: str, span: Span, namespaces: tuple[str, ...]) -> tuple[DataFrame, DataFrame]:
    """The roll-ups and the lives of the span and these namespaces (of all if none is given).

    Missing files are an empty frame, because hosts that log no lives write none.
    """
    return (
        _read(spark, root, ROLLUPS, "minute", span, namespaces),
        _read(spark, root, LIVES, "ended_at", span, namespaces),
    )


def _read(
    spark: SparkSession, root: str, kind: str, time_column: str, span: Span, namespaces: tuple[str, ...]
) -> DataFrame:
    from pyspark.errors import AnalysisException
    from pyspark.sql import functions as f

    schema = f"{SCHEMAS[kind]}, source_file string, date string, hour string"
    try:
        frame = spark.read.schema(schema).parquet(f"{root.rstrip('/')}/{kind}")
    except AnalysisException as error:
        if error.getCondition() != "PATH_NOT_FOUND":
            raise
        frame = spark.createDataFrame([], schema)
    # A folder is named by the time when a file was opened: up to an hour before its contents, or a little after.
    if span.since is not None:
        frame = frame.where(f.col("date") >= _date(span.since - timedelta(hours=2)))
        frame = frame.where(f.col(time_column) >= f.lit(span.since))
    if span.until is not None:
        frame = frame.where(f.col("date") <= _date(span.until + timedelta(hours=2)))
        frame = frame.where(f.col(time_column) < f.lit(span.until))
    if namespaces:
        frame = frame.where(f.col("namespace").isin(*namespaces) | (f.col("outcome") == "lost"))
    return frame


def _date(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%d")
