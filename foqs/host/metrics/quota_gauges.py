"""Gauges of quotas."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.host.admission.quotas import Quotas


class QuotaGauges(Collector):
    """Gauges and counters of this host's asks for tokens of quotas."""

    def __init__(self, quotas: Quotas) -> None:
        self._quotas = quotas

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        quotas = self._quotas
        yield CounterMetricFamily(
            "foqs_quota_asks_total",
            "Transactions of the meta database that asked for tokens of quotas, of up to 50 namespaces each.",
            value=quotas.asks_total,
        )
        yield CounterMetricFamily(
            "foqs_quota_asks_failed_total",
            "Transactions of the meta database that asked for tokens of quotas and failed: it was away.",
            value=quotas.asks_failed_total,
        )
        yield CounterMetricFamily(
            "foqs_quota_tokens_granted_total",
            "Tokens that the host got. One lets one item in.",
            value=quotas.granted_total,
        )
        yield CounterMetricFamily(
            "foqs_quota_tokens_returned_total",
            "Tokens that the host gave back without having spent them.",
            value=quotas.returned_total,
        )
        yield CounterMetricFamily(
            "foqs_quota_calls_waited_total",
            "Enqueues that found no tokens on the host and waited for some.",
            value=quotas.waited_total,
        )
        yield CounterMetricFamily(
            "foqs_quota_items_replayed_total",
            "Items that the host let in without tokens, because the meta database was away.",
            value=quotas.replayed_total,
        )
        yield GaugeMetricFamily(
            "foqs_quota_calls_waiting", "Enqueues that wait for tokens now.", value=quotas.waiting_count
        )
        yield GaugeMetricFamily(
            "foqs_quota_meta_away",
            "1 while the meta database does not answer when it is asked for tokens.",
            value=int(quotas.is_away),
        )
        yield GaugeMetricFamily(
            "foqs_quota_ask_seconds",
            "What it usually takes to ask the meta database for tokens. The bounds of quotas grow with it.",
            value=quotas.ask_ms / 1000,
        )
        yield CounterMetricFamily(
            "foqs_quota_books_locked_total",
            "Asks for one namespace that came to nothing because another host was just at its book; they are repeated.",
            value=quotas.books_locked_total,
        )
        yield GaugeMetricFamily(
            "foqs_quota_books_away",
            "Namespaces whose books could not be asked for so long that the host lets items in without tokens.",
            value=quotas.refused_count,
        )
