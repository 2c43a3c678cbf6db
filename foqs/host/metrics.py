"""Everything that is counted, for Prometheus. Labels are shards, namespaces, verbs, outcomes, reasons: never topics."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.core.item import ItemEvent
from foqs.host.dispatch import Dispatcher
from foqs.host.shards import Shards
from foqs.storage.transaction import Transaction

_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """One host's; `registry` is what its metrics port serves."""

    def __init__(self, namespace_name: Callable[[int], str | None]) -> None:
        self.registry = CollectorRegistry()
        self.items = ItemMeters(namespace_name)
        self.registry.register(self.items)
        self.door = DoorMeters(self.registry)
        self.transactions = TransactionMeters(self.registry)

    def watch(self, shards: Shards, dispatcher: Dispatcher) -> None:
        """Let every scrape read the state of the shards and of the prefetch buffers."""
        self.registry.register(_Gauges(shards, dispatcher))

    def watch_namespaces(self, unknown_count: Callable[[], int]) -> None:
        unknown = Gauge(
            "foqs_unknown_namespaces",
            "Namespaces with items on the shards of this host that the meta database does not have, as after a restore "
            "of it: their items are kept and not served; the log tells their numbers for foqs namespace recover",
            registry=self.registry,
        )
        unknown.set_function(unknown_count)


class ItemMeters(Collector):
    """What became of items, by namespace: an operator makes namespaces, so the label is bounded."""

    def __init__(self, name_of: Callable[[int], str | None]) -> None:
        self._name_of = name_of
        self._counts: defaultdict[int, list[int]] = defaultdict(lambda: [0] * len(ItemEvent))

    def happened(self, namespace: int, event: ItemEvent, count: int) -> None:
        self._counts[namespace][event] += count

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        items = CounterMetricFamily("foqs_namespace_items", "What became of items", labels=["namespace", "event"])
        for number, counts in list(self._counts.items()):
            name = self._name_of(number)
            if name is not None:
                for event in ItemEvent:
                    items.add_metric([name, event.name.lower()], counts[event])
        yield items


