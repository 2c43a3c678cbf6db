"""Metrics of the calls that other hosts do for this one, and of topics that hosts report to each other."""

from __future__ import annotations

from typing import NamedTuple

from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.ownership.owner_claims import OwnerClaims
from foqs.cluster.peers.peer_claims import PeerClaims
from foqs.cluster.peers.peer_table import PeerTable
from foqs.cluster.routing.pulls import Pulls
from foqs.host.metrics.metric_rows import MetricRow, counter, gauge


class RoutingSources(NamedTuple):
    """The parts of the routing that `OF_ROUTING` reads."""

    peers: PeerTable
    pulls: Pulls
    homes: TopicHomes
    claims: PeerClaims
    owners: OwnerClaims


def _refused_claims(of: RoutingSources) -> dict[str, float]:
    refused = of.claims.refused_total
    return {**refused, "opened": refused["opened"] + of.owners.counts["refused"]}


OF_ROUTING: tuple[MetricRow[RoutingSources], ...] = (
    counter("foqs_peer_calls_total",
        "Calls that this host has made of other hosts, by verb and outcome: ok, refused (with an error), not_done "
        "(certainly, so that it may be tried again) or unknown (no response).",
        lambda of: of.peers.calls_total, "verb", "outcome"),
    gauge("foqs_peers",
        "Hosts that this one has asked for something, by the state of its connection to them: connected, connecting "
        "or failed.",
        lambda of: of.peers.states(), "state"),
    counter("foqs_pulls_total",
        "Dequeues that this host has made at other hosts for its consumers, by outcome: items, empty, failed, late "
        "(nobody waits any more), or given_back (items that came for nobody).",
        lambda of: of.pulls.pulls_total, "outcome"),
    counter("foqs_pulled_items_total", "Items that dequeues at other hosts have brought to consumers of this one.",
        lambda of: of.pulls.items_total),
    counter("foqs_peer_claims_refused_total",
        "Reports of other hosts that this one has left out because they cannot be true, by subject: stock, "
        "wish, ask, grant, pointer, depth, or opened (a shard).",
        _refused_claims, "claim"),
    counter("foqs_owner_claims_ended_total",
        "Hosts that have said that they have a shard and were not believed any longer, by reason: unconfirmed (the "
        "meta database did not say so within 3 s) or disowned (the host did not have it).",
        lambda of: {reason: of.owners.counts[reason] for reason in ("unconfirmed", "disowned")}, "reason"),
    gauge("foqs_owner_claims",
        "Shards whose owners this host knows only from what those say themselves, for 3 s at most.",
        lambda of: len(of.owners)),
    counter("foqs_topic_hints_total",
        "Notices to a host that waits for a topic that another one has items of it, by direction: sent or received.",
        lambda of: of.homes.notices_total, "direction"),
    gauge("foqs_topics_known", "Topics that this host, as their home, knows the items or the waiting consumers of.",
        lambda of: len(of.homes.directory)),
    gauge("foqs_topic_news_age_seconds",
        "Age of the oldest change of a topic that was not reported to its home yet: consumers on other hosts get items "
        "later by this time.",
        lambda of: of.homes.age_s()),
)  # fmt: skip
