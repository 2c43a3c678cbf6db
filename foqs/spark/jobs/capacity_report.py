"""Enqueues a minute against quotas, and suggested quotas. `foqs spark capacity-report`, or this for spark-submit."""

from __future__ import annotations

from typing import Any

import click

from foqs.client.sync import AdminClient
from foqs.model.errors import FoqsError
from foqs.spark.credentials import Credentials
from foqs.spark.events.capacity import minute_table, namespace_table, suggestions
from foqs.spark.events.reading import Span, parse_time, read_log
from foqs.spark.jobs.context_flag import context_flag
from foqs.spark.jobs.credential_flags import credential_flags, taken_credentials
from foqs.spark.jobs.reporting import dicts, report_options, show, write_page, write_tables
from foqs.spark.jobs.spark_session import session
from foqs.spark.reports.capacity_page import capacity_page, suggestion_table
from foqs.spark.reports.page import html_of
from foqs.spark.reports.plots import POINTS_MAX

NAMESPACES_MAX = 20_000
"""Most namespaces of a cluster."""


@click.command("capacity-report")
@click.option("--addresses", envvar="FOQS_ADDRESS", help="Hosts as host:port, comma-separated, to ask for the quotas.")
@click.option(
    "--horizon-days", type=click.IntRange(1, 365), default=30, show_default=True, help="How far to look ahead."
)
@click.option(
    "--headroom", type=click.FloatRange(1, 10), default=1.25, show_default=True, help="Times the expected peak."
)
@click.option("--top", type=click.IntRange(1, 100), default=10, show_default=True, help="Namespaces that are drawn.")
@credential_flags
@report_options
@context_flag(needs_hosts=False)
def capacity_report(
    root: str,
    since: str | None,
    until: str | None,
    namespaces: tuple[str, ...],
    tables: str | None,
    html: str | None,
    master: str | None,
    addresses: str | None,
    horizon_days: int,
    headroom: float,
    top: int,
    **given: Any,
) -> None:
    """Report the enqueues a minute of namespaces, their growth, and suggested quotas."""
    from pyspark.sql import functions as f

    span = Span(parse_time(since), parse_time(until))
    quotas = _quotas(addresses, taken_credentials(given))
    with session("capacity-report", master) as spark:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        rollups, _ = read_log(spark, root, span, namespaces)
        minutes = minute_table(rollups).cache()
        lost_count = rollups.where("outcome = 'lost'").agg(f.coalesce(f.sum("count"), f.lit(0))).collect()[0][0]
        rows = dicts(namespace_table(minutes), NAMESPACES_MAX)
        found = suggestions(rows, quotas, horizon_days=horizon_days, headroom=headroom)
        table = suggestion_table(found)
        show(table.head, table.rows)
        if tables is not None:
            figures = [
                (row["namespace"], said.quota, said.used_share, said.growth_share, said.suggested)
                for row, said in found
            ]
            columns = "namespace string, quota bigint, used_share double, growth_share double, suggested_quota bigint"
            suggested = spark.createDataFrame(figures, columns)
            whole = namespace_table(minutes).drop("slope").join(suggested, "namespace")
            write_tables({"capacity": whole, "capacity_minutes": minutes.orderBy("namespace", "minute")}, tables)
        if html is not None:
            hourly = minutes.groupBy("namespace", f.date_trunc("hour", "minute").alias("hour")).agg(
                f.max("enqueued").alias("enqueued_max"), f.max("refused").alias("refused_max")
            )
            drawn = {
                row["namespace"]: dicts(
                    hourly.where(f.col("namespace") == row["namespace"]).orderBy(f.desc("hour")), POINTS_MAX
                )[::-1]
                for row, _ in found[:top]
            }
            page = capacity_page(
                found, drawn, horizon_days=horizon_days, headroom=headroom, lost_count=lost_count, source=root
            )
            write_page(html_of(page), html)


def _quotas(addresses: str | None, credentials: Credentials) -> dict[str, int]:
    """The present quota of each namespace; empty without addresses."""
    if addresses is None:
        return {}
    try:
        credentials.check_files()
        with AdminClient(addresses, **credentials.client_arguments()) as admin:
            return {one.name: one.settings.enqueues_per_minute_max for one in admin.list_namespaces()}
    except FoqsError as error:
        raise click.ClickException(f"the quotas could not be read: {error}") from error


def main() -> None:
    """Run the command under spark-submit."""
    capacity_report(prog_name="capacity-report")


if __name__ == "__main__":
    main()
