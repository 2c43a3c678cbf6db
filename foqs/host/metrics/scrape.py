"""All metrics of a host, for Prometheus. Labels are shards, namespaces, verbs, outcomes, reasons: never topics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector, disable_created_metrics

from foqs.host.metrics.gauges import OF_ITEMS, OF_TRANSACTIONS, OF_TRANSPORT
from foqs.host.metrics.meters import ItemMeters, TransactionMeters, TransportMeters
from foqs.host.metrics.metric_rows import MetricRow, RowCollector, S, gauge


class Metrics:
    """All metrics of one host. Its metrics port serves `registry`."""

    def __init__(self, namespace_name: Callable[[int], str | None]) -> None:
        # The start times of series have no use, and would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self.items = ItemMeters(namespace_name)
        self.watch(OF_ITEMS, self.items)
        self.transport = TransportMeters(self.registry)
        self.watch(OF_TRANSPORT, self.transport)
        self.transactions = TransactionMeters()
        self.watch(OF_TRANSACTIONS, self.transactions)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def introduce(self, version: str, schema_versions: Mapping[str, int]) -> None:
        """Register the version of foqs, and the newest migration that it needs of each kind of database."""
        rows: tuple[MetricRow[None], ...] = (
            gauge("foqs_build_info", "Always 1; the label is the running version of foqs.",
                lambda _: {version: 1}, "version"),
            gauge("foqs_schema_version",
                "Number of the newest migration of the databases that this version of foqs works with.",
                lambda _: schema_versions, "database"),
        )  # fmt: skip
        self.watch(rows, None)

    def watch(self, rows: Iterable[MetricRow[S]], source: S) -> None:
        """Read the rows from their source at each scrape."""
        self.registry.register(RowCollector(rows, source))
