"""Gauges that are read at the moment of a scrape: shards, items by state, buffers, ages.

A scrape runs on a thread of its own, so that it neither blocks the event loop nor waits for it. It reads existing
counts, one at a time, and walks only over copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from heapq import nlargest, nsmallest
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.event_log.log_service import EventLog
from foqs.host.metrics.ages import Ages
from foqs.host.metrics.meters import OTHER_NAMESPACES
from foqs.host.metrics.pulse import Pulse
from foqs.host.shards.shards import Shards
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.event_log import LIVES, ROLLUPS
from foqs.model.topic import ItemCounts
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter


class ShardGauge(NamedTuple):
    """A gauge with the label `shard`, of the shards that this host owns."""

    name: str
    help: str
    read: Callable[[ShardState], float]


class ShardCounter(NamedTuple):
    """A counter with the label `shard`, which restarts when this host opens the shard."""

    name: str
    help: str
    read: Callable[[ShardState], float]


_OF_OWNED_SHARDS = (
    ShardGauge("foqs_topics", "Topics of the shard; empty ones are soon forgotten.", lambda s: len(s.index.topics)),
    ShardGauge(
        "foqs_read_budget_rows",
        "Rows that one transaction of the shard may read for refills of ready items, and again for claims: fewer if "
        "its server has to read them from disk.",
        lambda s: s.index.read_budget.rows_max,
    ),
    ShardGauge(
        "foqs_open_leases",
        "Items of the shard that are under lease, or claimed ahead of consumers.",
        lambda s: len(s.index.leases),
    ),
    ShardGauge(
        "foqs_enqueue_buffer_items",
        "Enqueued items of the shard that wait in memory to be written, while their callers wait for the commit.",
        lambda s: s.buffered_count,
    ),
    ShardGauge(
        "foqs_enqueue_buffer_bytes",
        "Payload and metadata of the enqueued items of the shard that wait in memory to be written.",
        lambda s: s.buffered_bytes,
    ),
    ShardGauge(
        "foqs_dedup_ids",
        "Dedup ids that the shard knows.",
        lambda s: sum([window.ids_count for window in list(s.dedup.windows.values())]),
    ),
    ShardGauge(
        "foqs_dedup_filter_bytes",
        "Memory for the dedup ids of the shard: 64 MiB, and up to 16 KiB for each namespace beyond that.",
        lambda s: s.forgetfulness.filters_bytes,
    ),
    ShardCounter(
        "foqs_dedup_repeats_total",
        "Enqueued items that were found to be repeats in the log of dedup ids, since the shard was opened.",
        lambda s: s.checks.repeats_count,
    ),
    ShardCounter(
        "foqs_dedup_misses_total",
        "Enqueued items that waited for a look into the log of dedup ids and were no repeats, since the shard was "
        "opened.",
        lambda s: s.checks.misses_count,
    ),
)
_STATES: tuple[tuple[str, Callable[[ItemCounts], int]], ...] = (
    ("ready", lambda counts: counts.ready),
    ("leased", lambda counts: counts.leased),
    ("delayed", lambda counts: counts.delayed),
    ("dead", lambda counts: counts.dead),
)


class ShardGauges(Collector):
    """Gauges of every shard of this host."""

    def __init__(self, shards: Shards, ages: Ages) -> None:
        self._shards = shards
        self._ages = ages

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        writers = list(self._shards.writers.values())
        owned = [(writer, shard) for writer in writers if (shard := writer.held) is not None]
        yield from _ownership(writers, self._shards.uses)
        for gauge in _OF_OWNED_SHARDS:
            kind = CounterMetricFamily if isinstance(gauge, ShardCounter) else GaugeMetricFamily
            family = kind(gauge.name, gauge.help, labels=["shard"])
            for writer, shard in owned:
                family.add_metric([str(writer.shard_id)], gauge.read(shard))
            yield family
        items = GaugeMetricFamily(
            "foqs_items",
            "Items of the shard by state: ready, leased (or claimed ahead of consumers), delayed or dead. Exact once "
            "the rows are counted, soon after a takeover.",
            labels=["shard", "state"],
        )
        for writer, shard in owned:
            for state, count_of in _STATES:
                items.add_metric([str(writer.shard_id), state], max(0, count_of(shard.index.counts)))
        yield items
        yield from self._waits(owned)
        yield from self._dedup_windows(owned)

    def _dedup_windows(self, owned: list[tuple[ShardWriter, ShardState]]) -> Iterator[Metric]:
        """Yield the shortest windows of namespaces that have forgotten ids."""
        family = GaugeMetricFamily(
            "foqs_dedup_window_seconds",
            "How old the oldest dedup ids of the namespace are that are surely known, on the shard where that is "
            "least. Absent until ids were forgotten.",
            labels=["namespace"],
        )
        least: dict[str, int] = {}
        for _, shard in owned:
            for number in list(shard.dedup.windows):
                window_ms, name = shard.dedup_window_ms(number), shard.index.namespace_names.get(number)
                if window_ms is not None and name is not None:
                    least[name] = min(window_ms, least.get(name, window_ms))
        for name in nsmallest(limits.METRIC_NAMESPACES_MAX, least, key=lambda name: least[name]):
            family.add_metric([name], least[name] / limits.SECOND_MS)
        yield family

    def _waits(self, owned: list[tuple[ShardWriter, ShardState]]) -> Iterator[Metric]:
        oldest = GaugeMetricFamily(
            "foqs_oldest_ready_age_seconds",
            "How long the oldest ready item of the shard that is in memory has been ready, or 0. Updated once a "
            "second, less often with thousands of topics.",
            labels=["shard"],
        )
        lags = GaugeMetricFamily(
            "foqs_delay_sweep_lag_seconds",
            "How long the earliest delayed item of the shard has been due without being made ready.",
            labels=["shard"],
        )
        for writer, _ in owned:
            label, now_ms = [str(writer.shard_id)], writer.now_ms()
            age_ms = max(0, now_ms - self._ages.oldest_due_at.get(writer.shard_id, now_ms))
            oldest.add_metric(label, age_ms / 1000)
            lags.add_metric(label, self._ages.delay_lag_ms.get(writer.shard_id, 0) / 1000)
        yield from (oldest, lags)


def _ownership(writers: list[ShardWriter], uses: Mapping[int, ShardUse]) -> Iterator[Metric]:
    """Yield gauges of all shards of the cluster. A shard that no host has is 0 on each host instead of missing."""
    owned = GaugeMetricFamily(
        "foqs_shard_owned",
        "1 while this host owns the shard, else 0. Every host has it for all shards of the cluster that were not "
        "removed.",
        labels=["shard"],
    )
    healthy = GaugeMetricFamily(
        "foqs_shard_healthy",
        "1 while this host owns the shard and its circuit breaker is closed, else 0.",
        labels=["shard"],
    )
    opened = CounterMetricFamily(
        "foqs_breaker_opened_total",
        "How often the circuit breaker of the shard has opened since the host started, because its server was slow, "
        "failing or hanging.",
        labels=["shard"],
    )
    steps = CounterMetricFamily(
        "foqs_server_clock_steps_total",
        "Steps of the clock of the shard's server, forward or backward, since the host started.",
        labels=["shard"],
    )
    for writer in writers:
        label, is_owned = [str(writer.shard_id)], writer.held is not None
        owned.add_metric(label, float(is_owned))
        healthy.add_metric(label, float(is_owned and writer.health.healthy))
        opened.add_metric(label, writer.health.opened_count)
        steps.add_metric(label, writer.clock.steps_count)
    here = {writer.shard_id for writer in writers}
    for shard_id in sorted(shard_id for shard_id, use in uses.items() if use is not ShardUse.REMOVED):
        if shard_id not in here:
            owned.add_metric([str(shard_id)], 0.0)
    yield from (owned, healthy, opened, steps)


class PackGauges(Collector):
    """Gauges of the packs of this host's stores."""

    def __init__(self, shards: Shards) -> None:
        self._shards = shards

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        items = GaugeMetricFamily(
            "foqs_packed_items",
            "Recently enqueued items of the shard that share a row and have no row of their own yet.",
            labels=["shard"],
        )
        size = GaugeMetricFamily(
            "foqs_packed_bytes",
            "Memory for the items of the shard that share rows. A shared row counts until its last item is gone.",
            labels=["shard"],
        )
        for shard in list(self._shards.by_id.values()):
            items.add_metric([str(shard.shard_id)], len(shard.packs))
            size.add_metric([str(shard.shard_id)], shard.packs.stored_bytes)
        yield from (items, size)


