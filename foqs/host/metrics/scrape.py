"""All metrics of a host, for Prometheus. Labels are shards, namespaces, verbs, outcomes, reasons: never topics."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from prometheus_client import CollectorRegistry, Gauge, PlatformCollector, ProcessCollector, disable_created_metrics
from prometheus_client.registry import Collector

from foqs.host.admission.bulk_lane import BulkLane
from foqs.host.admission.hosted_jobs import Jobs
from foqs.host.admission.quotas import Quotas
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.event_log.log_service import EventLog
from foqs.host.metrics.ages import Ages
from foqs.host.metrics.gauges import EventLogGauges, HostGauges, NamespaceGauges, PackGauges, ShardGauges
from foqs.host.metrics.load_gauges import LoadGauges
from foqs.host.metrics.meters import ItemMeters, TransactionMeters, TransportMeters
from foqs.host.metrics.pulse import Pulse
from foqs.host.metrics.quota_gauges import QuotaGauges
from foqs.host.shards.shards import Shards


class Metrics:
    """All metrics of one host. Its metrics port serves `registry`."""

    def __init__(self, namespace_name: Callable[[int], str | None]) -> None:
        # The start times of series have no use, and would double the number of series.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self.registry = CollectorRegistry()
        self._namespace_name = namespace_name
        self.items = ItemMeters(namespace_name)
        self.registry.register(self.items)
        self.transport = TransportMeters(self.registry)
        self.transactions = TransactionMeters(self.registry)
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)

    def introduce(self, version: str, schema_versions: Mapping[str, int]) -> None:
        """Register the version of foqs, and the newest migration that it needs of each kind of database."""
        build = Gauge(
            "foqs_build_info",
            "Always 1; the label is the running version of foqs.",
            ["version"],
            registry=self.registry,
        )
        build.labels(version).set(1)
        schema = Gauge(
            "foqs_schema_version",
            "Number of the newest migration of the databases that this version of foqs works with.",
            ["database"],
            registry=self.registry,
        )
        for kind, number in schema_versions.items():
            schema.labels(kind).set(number)

    def watch(
        self, shards: Shards, dispatcher: Dispatcher, ages: Ages, pulse: Pulse, is_draining: Callable[[], bool]
    ) -> None:
        """Register the state of the host."""
        self.registry.register(ShardGauges(shards, ages))
        self.registry.register(PackGauges(shards))
        self.registry.register(NamespaceGauges(shards, self._namespace_name))
        self.registry.register(HostGauges(dispatcher, pulse, is_draining))

    def watch_event_log(self, event_log: EventLog) -> None:
        """Register the counters of the event log."""
        self.registry.register(EventLogGauges(event_log))

    def watch_loads(self, lane: BulkLane, jobs: Jobs) -> None:
        """Register the gauges of bulk enqueues and jobs."""
        self.registry.register(LoadGauges(lane, jobs))

    def watch_quotas(self, quotas: Quotas) -> None:
        """Register the gauges of quotas."""
        self.registry.register(QuotaGauges(quotas))

    def watch_also(self, collector: Collector) -> None:
        """Register one more collector."""
        self.registry.register(collector)

    def watch_namespaces(self, unknown_count: Callable[[], int]) -> None:
        unknown = Gauge(
            "foqs_unknown_namespaces",
            "Namespaces that have items on the shards of this host and are missing in the meta database, for instance "
            "after its restore. Their items are kept but not served; the log has their numbers for foqs "
            "namespace recover.",
            registry=self.registry,
        )
        unknown.set_function(unknown_count)
