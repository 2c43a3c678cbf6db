"""The series of large charts, which the browser draws, with their text and the table behind them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Final

from foqs.console.texts import NOTHING, clock, number, per_second
from foqs.model.event_history import History
from foqs.model.topic_rates import UNKNOWN, RatesPage, TopicRates

TABLE_ROWS_MAX: Final = 30


@dataclass(frozen=True, slots=True)
class ChartLine:
    """A line of a chart. `color` is a variable of the style sheet."""

    label: str
    color: str
    values: Sequence[float | None]
    is_filled: bool = False

    @property
    def last(self) -> float | None:
        """The last value that is known."""
        return next((value for value in reversed(self.values) if value is not None), None)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart over time. `is_rate`: its values are per second."""

    id: str
    title: str
    times_ms: Sequence[int]
    lines: Sequence[ChartLine]
    is_rate: bool = False

    @property
    def text(self) -> str:
        """The values for the browser, as JSON."""
        lines = [{"color": one.color, "fill": one.is_filled, "values": one.values} for one in self.lines]
        return json.dumps({"times": [at // 1_000 for at in self.times_ms], "lines": lines}, separators=(",", ":"))

    @property
    def summary(self) -> str:
        """The chart in words."""
        parts = [f"{one.label} {self.shown(one.last)}" for one in self.lines]
        return f"{self.title}, now: {', '.join(parts)}"

    def shown(self, value: float | None) -> str:
        """Return a value in words."""
        return NOTHING if value is None else per_second(value) if self.is_rate else number(value)

    @property
    def table(self) -> list[list[str]]:
        """Some of the values as a table, the newest first."""
        step = max(1, -(-len(self.times_ms) // TABLE_ROWS_MAX))
        places = range(len(self.times_ms) - 1, -1, -step)
        return [[clock(self.times_ms[at]), *[self.shown(one.values[at]) for one in self.lines]] for at in places]


def rate_charts(page: RatesPage, row: TopicRates | None) -> list[Chart]:
    """Return the charts of rates and of ready items; none without series."""
    if row is None or not row.enqueued_series:
        return []
    times_ms = [page.first_slot_ms + at * page.slot_ms for at in range(len(row.enqueued_series))]
    slot_s = page.slot_ms / 1_000
    rates = [
        ChartLine("in", "--in", _each(row.enqueued_series, slot_s)),
        ChartLine("out", "--out", _each(row.ended_series, slot_s)),
        ChartLine("failed", "--failed", _each(row.failed_series, slot_s), is_filled=True),
    ]
    charts = [Chart("chart-rates", "Items a second", times_ms, rates, is_rate=True)]
    if row.ready_series:
        ready = ChartLine("now", "--ready", _each(row.ready_series, 1), is_filled=True)
        charts.append(Chart("chart-ready", "Ready", times_ms, [ready]))
    return charts


def wait_chart(history: History) -> Chart | None:
    """Return the chart of waits until delivery; None without a delivery."""
    rows = [row for row in history.rows if sum(row.wait_buckets)]
    if len(rows) < 2:
        return None
    halves = [_quantile_s(row.wait_buckets, history.bounds_ms, 0.5) for row in rows]
    most = [_quantile_s(row.wait_buckets, history.bounds_ms, 0.99) for row in rows]
    lines = [ChartLine("p50 up to", "--accent", halves), ChartLine("p99 up to", "--leased", most)]
    return Chart("chart-waits", "Wait until delivery, seconds", [row.at_ms for row in rows], lines, is_rate=True)


def _each(series: Sequence[int] | None, divisor: float) -> list[float | None]:
    return [None if value == UNKNOWN else round(value / divisor, 3) for value in series or ()]


def _quantile_s(buckets: Sequence[int], bounds_ms: Sequence[int], share: float) -> float:
    """Return the upper bound of the bucket with the quantile, in seconds."""
    sums = list(accumulate(buckets))
    place = next(at for at, total in enumerate(sums) if total >= share * sums[-1])
    return bounds_ms[min(place, len(bounds_ms) - 1)] / 1_000
