"""The metrics of a host that are read at a scrape: shards, items by state, quotas, bulk enqueues, jobs, ages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from heapq import nlargest, nsmallest
from typing import NamedTuple

from foqs.host.access.book import AccessBook
from foqs.host.admission.bulk_lane import BulkLane
from foqs.host.admission.hosted_jobs import Jobs
from foqs.host.admission.quotas import Quotas
from foqs.host.audit.trail import Audit
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.event_log.log_service import EventLog
from foqs.host.metrics.ages import Ages
from foqs.host.metrics.condition import Pulse
from foqs.host.metrics.meters import OTHER_NAMESPACES, ItemMeters, TransactionMeters, TransportMeters
from foqs.host.metrics.metric_rows import MetricRow, counter, gauge, histogram
from foqs.host.shards.shards import Shards
from foqs.model import limits
from foqs.model.event_log import LIVES, ROLLUPS
from foqs.model.topic import ItemCounts
from foqs.shard.state.engine import ShardState
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.shard.packs.pack_index import PackIndex


class Sources(NamedTuple):
    """The parts of a host that `OF_HOST` reads."""

    shards: Shards
    ages: Ages
    dispatcher: Dispatcher
    pulse: Pulse
    quotas: Quotas
    lane: BulkLane
    jobs: Jobs
    name_of: Callable[[int], str | None]
    """Returns the name of a namespace with this number, or None."""
    is_draining: Callable[[], bool]
    unknown_count: Callable[[], int]
    """Returns the number of namespaces that the meta database lacks."""
    gate_ages_s: Callable[[], dict[tuple[str, ...], float]]
    """Returns the ages of the gates behind which shards of this host wait, by slot and shards."""


_STATES: tuple[tuple[str, Callable[[ItemCounts], int]], ...] = (
    ("ready", lambda counts: counts.ready),
    ("leased", lambda counts: counts.leased),
    ("delayed", lambda counts: counts.delayed),
    ("dead", lambda counts: counts.dead),
)


# ---- reads of several values ----


def _of_writers(read: Callable[[ShardWriter], float]) -> Callable[[Sources], dict[str, float]]:
    """Read all shards of this host, also those that it does not own now."""
    return lambda of: {str(writer.shard_id): read(writer) for writer in list(of.shards.writers.values())}


def _of_owned(read: Callable[[ShardState], float]) -> Callable[[Sources], dict[str, float]]:
    """Read the shards that this host owns."""
    return lambda of: {str(writer.shard_id): read(shard) for writer, shard in _owned(of)}


def _of_packs(read: Callable[[PackIndex], float]) -> Callable[[Sources], dict[str, float]]:
    """Read the packs of all shards of this host."""
    return lambda of: {str(shard.shard_id): read(shard.packs) for shard in list(of.shards.by_id.values())}


def _owned(of: Sources) -> Iterator[tuple[ShardWriter, ShardState]]:
    for writer in list(of.shards.writers.values()):
        shard = writer.held
        if shard is not None:
            yield writer, shard


def _ownership(of: Sources) -> dict[str, float]:
    """Read all shards of the cluster. One that no host has is 0 on each host instead of missing, but a parked one is
    missing.
    """
    owned = _of_writers(lambda writer: float(writer.held is not None))(of)
    others = sorted(shard_id for shard_id, use in of.shards.uses.items() if use.is_served)
    return owned | {str(shard_id): 0.0 for shard_id in others if str(shard_id) not in owned}


def _items(of: Sources) -> dict[tuple[str, ...], float]:
    return {
        (str(writer.shard_id), state): max(0, count_of(shard.index.counts))
        for writer, shard in _owned(of)
        for state, count_of in _STATES
    }


def _oldest_ready(of: Sources) -> dict[str, float]:
    found = {}
    for writer, _ in _owned(of):
        now_ms = writer.now_ms()
        found[str(writer.shard_id)] = max(0, now_ms - of.ages.oldest_due_at.get(writer.shard_id, now_ms)) / 1000
    return found


def _delay_lags(of: Sources) -> dict[str, float]:
    lags_ms = of.ages.delay_lag_ms
    return {str(writer.shard_id): lags_ms.get(writer.shard_id, 0) / 1000 for writer, _ in _owned(of)}


def _dedup_windows(of: Sources) -> dict[str, float]:
    """Read the shortest windows of namespaces that have forgotten ids."""
    least: dict[str, int] = {}
    for _, shard in _owned(of):
        for number in list(shard.dedup.windows):
            window_ms, name = shard.dedup_window_ms(number), shard.index.namespace_names.get(number)
            if window_ms is not None and name is not None:
                least[name] = min(window_ms, least.get(name, window_ms))
    names = nsmallest(limits.METRIC_NAMESPACES_MAX, least, key=lambda name: least[name])
    return {name: least[name] / limits.SECOND_MS for name in names}


def _namespace_items(of: Sources) -> dict[tuple[str, ...], float]:
    """Read the items by namespace. The largest ones, up to limits.METRIC_NAMESPACES_MAX, have labels of their own."""
    by_name = _counts_by_name(of)
    # Not sorted as a whole, because that one long step would block the event loop.
    most = nlargest(limits.METRIC_NAMESPACES_MAX, by_name.items(), key=lambda entry: (sum(entry[1]), entry[0]))
    shown = dict(most)
    others = [0] * len(_STATES)
    for name, counts in by_name.items():
        if name not in shown:
            others = [one + other for one, other in zip(counts, others, strict=True)]
    if len(by_name) > len(shown):
        shown[OTHER_NAMESPACES] = others
    return {
        (name, state): count
        for name, counts in shown.items()
        for (state, _), count in zip(_STATES, counts, strict=True)
    }


def _counts_by_name(of: Sources) -> dict[str, list[int]]:
    """Return counts by name of a namespace. Namespaces without a name are left to foqs_unknown_namespaces."""
    found: dict[str, list[int]] = {}
    for _, shard in _owned(of):
        for number, counts in list(shard.index.namespaces.items()):
            name = of.name_of(number) if counts.total > 0 else None
            if name is not None:
                sums = found.setdefault(name, [0] * len(_STATES))
                for position, (_, count_of) in enumerate(_STATES):
                    sums[position] += max(0, count_of(counts))
    return found


# ---- rows ----

OF_HOST: tuple[MetricRow[Sources], ...] = (
    gauge("foqs_shard_owned",
        "1 while this host owns the shard, else 0. Every host has it for all shards of the cluster that were not "
        "removed.",
        _ownership, "shard"),
    gauge("foqs_shard_healthy", "1 while this host owns the shard and its circuit breaker is closed, else 0.",
        _of_writers(lambda writer: float(writer.held is not None and writer.health.healthy)), "shard"),
    counter("foqs_breaker_opened_total",
        "How often the circuit breaker of the shard has opened since the host started, because its server was slow, "
        "failing or hanging.",
        _of_writers(lambda writer: writer.health.opened_count), "shard"),
    counter("foqs_server_clock_steps_total",
        "Steps of the clock of the shard's server, forward or backward, since the host started.",
        _of_writers(lambda writer: writer.clock.steps_count), "shard"),
    gauge("foqs_topics", "Topics of the shard; empty ones are soon forgotten.",
        _of_owned(lambda shard: len(shard.index.topics)), "shard"),
    gauge("foqs_read_budget_rows",
        "Rows that one transaction of the shard may read for refills of ready items, and again for claims: fewer if "
        "its server has to read them from disk.",
        _of_owned(lambda shard: shard.index.read_budget.rows_max), "shard"),
    gauge("foqs_open_leases", "Items of the shard that are under lease, or claimed ahead of consumers.",
        _of_owned(lambda shard: len(shard.index.leases)), "shard"),
    gauge("foqs_enqueue_buffer_items",
        "Enqueued items of the shard that wait in memory to be written, while their callers wait for the commit.",
        _of_owned(lambda shard: shard.buffered_count), "shard"),
    gauge("foqs_enqueue_buffer_bytes",
        "Payload and metadata of the enqueued items of the shard that wait in memory to be written.",
        _of_owned(lambda shard: shard.buffered_bytes), "shard"),
    gauge("foqs_dedup_ids", "Dedup ids that the shard knows.",
        _of_owned(lambda shard: sum([window.ids_count for window in list(shard.dedup.windows.values())])), "shard"),
    gauge("foqs_dedup_filter_bytes",
        "Memory for the dedup ids of the shard: 64 MiB, and up to 16 KiB for each namespace beyond that.",
        _of_owned(lambda shard: shard.forgetfulness.filters_bytes), "shard"),
    counter("foqs_dedup_repeats_total",
        "Enqueued items that were found to be repeats in the log of dedup ids, since the shard was opened.",
        _of_owned(lambda shard: shard.checks.repeats_count), "shard"),
    counter("foqs_dedup_misses_total",
        "Enqueued items that waited for a look into the log of dedup ids and were no repeats, since the shard was "
        "opened.",
        _of_owned(lambda shard: shard.checks.misses_count), "shard"),
    gauge("foqs_items",
        "Items of the shard by state: ready, leased (or claimed ahead of consumers), delayed or dead. Exact once the "
        "rows are counted, soon after a takeover.",
        _items, "shard", "state"),
    gauge("foqs_oldest_ready_age_seconds",
        "How long the oldest ready item of the shard that is in memory has been ready, or 0. Updated once a second, "
        "less often with thousands of topics.",
        _oldest_ready, "shard"),
    gauge("foqs_delay_sweep_lag_seconds",
        "How long the earliest delayed item of the shard has been due without being made ready.",
        _delay_lags, "shard"),
    gauge("foqs_dedup_window_seconds",
        "How old the oldest dedup ids of the namespace are that are surely known, on the shard where that is least. "
        "Absent until ids were forgotten.",
        _dedup_windows, "namespace"),
    gauge("foqs_packed_items",
        "Items of the shard that share rows and have no row of their own.",
        _of_packs(len), "shard"),
    gauge("foqs_packed_bytes",
        "Memory for the items of the shard that share rows. A shared row counts until its last item is gone.",
        _of_packs(lambda packs: packs.stored_bytes), "shard"),
    gauge("foqs_namespace_items",
        "Items of the namespace on the shards of this host by state, as in foqs_items. Namespaces without items are "
        'missing, and all but the thousand largest are together in "(other)".',
        _namespace_items, "namespace", "state"),
    gauge("foqs_unknown_namespaces",
        "Namespaces that have items on the shards of this host and are missing in the meta database, for instance "
        "after its restore. Their items are kept but not served; the log has their numbers for foqs namespace "
        "recover.",
        lambda of: of.unknown_count()),
    gauge("foqs_slot_gated_seconds",
        "How long the serial topics of the slot have waited on their shard, which this host owns, for the items that "
        "the shard from_shard still has of them. The 64 oldest are shown.",
        lambda of: of.gate_ages_s(), "slot", "from_shard", "to_shard"),
    gauge("foqs_host_draining", "1 while the host finishes accepted work and takes no new calls, else 0.",
        lambda of: float(of.is_draining())),
    gauge("foqs_dequeues_waiting", "Dequeue calls that are waiting for items.",
        lambda of: of.dispatcher.queues.waiting_count),
    gauge("foqs_prefetch_bytes",
        "Payload and metadata of items that are claimed ahead of consumers and held in memory for them.",
        lambda of: of.dispatcher.prefetch.prefetched_bytes),
    histogram("foqs_event_loop_lag_seconds",
        "How late the event loop of the host was for its tick, which is due every 20 ms: all calls waited as long.",
        lambda of: of.pulse.lags),
    counter("foqs_quota_asks_total",
        "Transactions of the meta database that asked for tokens of quotas, of up to 50 namespaces each.",
        lambda of: of.quotas.asks_total),
    counter("foqs_quota_asks_failed_total",
        "Transactions of the meta database that asked for tokens of quotas and failed: it was away.",
        lambda of: of.quotas.asks_failed_total),
    counter("foqs_quota_tokens_granted_total", "Tokens that the host got. One lets one item in.",
        lambda of: of.quotas.granted_total),
    counter("foqs_quota_tokens_returned_total", "Tokens that the host gave back without having spent them.",
        lambda of: of.quotas.returned_total),
    counter("foqs_quota_calls_waited_total", "Enqueues that found no tokens on the host and waited for some.",
        lambda of: of.quotas.waited_total),
    counter("foqs_quota_items_replayed_total",
        "Items that the host let in without tokens, because the meta database was away.",
        lambda of: of.quotas.replayed_total),
    gauge("foqs_quota_calls_waiting", "Enqueues that wait for tokens now.", lambda of: of.quotas.waiting_count),
    gauge("foqs_quota_used_ratio",
        "Part of its quota that the namespace has used up in the last minute by calls of this host, from 0 to 1. The "
        "sum over all hosts is that of the cluster. Namespaces without enqueues are missing, and so are all but the "
        "thousand with the largest parts.",
        lambda of: of.quotas.used_parts(), "namespace"),
    gauge("foqs_quota_meta_away", "1 while the meta database does not answer when it is asked for tokens.",
        lambda of: of.quotas.is_away),
    gauge("foqs_quota_ask_seconds",
        "What it usually takes to ask the meta database for tokens. The bounds of quotas grow with it.",
        lambda of: of.quotas.ask_ms / 1000),
    counter("foqs_quota_books_locked_total",
        "Asks for one namespace that came to nothing because another host was just at its book; they are repeated.",
        lambda of: of.quotas.books_locked_total),
    gauge("foqs_quota_books_away",
        "Namespaces whose books could not be asked for so long that the host lets items in without tokens.",
        lambda of: of.quotas.refused_count),
    counter("foqs_bulk_items_total",
        "Items of bulk enqueues that were given to shards since the host started, whatever became of them.",
        lambda of: of.lane.items_total),
    counter("foqs_bulk_slices_refused_total",
        "Slices of bulk enqueues that did not have their turn in time and got OVERLOADED.",
        lambda of: of.lane.refused_total),
    gauge("foqs_bulk_items_being_written",
        "Items of bulk enqueues that are being written: few while there are interactive calls.",
        lambda of: of.lane.items_count),
    gauge("foqs_bulk_slices_waiting", "Slices of bulk enqueues that wait for their turn.",
        lambda of: of.lane.waiting_count),
    gauge("foqs_jobs", "Jobs that had calls on this host of late.", lambda of: of.jobs.count),
)  # fmt: skip

OF_ACCESS: tuple[MetricRow[AccessBook], ...] = (
    gauge("foqs_access_mode", "What is done with calls that are not permitted: 0 open, 1 permissive, 2 enforced.",
        lambda book: book.snapshot.mode),
    gauge("foqs_access_stale_seconds",
        "Age of what this host knows of principals, grants and tokens. Changes of them take effect within 2 s while it "
        "is small; it grows while the meta database does not answer.",
        lambda book: book.stale_s),
)  # fmt: skip

OF_EVENT_LOG: tuple[MetricRow[EventLog], ...] = (
    counter("foqs_event_log_written_total",
        "What the event log has written since the host started: lives (ends of lives) and rollups (rows).",
        lambda log: {LIVES: log.lives_files.written_count, ROLLUPS: log.rollups_files.written_count}, "kind"),
    counter("foqs_event_log_lost_total",
        "What the event log has lost since the host started: items (enqueues and ends that it did not even count, "
        "because it did not keep up), lives and rollups (not written, because its directory refused them).",
        lambda log: {
            LIVES: log.lives_files.lost_count, ROLLUPS: log.rollups_files.lost_count, "items": log.lost_items_count
        }, "kind"),
    counter("foqs_event_log_others_total",
        "Items that the roll-ups count in rows without a topic, because their minute had too many rows.",
        lambda log: log.rollups.others_count),
    counter("foqs_event_log_files_recovered_total",
        "Files of the event log that an earlier process of the host or a full disk had left open, and that were "
        "closed since the host started.",
        lambda log: log.recovered_count),
    counter("foqs_event_log_files_removed_total",
        "Files of the event log that were removed since the host started, because they were too old or too much.",
        lambda log: log.removed_count),
    gauge("foqs_event_log_waiting_items", "Items that the event log has still to take down.",
        lambda log: log.waiting_count),
    gauge("foqs_event_log_disk_bytes",
        "Size of all files of the event log. Updated once a minute and whenever a file is closed.",
        lambda log: log.disk_bytes),
    gauge("foqs_event_log_failing",
        "1 while the event log cannot write, because the disk refuses it or another process uses its directory, "
        "else 0.",
        lambda log: bool(log.failing)),
)  # fmt: skip

OF_AUDIT: tuple[MetricRow[Audit], ...] = (
    counter("foqs_audit_lost_total",
        "Audit records that the log of the host has and the meta database will not have, since the host started.",
        lambda audit: audit.lost_count),
    gauge("foqs_audit_waiting", "Audit records that are to be written to the meta database.",
        lambda audit: audit.waiting_count),
)  # fmt: skip

OF_ITEMS: tuple[MetricRow[ItemMeters], ...] = (
    counter("foqs_item_events_total",
        "Events of items since the host started: enqueued, rate_limited (refused by the quota), delivered, acked, "
        "nacked, extended, lease_ended (without ack or nack), expired (past their TTL) or dead_lettered.",
        lambda items: items.counts_by_name(), "namespace", "event"),
)  # fmt: skip

OF_TRANSPORT: tuple[MetricRow[TransportMeters], ...] = (
    histogram("foqs_call_seconds",
        "Time from reading a call to its response, by method and outcome (OK or the code of the error); without "
        "dequeues that may wait for items.",
        lambda transport: transport.calls, "method", "outcome"),
    histogram("foqs_long_poll_seconds",
        "Time from reading a dequeue that may wait for items (wait_ms above 0) to its response, by outcome; most of "
        "it is waiting.",
        lambda transport: transport.long_polls, "outcome"),
)  # fmt: skip

OF_TRANSACTIONS: tuple[MetricRow[TransactionMeters], ...] = (
    histogram("foqs_transaction_seconds",
        "Time of a transaction of the shard on its MySQL server, from sending it to the response.",
        lambda transactions: transactions.seconds, "shard"),
    histogram("foqs_slot_wait_seconds",
        "Time that the shard waited before a transaction for other shards of this host on the same server.",
        lambda transactions: transactions.waits, "shard"),
    counter("foqs_transactions_total",
        "Transactions of the shard by outcome: committed, failed (certainly nothing was done) or unknown (the "
        "session was lost, and the next one finds out).",
        lambda transactions: transactions.outcomes, "shard", "outcome"),
    counter("foqs_rows_total",
        "Items that committed transactions of the shard worked on, by kind of work; for windows_refilled, the "
        "windows of ready items that they read.",
        lambda transactions: transactions.rows, "shard", "work"),
    counter("foqs_transactions_lost_total",
        "Committed transactions of the shard that were not there any more when it was taken over: it was served "
        "from an older copy of its database.",
        lambda transactions: transactions.lost_counts, "shard"),
)  # fmt: skip