class NamespaceGauges(Collector):
    """Items by namespace. The largest namespaces, up to limits.METRIC_NAMESPACES_MAX, have labels of their own."""

    def __init__(self, shards: Shards, name_of: Callable[[int], str | None]) -> None:
        self._shards = shards
        self._name_of = name_of

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        family = GaugeMetricFamily(
            "foqs_namespace_items",
            "Items of the namespace on the shards of this host by state, as in foqs_items. Namespaces without items "
            'are missing, and all but the thousand largest are together in "(other)".',
            labels=["namespace", "state"],
        )
        by_name = self._counts_by_name()
        # Not sorted as a whole, because that one long step would block the event loop.
        most = nlargest(limits.METRIC_NAMESPACES_MAX, by_name.items(), key=lambda entry: (sum(entry[1]), entry[0]))
        shown = dict(most)
        others = [0] * len(_STATES)
        for name, counts in by_name.items():
            if name not in shown:
                others = [one + other for one, other in zip(counts, others, strict=True)]
        if len(by_name) > len(shown):
            shown[OTHER_NAMESPACES] = others
        for name, counts in shown.items():
            for (state, _), count in zip(_STATES, counts, strict=True):
                family.add_metric([name, state], count)
        yield family

    def _counts_by_name(self) -> dict[str, list[int]]:
        """Return counts by name of a namespace. Namespaces without a name are left to foqs_unknown_namespaces."""
        found: dict[str, list[int]] = {}
        for writer in list(self._shards.writers.values()):
            shard = writer.held
            for number, counts in list(shard.index.namespaces.items()) if shard is not None else []:
                name = self._name_of(number) if counts.total > 0 else None
                if name is not None:
                    sums = found.setdefault(name, [0] * len(_STATES))
                    for position, (_, count_of) in enumerate(_STATES):
                        sums[position] += max(0, count_of(counts))
        return found


