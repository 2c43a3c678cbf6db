"""Counters of events as they happen: connections, calls, transactions, and the ends of items."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Callable
from itertools import accumulate

from prometheus_client import CollectorRegistry, Counter

from foqs.model import limits
from foqs.model.item import ItemEvent, count_of
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.events import Events

_CHECKS_PER_EVENT = 8
BOUNDS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
"""Upper bounds of the buckets of all times, in seconds."""
OTHER_NAMESPACES = "(other)"
"""The label of all namespaces without a label of their own. No namespace has such a name."""


class ItemMeters:
    """Counts the events of items by namespace. The verbs and the dispatcher call `count_event`.

    The first limits.METRIC_NAMESPACES_MAX namespaces have labels of their own until they are deleted.
    """

    def __init__(self, name_of: Callable[[int], str | None]) -> None:
        self._name_of = name_of
        self._counts: dict[int, list[int]] = {}
        self._labelled: deque[int] = deque()
        """The numbers in `_counts`, in the order of their next checks."""
        self._others = [0] * len(ItemEvent)

    def count_event(self, namespace: int, event: ItemEvent, count: int) -> None:
        counts = self._counts.get(namespace)
        if counts is None:
            counts = self._counts_of_new(namespace)
        counts[event] += count

    def record(self, events: Events) -> None:
        """Count the events of a shard. The dispatcher calls it."""
        for (namespace, event), count in events.counted.items():
            self.count_event(namespace, event, count)

    def counts_of(self, event: ItemEvent) -> dict[int | None, int]:
        """Return the counts of an event by namespace number; None stands for all without a label. Thread-safe."""
        found: dict[int | None, int] = {number: counts[event] for number, counts in list(self._counts.items())}
        found[None] = self._others[event]
        return found

    def _counts_of_new(self, namespace: int) -> list[int]:
        if len(self._counts) >= limits.METRIC_NAMESPACES_MAX and not self._forget_a_deleted_one():
            return self._others
        self._labelled.append(namespace)
        return self._counts.setdefault(namespace, [0] * len(ItemEvent))

    def _forget_a_deleted_one(self) -> bool:
        """Forget one deleted namespace among the next few, and return True if it did.

        Only a few, because this runs for each event of a namespace without a label.
        """
        for _ in range(min(_CHECKS_PER_EVENT, len(self._labelled))):
            number = self._labelled.popleft()
            if self._name_of(number) is None:
                del self._counts[number]
                return True
            self._labelled.append(number)
        return False

    def counts_by_name(self) -> dict[tuple[str, ...], float]:
        """Return the counts by the name of a namespace and the name of an event. Thread-safe."""
        named = [(self._name_of(number), counts) for number, counts in list(self._counts.items())]
        return {
            (name, event.name.lower()): counts[event]
            for name, counts in [*named, (OTHER_NAMESPACES, self._others)]
            if name is not None
            for event in ItemEvent
        }


class Distribution:
    """A distribution of times, in buckets. Every thread can read it, and one thread adds to it.

    It has plain sums, because an observation by the metrics library costs five times as much.
    """

    __slots__ = ("counts", "seconds_sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_S) + 1)
        """Counts by bucket; the last bucket has the times beyond all bounds."""
        self.seconds_sum = 0.0

    def observe(self, seconds: float) -> None:
        self.seconds_sum += seconds
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1

    def buckets(self) -> list[tuple[str, float]]:
        """Return the counts of times up to each bound, in the form of Prometheus."""
        return list(zip([*map(str, BOUNDS_S), "+Inf"], accumulate(list(self.counts)), strict=True))


class TransportMeters:
    """Implements foqs.transport.bounds.TransportMetrics, where the front door counts connections and calls.

    It owns a distribution of times for each method and outcome.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self._opened = Counter(
            "foqs_connections_opened_total", "Client connections that the host accepted.", registry=registry
        )
        self._closed = Counter(
            "foqs_connections_closed_total", "Client connections that ended for any reason.", registry=registry
        )
        self._refused = Counter(
            "foqs_connections_refused_total",
            "Client connections that were refused because there were too many.",
            ["reason"],
            registry=registry,
        )
        self._protocol_errors = Counter(
            "foqs_protocol_errors_total",
            "Client connections that were closed because they sent invalid data, or sent it too slowly.",
            ["reason"],
            registry=registry,
        )
        self._handshakes = Counter(
            "foqs_handshakes_total",
            "TLS handshakes, by outcome; refused are those that came while too many waited, and plain are connections "
            "without TLS where tls = accepted.",
            ["outcome"],
            registry=registry,
        )
        self.calls: defaultdict[tuple[str, str], Distribution] = defaultdict(Distribution)
        self.long_polls: defaultdict[str, Distribution] = defaultdict(Distribution)

    def connection_opened(self) -> None:
        self._opened.inc()

    def connection_closed(self) -> None:
        self._closed.inc()

    def connection_refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    def protocol_error(self, reason: str) -> None:
        self._protocol_errors.labels(reason).inc()

    def handshake_ended(self, outcome: str) -> None:
        self._handshakes.labels(outcome).inc()

    def call_finished(self, method: str, outcome: str, seconds: float) -> None:
        self.calls[method, outcome].observe(seconds)

    def long_poll_finished(self, outcome: str, seconds: float) -> None:
        self.long_polls[outcome].observe(seconds)


class TransactionMeters:
    """Implements foqs.shard.writer.shard_listener.TransactionMeter with plain sums, by the labels of their metrics.

    A transaction of a single item counts as often as one of a thousand, so that counting has to cost little.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, Distribution] = defaultdict(Distribution)
        """Times of transactions by shard."""
        self.waits: defaultdict[str, Distribution] = defaultdict(Distribution)
        """Times that they waited for other shards, by shard."""
        self.outcomes: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Transactions by shard and outcome."""
        self.rows: defaultdict[tuple[str, str], int] = defaultdict(int)
        """Items by shard and kind of work."""
        self.lost_counts: defaultdict[str, int] = defaultdict(int)
        """Transactions that were not there any more, by shard."""

    def lost(self, shard_id: int, count: int) -> None:
        self.lost_counts[str(shard_id)] += count

    def waited(self, shard_id: int, wait_s: float) -> None:
        self.waits[str(shard_id)].observe(wait_s)

    def ended(self, shard_id: int, elapsed_s: float, outcome: str) -> None:
        shard = str(shard_id)
        self.seconds[shard].observe(elapsed_s)
        self.outcomes[shard, outcome] += 1

    def committed(self, shard_id: int, transaction: Transaction, result: TransactionResult) -> None:
        shard = str(shard_id)
        inserted_count = len(transaction.inserts) + len(transaction.inserts_placed)
        inserted_count += count_of(transaction.inserts_short_lived)
        for work, count in (
            ("inserted", inserted_count - result.packed_count),
            ("packed", result.packed_count),
            ("promoted", result.promoted_count),
            ("fetched", len(transaction.fetches)),
            ("claimed", sum([count_of(claim.items) for claim in transaction.claims])),
            ("dead_lettered", sum([rewrite.lane < 0 for rewrite in transaction.rewrites])),
            ("rewritten", len(transaction.rewrites)),
            ("woken", len(transaction.wakes) + len(transaction.wakes_in_place)),
            ("deleted", len(transaction.deletes)),
            ("windows_refilled", len(transaction.refills)),
        ):
            if count:
                self.rows[shard, work] += count
