"""Converts event log files of hosts to Parquet. `foqs spark compact`, or this file for spark-submit."""

from __future__ import annotations

import re

import click

from foqs.model.event_log import LIVES, ROLLUPS
from foqs.spark.events.compaction import CompactionPlan
from foqs.spark.events.compaction import compact as compact_kind
from foqs.spark.jobs.spark_session import master_option, session

_HOUR = re.compile(r"\d{4}-\d\d-\d\d(T\d\d)?")


def _hour(context: click.Context, parameter: click.Parameter, value: str | None) -> str:
    if value is not None and not _HOUR.fullmatch(value):
        raise click.BadParameter(f"{value!r} is not an hour such as 2026-11-25T04, or a day")
    return value or ""


@click.command()
@click.option(
    "--input", "inputs", required=True, multiple=True, help="Directory of event logs, or a pattern; may be repeated."
)
@click.option("--output", required=True, help="Directory of the Parquet files.")
@click.option("--since", callback=_hour, metavar="HOUR", help="First folder to take, such as 2026-11-25T04 (UTC).")
@click.option("--until", callback=_hour, metavar="HOUR", help="The folder after the last one to take.")
@click.option(
    "--parts-per-hour", type=click.IntRange(1, 10_000), default=1, show_default=True, help="Parquet files an hour."
)
@click.option("--take-torn", is_flag=True, help="Take what can be read of files whose ends are missing, for good.")
@master_option
def compact(
    inputs: tuple[str, ...],
    output: str,
    since: str,
    until: str,
    parts_per_hour: int,
    take_torn: bool,
    master: str | None,
) -> None:
    """Turn event log files of many hosts into Parquet by date and hour.

    It can be repeated at any time, one run after the other. Each file is taken once, even if it comes late.
    """
    plan = CompactionPlan(inputs, output, since, until, parts_per_hour, take_torn)
    with session("compact", master) as spark:
        for kind in (LIVES, ROLLUPS):
            done = compact_kind(spark, kind, plan)
            click.echo(
                f"{kind}: {done.rows_count:,} rows of {done.files_count:,} files; {done.files_before_count:,} files "
                f"were there before; {done.torn_lines_count:,} torn lines, {done.torn_files_count:,} torn files"
            )


def main() -> None:
    """Run the command under spark-submit."""
    compact(prog_name="compact")


if __name__ == "__main__":
    main()
