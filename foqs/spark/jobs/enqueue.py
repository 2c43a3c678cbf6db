"""Bulk enqueue: files that Spark can read become items. `foqs spark enqueue`, or this file for spark-submit."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from foqs.model import limits
from foqs.spark.options import CALLS_IN_FLIGHT_DEFAULT, RETRY_TIMEOUT_MS_DEFAULT

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRESS_EVERY_S = 5.0
_ERROR_LINE = re.compile(r"^foqs\.[\w.]+: (.+)$", re.MULTILINE)
"""The last line of a Python traceback within a message of Spark."""


@click.command()
@click.option("--input", "paths", required=True, multiple=True, help="A file or directory to read; may be repeated.")
@click.option("--format", "kind", type=click.Choice(["parquet", "json", "csv"]), required=True, help="Of the input.")
@click.option("--reader-option", multiple=True, metavar="NAME=VALUE", help="For Spark's reader, such as header=true.")
@click.option(
    "--select",
    multiple=True,
    metavar="EXPRESSION",
    help="A column as SQL, such as 'to_json(struct(*)) AS payload'; may be repeated. All columns by default.",
)
@click.option("--where", metavar="CONDITION", help="Enqueue the rows for which this SQL holds.")
@click.option("--partitions", type=click.IntRange(1), help="Enqueue in this many tasks.")
@click.option("--addresses", required=True, envvar="FOQS_ADDRESS", help="Hosts as host:port, comma-separated.")
@click.option("--namespace", required=True, help="The namespace to enqueue into.")
@click.option("--topic", help="The topic of all rows, instead of a column topic.")
@click.option(
    "--dedup",
    type=click.Choice(["none"]),
    required=True,
    help="none: rows of a task that Spark repeats are enqueued twice.",
)
@click.option("--batch-size", default=limits.BATCH_ITEMS_MAX, show_default=True, help="Rows in one call.")
@click.option("--max-in-flight", default=CALLS_IN_FLIGHT_DEFAULT, show_default=True, help="Calls in flight of a task.")
@click.option("--max-invalid-rows", default=0, show_default=True, help="Refused rows before the job fails.")
@click.option("--retry-timeout-ms", default=RETRY_TIMEOUT_MS_DEFAULT, show_default=True, help="Patience of one call.")
@click.option("--ignore-extra-columns", is_flag=True, help="Leave columns out that have no meaning.")
@click.option("--master", help="Spark's master, such as spark://host:7077; by default what Spark is configured with.")
def enqueue(
    paths: tuple[str, ...],
    kind: str,
    reader_option: tuple[str, ...],
    select: tuple[str, ...],
    where: str | None,
    partitions: int | None,
    master: str | None,
    **write_options: object,
) -> None:
    """Enqueue the rows of files with Spark: columns topic, payload, priority and so on, by name.

    At least once: no row is lost, and rows of a task that Spark repeats are enqueued again.
    """
    reader_options = dict(_pair(text) for text in reader_option)
    with _session(master) as spark:
        frame = spark.read.format(kind).options(**reader_options).load(list(paths))
        if where is not None:
            frame = frame.where(where)
        if select:
            frame = frame.selectExpr(*select)
        if partitions is not None:
            frame = frame.repartition(partitions)
        _run(spark, frame, _writer_options(write_options))


def main() -> None:
    """Run the command under spark-submit."""
    enqueue(prog_name="enqueue")


def _run(spark: SparkSession, frame: DataFrame, options: dict[str, str]) -> None:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    rows = Observation("foqs")
    began_s = time.monotonic()
    with _progress(spark):
        observed = frame.observe(rows, count(lit(1)).alias("rows"))
        observed.write.format("foqs").options(**options).mode("append").save()
    elapsed_s = time.monotonic() - began_s
    rows_count = int(rows.get["rows"])
    # How many of them became items was told by the writer.
    click.echo(f"{rows_count:,} rows in {elapsed_s:.1f} s: {rows_count / elapsed_s:,.0f} rows/s")


@contextmanager
def _session(master: str | None) -> Iterator[SparkSession]:
    """A session, stopped at the end; what Spark raises becomes one line."""
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise click.ClickException(f"Spark is not installed ({error}): pip install 'foqs[spark]'") from error
    builder = SparkSession.builder.appName("foqs enqueue")
    try:
        spark = (builder.master(master) if master else builder).getOrCreate()
        try:
            yield spark
        finally:
            spark.stop()
    except (PySparkException, Py4JError) as error:
        told = _ERROR_LINE.findall(str(error))
        raise click.ClickException(told[-1] if told else str(error)) from error


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise click.UsageError(f"--reader-option {text!r} is not NAME=VALUE")
    return name, value


def _writer_options(given: dict[str, object]) -> dict[str, str]:
    """The command's options as the writer's: batch_size is batchSize."""
    options = {}
    for name, value in given.items():
        if value is not None:
            first, *others = name.split("_")
            camel = first + "".join(word.capitalize() for word in others)
            options[camel] = str(value).lower() if isinstance(value, bool) else str(value)
    return options


@contextmanager
def _progress(spark: SparkSession) -> Iterator[None]:
    """Say how many tasks are done, now and then, while the job runs."""
    tracker = spark.sparkContext.statusTracker()
    is_over = threading.Event()

    def tell() -> None:
        while not is_over.wait(PROGRESS_EVERY_S):
            for stage_id in tracker.getActiveStageIds():
                stage = tracker.getStageInfo(stage_id)
                if stage is not None:
                    print(f"{stage.numCompletedTasks} of {stage.numTasks} tasks done", file=sys.stderr, flush=True)

    teller = threading.Thread(target=tell, name="progress", daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


if __name__ == "__main__":
    main()
