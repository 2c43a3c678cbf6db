"""Bulk enqueue: makes items of files that Spark can read. `foqs spark enqueue`, or this file for spark-submit."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from foqs.client.sync import AdminClient
from foqs.model.errors import FoqsError
from foqs.spark.credentials import CREDENTIAL_OPTIONS, Credentials
from foqs.spark.jobs.context_flag import context_flag
from foqs.spark.jobs.credential_flags import credential_flag, flag_of, with_tls
from foqs.spark.jobs.spark_session import master_option, session
from foqs.spark.options import DRAWN_JOB_ID, OPTIONS, Option, draw_job_id, parse_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PROGRESS_EVERY_S = 5.0


def _write_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command a flag for each option of the writer."""
    for name, option in reversed(OPTIONS.items()):
        command = _click_option(name, option)(command)
    return command


def _click_option(name: str, option: Option) -> Callable[[Callable[..., None]], Callable[..., None]]:
    if name in CREDENTIAL_OPTIONS:
        return credential_flag(name)
    flag, text = f"--{flag_of(name)}", option.meaning.replace("`", "")
    meaning = text[0].upper() + text[1:] + "."
    if name == "ignoreExtraColumns":
        return click.option(flag, is_flag=True, help=meaning)
    variable = "FOQS_ADDRESS" if name == "addresses" else None
    return click.option(flag, envvar=variable, help=meaning)


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
@_write_options
@master_option
@context_flag()
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

    Each key of the key column is enqueued once, even if Spark repeats tasks or the command is run again. A job id names
    one load, so after a successful run the next one needs another job id, or none.
    """
    reader_options = dict(_pair(text) for text in reader_option)
    options, credentials = _writer_options(with_tls(write_options))
    with session("enqueue", master) as spark:
        frame = spark.read.format(kind).options(**reader_options).load(list(paths))
        if where is not None:
            frame = frame.where(where)
        if select:
            frame = frame.selectExpr(*select)
        if partitions is not None:
            frame = frame.repartition(partitions)
        _run(spark, frame, options, credentials)


def main() -> None:
    """Run the command under spark-submit."""
    enqueue(prog_name="enqueue")


def _run(spark: SparkSession, frame: DataFrame, options: dict[str, str], credentials: Credentials) -> None:
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    rows = Observation("foqs")
    began_s = time.monotonic()
    with _progress(spark, options, credentials):
        observed = frame.observe(rows, count(lit(1)).alias("rows"))
        observed.write.format("foqs").options(**options).mode("append").save()
    elapsed_s = time.monotonic() - began_s
    rows_count = int(rows.get["rows"])
    # The writer has printed the number of items.
    click.echo(f"{rows_count:,} rows in {elapsed_s:.1f} s: {rows_count / elapsed_s:,.0f} rows/s")


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise click.UsageError(f"--reader-option {text!r} is not NAME=VALUE")
    return name, value


def _writer_options(given: dict[str, object]) -> tuple[dict[str, str], Credentials]:
    """The command's options as the writer's, and the credentials in them.

    Raises ClickException for invalid options, before Spark starts.
    """
    options = {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name in OPTIONS
        if (value := given[flag_of(name).replace("-", "_")]) is not None and value is not False
    }
    problems: list[str] = []
    credentials = parse_options(options, problems).credentials
    if problems:
        raise click.ClickException("; ".join(problems))
    if "jobId" not in options:
        options[DRAWN_JOB_ID] = draw_job_id()
    return options, credentials


@contextmanager
def _progress(spark: SparkSession, options: dict[str, str], credentials: Credentials) -> Iterator[None]:
    """Print the number of finished tasks and of counted items every PROGRESS_EVERY_S while the job runs."""
    tracker = spark.sparkContext.statusTracker()
    is_over = threading.Event()

    def print_progress() -> None:
        with AdminClient(options["addresses"], **credentials.client_arguments()) as admin:
            while not is_over.wait(PROGRESS_EVERY_S):
                line = _counted(admin, options)
                for stage_id in tracker.getActiveStageIds():
                    stage = tracker.getStageInfo(stage_id)
                    if stage is not None:
                        line = f"{stage.numCompletedTasks} of {stage.numTasks} tasks done{line}"
                        print(line, file=sys.stderr, flush=True)

    printer = threading.Thread(target=print_progress, name="progress", daemon=True)
    printer.start()
    try:
        yield
    finally:
        is_over.set()
        printer.join()


def _counted(admin: AdminClient, options: dict[str, str]) -> str:
    try:
        job = admin.get_job(options["namespace"], options.get("jobId") or options[DRAWN_JOB_ID])
    except FoqsError:
        return ""  # Not begun, or its host is unreachable: the writer waits too.
    return f", {job.items_count:,} items, {job.duplicates_count:,} there before, {job.rejected_count:,} refused"


if __name__ == "__main__":
    main()
