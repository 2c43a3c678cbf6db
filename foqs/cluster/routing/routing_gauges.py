"""Gauges of the calls that other hosts do for this one, and of topics that hosts report to each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from foqs.cluster.homes.topic_news import TopicNews
from foqs.cluster.ownership.owner_claims import OwnerClaims
from foqs.cluster.routing.peer_claims import PeerClaims
from foqs.cluster.routing.peer_table import PeerTable
from foqs.cluster.routing.pulls import Pulls


class RoutingGauges(Collector):
    """Gauges of the calls to peers, and of the topics known from them."""

    def __init__(
        self, peers: PeerTable, pulls: Pulls, news: TopicNews, claims: PeerClaims, owners: OwnerClaims
    ) -> None:
        self._peers = peers
        self._pulls = pulls
        self._news = news
        self._claims = claims
        self._owners = owners

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterator[Metric]:
        pulls, news = self._pulls, self._news
        yield _with(
            CounterMetricFamily(
                "foqs_peer_calls_total",
                "Calls that this host has made of other hosts, by verb and outcome: ok, refused (with an error), "
                "not_done (certainly, so that it may be tried again) or unknown (no response).",
                labels=["verb", "outcome"],
            ),
            self._peers.calls_total,
        )
        states: dict[tuple[str, ...], int] = {(state,): count for state, count in self._peers.states().items()}
        yield _with(
            GaugeMetricFamily(
                "foqs_peers",
                "Hosts that this one has asked for something, by the state of its connection to them: connected, "
                "connecting or failed.",
                labels=["state"],
            ),
            states,
        )
        yield _with(
            CounterMetricFamily(
                "foqs_pulls_total",
                "Dequeues that this host has made at other hosts for its consumers, by outcome: items, empty, failed, "
                "late (nobody waits any more), or given_back (items that came for nobody).",
                labels=["outcome"],
            ),
            {(outcome,): count for outcome, count in pulls.pulls_total.items()},
        )
        yield CounterMetricFamily(
            "foqs_pulled_items_total",
            "Items that dequeues at other hosts have brought to consumers of this one.",
            value=pulls.items_total,
        )
        yield from self._of_claims()
        yield _with(
            CounterMetricFamily(
                "foqs_topic_hints_total",
                "Hints to a host that waits for a topic that another one has items of it, by direction: sent or "
                "received.",
                labels=["direction"],
            ),
            {(direction,): count for direction, count in news.hints_total.items()},
        )
        yield GaugeMetricFamily(
            "foqs_topics_known",
            "Topics that this host, as their home, knows the items or the waiting consumers of.",
            value=len(news.directory),
        )
        yield GaugeMetricFamily(
            "foqs_topic_news_age_seconds",
            "How old the oldest change of a topic is that its home has not heard of yet: consumers on other hosts hear "
            "of items so much later.",
            value=news.age_s(),
        )

    def _of_claims(self) -> Iterator[Metric]:
        yield _with(
            CounterMetricFamily(
                "foqs_peer_claims_refused_total",
                "What other hosts have said and this one has left out because it cannot be true, by what it was about: "
                "stock, wish, ask, grant, pointer, or opened (a shard).",
                labels=["claim"],
            ),
            {
                (claim,): count + (self._owners.counts["refused"] if claim == "opened" else 0)
                for claim, count in self._claims.refused_total.items()
            },
        )
        yield _with(
            CounterMetricFamily(
                "foqs_owner_claims_ended_total",
                "Hosts that have said that they have a shard and were not believed any longer, by reason: unconfirmed "
                "(the meta database did not say so within 3 s) or disowned (the host did not have it).",
                labels=["reason"],
            ),
            {(reason,): self._owners.counts[reason] for reason in ("unconfirmed", "disowned")},
        )
        yield GaugeMetricFamily(
            "foqs_owner_claims",
            "Shards whose owners this host knows only from what those say themselves, for 3 s at most.",
            value=len(self._owners),
        )


def _with(family: CounterMetricFamily | GaugeMetricFamily, counts: Mapping[tuple[str, ...], int]) -> Metric:
    for labels, count in sorted(counts.items()):
        family.add_metric(labels, count)
    return family
