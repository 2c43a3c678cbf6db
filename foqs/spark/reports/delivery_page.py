"""The delivery report as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foqs.spark.reports.page import Page, Section, Table
from foqs.spark.reports.plots import POINTS_MAX, Plot, PlotSeries
from foqs.spark.reports.words import OTHERS, count, duration, percent, percentile, plotted

Row = Mapping[str, Any]
_RANKS = ("p50", "p95", "p99")
_HOW = (
    "Percentiles are exact where lives are sampled (events_per_mille), over the sampled lives. Where none are, they "
    "come from the minute roll-ups, which have every delivery but know times by buckets: ≤ is the bound of the bucket."
)


def delivery_page(total: Row, hours: Sequence[Row], topics: Sequence[Row], *, lost_count: int, source: str) -> Page:
    """The page of the report: the totals, each hour in order, and the topics, most failures first."""
    hours = hours[-POINTS_MAX:]
    deliveries = sum(
        total[name] or 0 for name in ("acked", "nacked", "released", "lease_ended", "dead", "at_most_once")
    )
    failed_share = (total["failures"] or 0) / deliveries if deliveries else None
    span = (
        f"{hours[0]['hour']:%Y-%m-%d %H:%M} to {hours[-1]['hour']:%Y-%m-%d %H:%M} UTC, by the hour"
        if hours
        else "no data"
    )
    cards = [
        (count(total["lives"]), "lives ended"),
        (count(total["acked"]), "acked"),
        (percent(failed_share), "of deliveries failed"),
        (count(total["redeliveries"]), "redeliveries"),
        (count(total["dead"]), "dead letters"),
        (percentile(total, "wait", "p99"), "wait, p99"),
        (percentile(total, "processing", "p99"), "processing, p99"),
        (percent(total["sampled_share"]), "of lives sampled"),
        (count(lost_count), "lost by the event log"),
    ]
    moments = [row["hour"] for row in hours]
    ends = [
        PlotSeries(name.replace("_", " "), [row[name] for row in hours])
        for name in ("acked", "nacked", "lease_ended", "dead", "expired", "at_most_once")
    ]
    times = [
        Plot(title, "ms", moments, [PlotSeries(rank, [plotted(row, name, rank) for row in hours]) for rank in _RANKS],
             is_log=True)
        for name, title in (("wait", "Wait from ready to the first delivery"), ("processing", "Processing time"))
    ]  # fmt: skip
    return Page(
        "Delivery report",
        f"{span}; {source}",
        cards,
        [
            Section(
                "Ends of deliveries and lives",
                "",
                [Plot("Items by outcome", "items an hour", moments, ends, is_bars=True)],
            ),
            Section("Times", _HOW, times),
            Section("Topics", "The topics with the most failures come first.", tables=[topic_table(topics)]),
        ],
    )


def topic_table(topics: Sequence[Row]) -> Table:
    """A row for each topic."""
    head = ["namespace", "topic", "lives", "failures", "redeliveries", "dead", "attempts a life"]
    head += [f"{what} {rank}" for what in ("wait", "processing") for rank in _RANKS]
    head += ["mean processing", "sampled"]
    rows = []
    for row in topics:
        attempts = row["attempts"] / row["lives"] if row["lives"] else None
        rows.append(
            [
                row["namespace"] or OTHERS,
                row["topic"] or OTHERS,
                *[count(row[name]) for name in ("lives", "failures", "redeliveries", "dead")],
                "–" if attempts is None else f"{attempts:.2f}",
                *[percentile(row, name, rank) for name in ("wait", "processing") for rank in _RANKS],
                duration(row["processing_mean_ms"]),
                percent(row["sampled_share"]),
            ]
        )
    return Table(head, rows, (0, 1))