class HostGauges(Collector):
    """Gauges of the host as a whole."""

    def __init__(self, dispatcher: Dispatcher, pulse: Pulse, is_draining: Callable[[], bool]) -> None:
        self._dispatcher = dispatcher
        self._pulse = pulse
        self._is_draining = is_draining

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        yield GaugeMetricFamily(
            "foqs_host_draining",
            "1 while the host finishes accepted work and takes no new calls, else 0.",
            value=float(self._is_draining()),
        )
        yield GaugeMetricFamily(
            "foqs_dequeues_waiting", "Dequeue calls that are waiting for items.", value=self._dispatcher.waiting_count
        )
        yield GaugeMetricFamily(
            "foqs_prefetch_bytes",
            "Payload and metadata of items that are claimed ahead of consumers and held in memory for them.",
            value=self._dispatcher.prefetched_bytes,
        )
        lags = HistogramMetricFamily(
            "foqs_event_loop_lag_seconds",
            "How late the event loop of the host was for its tick, which is due every 20 ms: all calls waited as long.",
            labels=[],
        )
        lags.add_metric([], self._pulse.lags.buckets(), self._pulse.lags.seconds_sum)
        yield lags


class EventLogGauges(Collector):
    """Counters of the lines that the event log has written and lost."""

    def __init__(self, event_log: EventLog) -> None:
        self._event_log = event_log

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        log = self._event_log
        written = CounterMetricFamily(
            "foqs_event_log_written_total",
            "What the event log has written since the host started: lives (ends of lives) and rollups (rows).",
            labels=["kind"],
        )
        lost = CounterMetricFamily(
            "foqs_event_log_lost_total",
            "What the event log has lost since the host started: items (enqueues and ends that it did not even count, "
            "because it did not keep up), lives and rollups (not written, because its directory refused them).",
            labels=["kind"],
        )
        for kind, files in ((LIVES, log.lives_files), (ROLLUPS, log.rollups_files)):
            written.add_metric([kind], files.written_count)
            lost.add_metric([kind], files.lost_count)
        lost.add_metric(["items"], log.lost_items_count)
        yield from (written, lost)
        yield CounterMetricFamily(
            "foqs_event_log_others_total",
            "Items that the roll-ups count in rows without a topic, because their minute had too many rows.",
            log.rollups.others_count,
        )
        yield CounterMetricFamily(
            "foqs_event_log_files_recovered_total",
            "Files of the event log that an earlier process of the host or a full disk had left open, and that were "
            "closed since the host started.",
            log.recovered_count,
        )
        yield CounterMetricFamily(
            "foqs_event_log_files_removed_total",
            "Files of the event log that were removed since the host started, because they were too old or too much.",
            log.removed_count,
        )
        yield GaugeMetricFamily(
            "foqs_event_log_waiting_items", "Items that the event log has still to take down.", log.waiting_count
        )
        yield GaugeMetricFamily(
            "foqs_event_log_disk_bytes",
            "Size of all files of the event log. Updated once a minute and whenever a file is closed.",
            log.disk_bytes,
        )
        yield GaugeMetricFamily(
            "foqs_event_log_failing",
            "1 while the event log cannot write, because the disk refuses it or another process uses its directory, "
            "else 0.",
            int(log.failing),
        )
