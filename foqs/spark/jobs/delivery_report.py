"""Reports times and failures of deliveries. `foqs spark delivery-report`, or this file for spark-submit."""

from __future__ import annotations

import click

from foqs.spark.events.delivery import DETAIL, delivery_table, with_hours
from foqs.spark.events.reading import Span, parse_time, read_log
from foqs.spark.jobs.reporting import dicts, report_options, show, write_page, write_tables
from foqs.spark.jobs.spark_session import session
from foqs.spark.reports.delivery_page import delivery_page, topic_table
from foqs.spark.reports.page import html_of
from foqs.spark.reports.plots import POINTS_MAX


@click.command("delivery-report")
@click.option("--top", type=click.IntRange(1, 1_000), default=50, show_default=True, help="Topics on the page.")
@report_options
def delivery_report(
    root: str,
    since: str | None,
    until: str | None,
    namespaces: tuple[str, ...],
    tables: str | None,
    html: str | None,
    master: str | None,
    top: int,
) -> None:
    """Report how items were delivered: times, attempts, redeliveries and failures by namespace, topic, priority, hour.

    Counts are of all items. Percentiles are exact where lives are sampled, otherwise they are bounds of buckets.
    """
    from pyspark.sql import functions as f

    span = Span(parse_time(since), parse_time(until))
    with session("delivery-report", master) as spark:
        spark.conf.set("spark.sql.session.timeZone", "UTC")
        rollups, lives = with_hours(*read_log(spark, root, span, namespaces))
        rollups, lives = rollups.cache(), lives.cache()
        lost_count = rollups.where("outcome = 'lost'").agg(f.coalesce(f.sum("count"), f.lit(0))).collect()[0][0]
        by_topic = delivery_table(rollups, lives, ["namespace", "topic"])
        topics = dicts(by_topic.orderBy(f.desc("failures"), f.desc("lives"), "namespace", "topic"), top)
        if tables is not None:
            detail = delivery_table(rollups, lives, DETAIL).orderBy("hour", "namespace", "topic", "priority")
            write_tables({"delivery": detail, "delivery_topics": by_topic}, tables)
        table = topic_table(topics)
        show(table.head, table.rows)
        click.echo(f"{lost_count:,} items were lost by the event log")
        if html is not None:
            hours = dicts(delivery_table(rollups, lives, ["hour"]).orderBy(f.desc("hour")), POINTS_MAX)[::-1]
            total = dicts(delivery_table(rollups, lives, []), 1)[0]
            write_page(html_of(delivery_page(total, hours, topics, lost_count=lost_count, source=root)), html)


def main() -> None:
    """Run the command under spark-submit."""
    delivery_report(prog_name="delivery-report")


if __name__ == "__main__":
    main()
