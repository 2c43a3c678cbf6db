"""Converts event log files of many hosts to Parquet. Each file is converted once, however often a run is repeated."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foqs.model.event_log import LIVES
from foqs.spark.events.parsing import FILE_SCHEMA, SCHEMAS, arrow_schema, batches_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

FILES_AT_A_TIME_MAX = 20_000
"""Most event log files that one job of Spark converts, because its plan has all their names."""
_FILE_COLUMNS = ["lines", "torn_lines", "is_torn"]


@dataclass(slots=True)
class Compacted:
    """The result of one run for the files of one kind."""

    files_count: int = 0
    """Number of files that this run has added to the Parquet files."""
    rows_count: int = 0
    torn_lines_count: int = 0
    """Number of lines that could not be parsed, and were left out."""
    torn_files_count: int = 0
    """Number of files whose ends are missing."""
    files_before_count: int = 0
    """Number of files that were in the Parquet files before."""


@dataclass(frozen=True, slots=True)
class CompactionPlan:
    """The files and the options of a compaction."""

    inputs: tuple[str, ...]
    """Directories of event logs, each with the folders `lives` and `rollups`, or patterns; any URL that Spark reads."""
    output: str
    since: str = ""
    """The first hour, as in 2026-11-25T04 (UTC); empty for no bound."""
    until: str = ""
    """The hour after the last one; empty for no bound."""
    parts_per_hour: int = 1
    takes_torn: bool = False
    """True to take the readable lines of files whose ends are missing. The rest of such a file is then never taken."""


def compact(spark: SparkSession, kind: str, plan: CompactionPlan) -> Compacted:
    """Append the new files of one kind to the Parquet files, partitioned by the date and hour of the input folders.

    A repeated run recognizes an event log file by its name in the Parquet files. A Parquet file appears as a whole, so
    a run that is cut off leaves nothing half done. Two runs at a time are not allowed.
    """
    target = f"{plan.output.rstrip('/')}/{kind}"
    new, before_count = _new_files(spark, kind, plan, target)
    done = Compacted(files_before_count=before_count)
    for start in range(0, len(new), FILES_AT_A_TIME_MAX):
        _append(spark, kind, plan, new[start : start + FILES_AT_A_TIME_MAX], target, done)
    return done


def _new_files(spark: SparkSession, kind: str, plan: CompactionPlan, target: str) -> tuple[list[str], int]:
    """The paths of the files that are not in the Parquet files yet, and the number of files that are."""
    from pyspark.sql import functions as f

    listed = [frame for root in plan.inputs if (frame := _files(spark, [f"{root.rstrip('/')}/{kind}"], "*.jsonl.gz"))]
    if not listed:
        return [], 0
    paths = listed[0].select("path")
    for other in listed[1:]:
        paths = paths.union(other.select("path"))
    name, folder = f.element_at(f.split("path", "/"), -1), f.regexp_extract("path", _FOLDER, 0)
    hour = f.regexp_replace(f.regexp_replace(folder, "date=", ""), "/hour=", "T")
    found = paths.select("path", name.alias("source_file"), hour.alias("folder_hour"))
    found = found.where(f.col("folder_hour") != "")
    if plan.since:
        found = found.where(f.col("folder_hour") >= plan.since)
    if plan.until:
        found = found.where(f.col("folder_hour") < plan.until)
    # Several inputs can have copies of one file.
    found = found.groupBy("source_file").agg(f.min("path").alias("path"))
    known = _read_if_there(spark, target)
    if known is None:
        return sorted(row.path for row in found.select("path").collect()), 0
    names = known.select("source_file").distinct()
    before_count = found.join(names, "source_file", "left_semi").count()
    return sorted(
        row.path for row in found.join(names, "source_file", "left_anti").select("path").collect()
    ), before_count


_FOLDER = r"date=\d{4}-\d\d-\d\d/hour=\d\d"


def _files(spark: SparkSession, paths: list[str], pattern: str = "*") -> DataFrame | None:
    """The files below these paths with their contents; None if a path is missing."""
    from pyspark.errors import AnalysisException

    try:
        reader = spark.read.format("binaryFile").option("pathGlobFilter", pattern).option("recursiveFileLookup", "true")
        return reader.load(paths)
    except AnalysisException as error:
        if error.getCondition() == "PATH_NOT_FOUND":
            return None
        raise


def _read_if_there(spark: SparkSession, path: str) -> DataFrame | None:
    from pyspark.errors import AnalysisException

    try:
        return spark.read.parquet(path)
    except AnalysisException as error:
        if error.getCondition() in ("PATH_NOT_FOUND", "UNABLE_TO_INFER_SCHEMA"):
            return None
        raise


def _append(
    spark: SparkSession, kind: str, plan: CompactionPlan, paths: list[str], target: str, done: Compacted
) -> None:
    from pyspark.sql import Observation
    from pyspark.sql import functions as f

    files = _files(spark, paths)
    assert files is not None, "they were just listed"
    schema, takes_torn = f"{SCHEMAS[kind]}, {FILE_SCHEMA}", plan.takes_torn

    def parse(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return _parsed(batches, kind, schema, takes_torn=takes_torn)

    before = {name: spark.conf.get(name, None) for name in _SETTINGS}
    for name, value in _SETTINGS.items():
        spark.conf.set(name, value)
    try:
        rows = files.select("path", "content").mapInArrow(parse, schema)
        observed = Observation(f"foqs-{kind}")
        is_file = f.col("lines").isNotNull()
        rows = rows.observe(
            observed,
            f.count_if(is_file & (f.col("lines") > f.col("torn_lines"))).alias("files"),
            f.count_if(~is_file).alias("rows"),
            f.coalesce(f.sum("torn_lines"), f.lit(0)).alias("torn_lines"),
            f.count_if(f.col("is_torn")).alias("torn_files"),
        )
        kept = rows.where(~is_file).drop(*_FILE_COLUMNS)
        part = f.pmod(f.xxhash64("source_file"), f.lit(plan.parts_per_hour))
        order = ["namespace", "topic", "ended_at" if kind == LIVES else "minute"]
        kept = kept.repartition("date", "hour", part).sortWithinPartitions("date", "hour", *order)
        kept.write.mode("append").partitionBy("date", "hour").parquet(target)
    finally:
        for name, former in before.items():
            if former is None:
                spark.conf.unset(name)
            else:
                spark.conf.set(name, former)
    counts: dict[str, Any] = observed.get
    done.files_count += int(counts["files"])
    done.rows_count += int(counts["rows"])
    done.torn_lines_count += int(counts["torn_lines"])
    done.torn_files_count += int(counts["torn_files"])


_SETTINGS = {
    # A file can be large, and a batch would hold many files.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    # This rule would cut the counts out of a plan whose files have no rows, for instance because all are torn.
    "spark.sql.adaptive.optimizer.excludedRules": "org.apache.spark.sql.execution.adaptive.AQEPropagateEmptyRelation",
}
"""Settings of Spark while files are converted."""


def _parsed(batches: Iterator[pa.RecordBatch], kind: str, schema: str, *, takes_torn: bool) -> Iterator[pa.RecordBatch]:
    """The rows of files, in a task."""

    def files() -> Iterator[tuple[str, str, str, bytes]]:
        for batch in batches:
            for path, content in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                *_, date, hour, name = path.split("/")
                yield name, date.removeprefix("date="), hour.removeprefix("hour="), content

    return batches_of(kind, arrow_schema(schema), files(), takes_torn=takes_torn)