class DoorMeters:
    """Implements foqs.transport.door.DoorMetrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._opened = Counter("foqs_connections_opened", "Connections accepted", registry=registry)
        self._closed = Counter("foqs_connections_closed", "Connections that ended", registry=registry)
        self._refused = Counter("foqs_connections_refused", "Connections refused", ["reason"], registry=registry)
        self._protocol_errors = Counter(
            "foqs_protocol_errors", "Connections closed for bytes that are no frame", ["reason"], registry=registry
        )
        self._calls: dict[tuple[str, str], _Calls] = {}
        registry.register(_CallsCollector(self._calls))

    def connection_opened(self) -> None:
        self._opened.inc()

    def connection_closed(self) -> None:
        self._closed.inc()

    def connection_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def protocol_error(self, reason: str) -> None:
        self._protocol_errors.labels(reason).inc()

    def call_finished(self, method: str, outcome: str, seconds: float) -> None:
        calls = self._calls.get((method, outcome))
        if calls is None:
            calls = self._calls[method, outcome] = _Calls()
        calls.seconds_sum += seconds
        calls.counts[bisect_left(_SECONDS, seconds)] += 1


class _Calls:
    """Calls of one method and outcome. Plain sums: a meter of the library costs five times as much per call."""

    __slots__ = ("counts", "seconds_sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(_SECONDS) + 1)
        self.seconds_sum = 0.0


class _CallsCollector(Collector):
    def __init__(self, calls: dict[tuple[str, str], _Calls]) -> None:
        self._calls = calls

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        seconds = HistogramMetricFamily("foqs_call_seconds", "Time to answer", labels=["method", "outcome"])
        for labels, calls in list(self._calls.items()):
            totals = list(accumulate(calls.counts))
            bounds = [*map(str, _SECONDS), "+Inf"]
            seconds.add_metric(list(labels), list(zip(bounds, totals, strict=True)), calls.seconds_sum)
        yield seconds


class TransactionMeters:
    """Implements foqs.shard.runner.TransactionMeter."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = Histogram(
            "foqs_transaction_seconds", "Time of a shard's transaction", ["shard"], buckets=_SECONDS, registry=registry
        )
        self._waits = Histogram(
            "foqs_slot_wait_seconds",
            "Time that a shard waited for its neighbours on the server before a transaction",
            ["shard"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._outcomes = Counter(
            "foqs_transactions", "Transactions by outcome", ["shard", "outcome"], registry=registry
        )
        self._rows = Counter(
            "foqs_rows",
            "Items that committed transactions gave rows, packed, unpacked, fetched, claimed, rewrote, woke or "
            "deleted, and windows that they refilled",
            ["shard", "work"],
            registry=registry,
        )

    def waited(self, shard_id: int, wait_s: float) -> None:
        self._waits.labels(str(shard_id)).observe(wait_s)

    def ended(self, shard_id: int, transaction: Transaction, elapsed_s: float, outcome: str) -> None:
        shard = str(shard_id)
        self._seconds.labels(shard).observe(elapsed_s)
        self._outcomes.labels(shard, outcome).inc()
        if outcome != "committed":
            return
        for work, count in (
            ("inserted", len(transaction.inserts)),
            ("packed", sum([len(pack.items) for pack in transaction.packs_new])),
            ("unpacked", len(transaction.unpacked)),
            ("fetched", len(transaction.fetches)),
            ("claimed", sum([len(claim.items) for claim in transaction.claims])),
            ("dead_lettered", sum([rewrite.lane < 0 for rewrite in transaction.rewrites])),
            ("rewritten", len(transaction.rewrites)),
            ("woken", len(transaction.wakes)),
            ("deleted", len(transaction.deletes) + transaction.removed_count),
            ("windows_refilled", len(transaction.refills)),
        ):
            if count:
                self._rows.labels(shard, work).inc(count)


class _Gauges(Collector):
    """Reads what is there at each scrape; from another thread, so every walk is over a copy."""

    def __init__(self, shards: Shards, dispatcher: Dispatcher) -> None:
        self._shards = shards
        self._dispatcher = dispatcher

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        owned = GaugeMetricFamily("foqs_shard_owned", "1 while this host owns the shard", labels=["shard"])
        healthy = GaugeMetricFamily(
            "foqs_shard_healthy", "0 while the shard's breaker is open, or it is not owned", labels=["shard"]
        )
        trips = GaugeMetricFamily(
            "foqs_breaker_opened", "Times the breaker opened since the take-over", labels=["shard"]
        )
        items = GaugeMetricFamily("foqs_items", "Items by state", labels=["shard", "state"])
        topics = GaugeMetricFamily("foqs_topics", "Topics known", labels=["shard"])
        packed = GaugeMetricFamily("foqs_packed_items", "Items that have no rows of their own yet", labels=["shard"])
        budget = GaugeMetricFamily(
            "foqs_read_budget_rows", "What a transaction may read for refills, and again for claims", labels=["shard"]
        )
        leases = GaugeMetricFamily("foqs_open_leases", "Items claimed or under lease", labels=["shard"])
        buffered = GaugeMetricFamily("foqs_enqueue_buffer_items", "Items waiting to be written", labels=["shard"])
        buffered_bytes = GaugeMetricFamily("foqs_enqueue_buffer_bytes", "Their payload and metadata", labels=["shard"])
        lags = GaugeMetricFamily(
            "foqs_delay_sweep_lag_ms", "How long the first delayed item has been due", labels=["shard"]
        )
        for runner in list(self._shards.runners.values()):
            label = [str(runner.shard_id)]
            shard = runner.shard
            owned.add_metric(label, float(shard is not None))
            healthy.add_metric(label, float(shard is not None and runner.health.healthy))
            trips.add_metric(label, runner.health.opened_count)
            if shard is None:
                continue
            for state in ("ready", "leased", "delayed", "dead"):
                items.add_metric([*label, state], getattr(shard.book.counts, state))
            topics.add_metric(label, len(shard.book.topics))
            packed.add_metric(label, len(shard.book.packed))
            budget.add_metric(label, shard.book.read_budget.rows_max)
            leases.add_metric(label, len(shard.book.leases))
            buffered.add_metric(label, shard.inserts.buffered_count)
            buffered_bytes.add_metric(label, shard.inserts.buffered_bytes)
            lags.add_metric(label, shard.timers.lag_ms(runner.now_ms()))
        yield from (owned, healthy, trips, items, topics, packed, budget, leases, buffered, buffered_bytes, lags)
        yield GaugeMetricFamily(
            "foqs_dequeues_waiting", "Dequeue calls that wait for items", value=self._dispatcher.waiting_count
        )
        yield GaugeMetricFamily(
            "foqs_prefetch_bytes", "Payload and metadata of the prefetch buffers", value=self._dispatcher.held_bytes
        )
