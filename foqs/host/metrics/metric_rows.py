"""Metrics that are read at the moment of a scrape, as rows: a name, its help, and the function that reads it.

A scrape runs on a thread of its own, so that it neither blocks the event loop nor waits for it. So a row reads existing
counts, one at a time, and walks only over copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.host.metrics.meters import Distribution

S = TypeVar("S")
"""The object that the rows of a tuple read."""
Values = float | Mapping[Any, float]
"""One value without labels, or values by their label, or by their labels in a tuple."""
Times = Distribution | Mapping[Any, Distribution]
"""The same of distributions."""


@dataclass(frozen=True, slots=True)
class MetricRow(Generic[S]):
    """One metric. Make it with `gauge`, `counter` or `histogram`."""

    family: Callable[..., Any]
    name: str
    help: str
    read: Callable[[S], Values | Times]
    labels: tuple[str, ...]

    def metric(self, source: S) -> Metric:
        """Read the metric from its source."""
        metric = self.family(self.name, self.help, labels=self.labels)
        values = self.read(source)
        # Copied at once, because the event loop can add labels meanwhile.
        for labels, value in list(values.items()) if isinstance(values, Mapping) else [((), values)]:
            named = [labels] if isinstance(labels, str) else list(labels)
            if isinstance(value, Distribution):
                metric.add_metric(named, value.buckets(), value.seconds_sum)
            else:
                metric.add_metric(named, value)
        return metric  # type: ignore[no-any-return]


def gauge(name: str, help: str, read: Callable[[S], Values], *labels: str) -> MetricRow[S]:
    return MetricRow(GaugeMetricFamily, name, help, read, labels)


def counter(name: str, help: str, read: Callable[[S], Values], *labels: str) -> MetricRow[S]:
    return MetricRow(CounterMetricFamily, name, help, read, labels)


def histogram(name: str, help: str, read: Callable[[S], Times], *labels: str) -> MetricRow[S]:
    return MetricRow(HistogramMetricFamily, name, help, read, labels)


class RowCollector(Collector):
    """Reads rows of metrics from their source at each scrape."""

    def __init__(self, rows: Iterable[MetricRow[S]], source: S) -> None:
        self._read = [(row, source) for row in rows]

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        return (row.metric(source) for row, source in self._read)
