"""Export: writes the items of a namespace to files. `foqs spark export`, or this file for spark-submit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import click

from foqs.model import limits
from foqs.spark.jobs.context_flag import context_flag
from foqs.spark.jobs.credential_flags import credential_flags, with_tls
from foqs.spark.jobs.frame_reading import read_frame, read_options_of
from foqs.spark.jobs.spark_session import master_option, session
from foqs.spark.read_options import RETRY_TIMEOUT_MS_DEFAULT, state_names

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

_CSV = {
    "header": "true",
    "escape": '"',  # A quote within a text is doubled, as programs other than Spark expect.
    "ignoreLeadingWhiteSpace": "false",  # By default Spark trims texts, but " a" and "a" are two topics.
    "ignoreTrailingWhiteSpace": "false",
}


@click.command()
@click.option("--output", required=True, help="The directory to write, which must not exist unless --mode says so.")
@click.option("--format", "kind", type=click.Choice(["parquet", "json", "csv"]), required=True, help="Of the output.")
@click.option(
    "--mode", type=click.Choice(["errorifexists", "overwrite", "append"]), default="errorifexists", show_default=True
)
@click.option("--addresses", envvar="FOQS_ADDRESS", help="Hosts as host:port, comma-separated.")
@click.option("--namespace", required=True, help="The namespace to export.")
@click.option("--state", multiple=True, type=click.Choice(state_names()), help="May be repeated. Default: all.")
@click.option("--topic", "topics", multiple=True, help="Only items of this topic; may be repeated. Default: all.")
@click.option("--topic-prefix", help="Only items of topics with this prefix.")
@click.option("--where", metavar="CONDITION", help="Export the rows for which this SQL holds.")
@click.option("--select", multiple=True, metavar="EXPRESSION", help="A column as SQL; may be repeated. Default: all.")
@click.option("--splits-per-shard", type=click.IntRange(1, limits.EXPORT_SPLITS_MAX), default=1, show_default=True)
@click.option("--no-payload", is_flag=True, help="Leave payloads out: they are null.")
@click.option("--retry-timeout-ms", default=RETRY_TIMEOUT_MS_DEFAULT, show_default=True, help="Patience of one call.")
@credential_flags
@master_option
@context_flag()
def export(
    output: str, kind: str, mode: str, where: str | None, select: tuple[str, ...], master: str | None, **given: object
) -> None:
    """Write the stored items of a namespace to files: ready, delayed, leased and dead items, a row each.

    The export changes and leases nothing. Payloads and metadata are binary in Parquet, and base64 in JSON and CSV.
    """
    with session("export", master) as spark:
        frame = read_frame(spark, read_options_of(with_tls(given)))
        if where is not None:
            frame = frame.where(where)
        if select:
            frame = frame.selectExpr(*select)
        _write(frame, output, kind, mode)


def _write(frame: DataFrame, output: str, kind: str, mode: str) -> None:
    from pyspark.sql import Observation
    from pyspark.sql.functions import base64, col, count, lit

    if kind != "parquet":
        binary = [field.name for field in frame.schema.fields if field.dataType.simpleString() == "binary"]
        for name in binary:
            frame = frame.withColumn(name, base64(col(f"`{name}`")))
    rows = Observation("foqs")
    began_s = time.monotonic()
    writer = frame.observe(rows, count(lit(1)).alias("rows")).write.mode(mode)
    (writer.options(**_CSV) if kind == "csv" else writer).format(kind).save(output)
    click.echo(f"{int(rows.get['rows']):,} items in {time.monotonic() - began_s:.1f} s: {output}")


def main() -> None:
    """Run the command under spark-submit."""
    export(prog_name="export")


if __name__ == "__main__":
    main()
