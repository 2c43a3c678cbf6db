"""The parts that all report jobs share: their options, and the output of tables and pages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from foqs.spark.jobs.spark_session import master_option

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def report_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of every report."""
    for option in (
        master_option,
        click.option("--html", metavar="FILE", help="Write the page here; a path, or a URL that pyarrow knows."),
        click.option("--tables", metavar="DIR", help="Write the whole tables here, as Parquet and as CSV."),
        click.option("--namespace", "namespaces", multiple=True, help="Only of this namespace; may be repeated."),
        click.option("--until", metavar="TIME", help="Before this time."),
        click.option("--since", metavar="TIME", help="From this time on, such as 2026-11-25T04:30 (UTC)."),
        click.option("--input", "root", required=True, help="Directory of the Parquet files of foqs spark compact."),
    ):
        command = option(command)
    return command


def write_tables(tables: dict[str, DataFrame], directory: str) -> None:
    """Write each table under its name, and replace an older one."""
    for name, table in tables.items():
        table.write.mode("overwrite").parquet(f"{directory.rstrip('/')}/{name}.parquet")
        table.write.mode("overwrite").option("header", "true").csv(f"{directory.rstrip('/')}/{name}.csv")


def write_page(text: str, place: str) -> None:
    """Write a page to a file or an object. Raises click.ClickException."""
    from pathlib import Path

    from pyarrow import ArrowException, fs

    try:
        if "://" in place:
            files, path = fs.FileSystem.from_uri(place)
        else:
            files, path = fs.LocalFileSystem(), str(Path(place).absolute())
        with files.open_output_stream(path) as stream:
            stream.write(text.encode())
    except (OSError, ArrowException) as error:
        raise click.ClickException(f"the page was not written to {place}: {error}") from error


def show(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table at the terminal."""
    table = [list(head), *[list(row) for row in rows]]
    widths = [max(len(row[at]) for row in table) for at in range(len(head))]
    for row in table:
        click.echo("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def dicts(table: DataFrame, rows_max: int) -> list[dict[str, Any]]:
    """The first rows, up to `rows_max`."""
    return [row.asDict() for row in table.limit(rows_max).collect()]
