"""Gauges of the bulk lane and of jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.host.admission.bulk_lane import BulkLane
from foqs.host.admission.hosted_jobs import Jobs


class LoadGauges(Collector):
    """Gauges of bulk enqueues and jobs on this host."""

    def __init__(self, lane: BulkLane, jobs: Jobs) -> None:
        self._lane = lane
        self._jobs = jobs

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        lane = self._lane
        yield CounterMetricFamily(
            "foqs_bulk_items_total",
            "Items of bulk enqueues that were given to shards since the host started, whatever became of them.",
            value=lane.items_total,
        )
        yield CounterMetricFamily(
            "foqs_bulk_slices_refused_total",
            "Slices of bulk enqueues that did not have their turn in time and got OVERLOADED.",
            value=lane.refused_total,
        )
        yield GaugeMetricFamily(
            "foqs_bulk_items_being_written",
            "Items of bulk enqueues that are being written: few while there are interactive calls.",
            value=lane.items_count,
        )
        yield GaugeMetricFamily(
            "foqs_bulk_slices_waiting", "Slices of bulk enqueues that wait for their turn.", value=lane.waiting_count
        )
        yield GaugeMetricFamily("foqs_jobs", "Jobs that had calls on this host of late.", value=self._jobs.count)
