"""The capacity report as a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foqs.spark.events.capacity import Suggestion
from foqs.spark.reports.page import Page, Section, Table
from foqs.spark.reports.plots import POINTS_MAX, Plot, PlotSeries
from foqs.spark.reports.words import count, percent

Row = Mapping[str, Any]


def suggestion_table(found: Sequence[tuple[Row, Suggestion]]) -> Table:
    """A row for each namespace."""
    head = [
        "namespace", "quota a minute", "highest minute", "of quota", "p99", "median", "refused",
        "minutes with refusals", "growth", "suggested quota",
    ]  # fmt: skip
    rows = [
        [
            row["namespace"],
            count(said.quota),
            count(row["enqueued_max"]),
            percent(said.used_share),
            count(row["enqueued_p99"]),
            count(row["enqueued_p50"]),
            count(row["refused"]),
            count(row["minutes_refused"]),
            percent(said.growth_share),
            count(said.suggested),
        ]
        for row, said in found
    ]
    return Table(head, rows)


def capacity_page(
    found: Sequence[tuple[Row, Suggestion]], hours: Mapping[str, Sequence[Row]], *, horizon_days: int, headroom: float,
    lost_count: int, source: str,
) -> Page:  # fmt: skip
    """The page of the report. `hours` has the highest minute of each hour, in order, for the namespaces to draw."""
    near = sum(1 for _, said in found if said.used_share is not None and said.used_share > 0.8)
    cards = [
        (count(len(found)), "namespaces"),
        (count(sum(row["enqueued"] for row, _ in found)), "items enqueued"),
        (count(sum(row["refused"] for row, _ in found)), "items refused by quotas"),
        (count(near), "above 80 % of their quota"),
        (count(lost_count), "lost by the event log"),
    ]
    how = (
        f"The suggested quota is the highest demand of a minute (enqueued and refused items; refused ones may have "
        f"been tried again), grown for {horizon_days} days as the straight line through all minutes says, times "
        f"{headroom:g}. Growth is a share of the mean demand in {horizon_days} days, and needs two days of data."
    )
    quotas = {row["namespace"]: said.quota for row, said in found}
    plots = []
    for name, rows in hours.items():
        shown = rows[-POINTS_MAX:]
        series = [PlotSeries("highest minute", [row["enqueued_max"] for row in shown])]
        if any(row["refused_max"] for row in shown):
            series.append(PlotSeries("refused in a minute", [row["refused_max"] for row in shown]))
        quota = quotas.get(name)
        if quota is not None:
            series.append(PlotSeries("quota", [float(quota)] * len(shown)))
        plots.append(Plot(f"Namespace {name}", "items a minute", [row["hour"] for row in shown], series))
    return Page(
        "Capacity report",
        source,
        cards,
        [
            Section("Namespaces", how, tables=[suggestion_table(found)]),
            Section("Enqueues a minute", "The highest minute of each hour, over all hosts.", plots),
        ],
    )
