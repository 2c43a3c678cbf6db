"""The parts that make a host one of a cluster for its callers: every verb on all shards, on any host."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Set
from functools import partial
from typing import NamedTuple, Protocol

from foqs.background.service import Service, ServiceState
from foqs.cluster.homes.cap_homes import CapHomes, LocalCaps
from foqs.cluster.homes.other_depths import LocalDepths, OtherDepths
from foqs.cluster.homes.topic_homes import TopicHomes
from foqs.cluster.homes.topic_reports import LocalTopics
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.ownership.owner_reports import OwnerReports
from foqs.cluster.peers.cluster_secrets import ClusterSecrets
from foqs.cluster.peers.guarded_peers import GuardedPeers
from foqs.cluster.peers.peer_table import PeerTable
from foqs.cluster.routing.by_all import MergedCalls
from foqs.cluster.routing.by_shard import DividedCalls
from foqs.cluster.routing.explaining import Explaining, LocalFacts
from foqs.cluster.routing.host_rounds import HostRounds
from foqs.cluster.routing.peer_door import PeerDoor
from foqs.cluster.routing.pulls import Pulls, Waits
from foqs.cluster.routing.routed_enqueue import RoutedEnqueue
from foqs.cluster.routing.router import AuditedCalls, Router, ways
from foqs.cluster.routing.routes import LocalServing, Routes
from foqs.cluster.routing.routing_gauges import RoutingSources
from foqs.contract.verbs import VERBS, Table, Whole
from foqs.host.verbs.page_reads import Slices
from foqs.model import limits
from foqs.model.cluster import OpenedShard
from foqs.model.stocks import Topic


class Chance(NamedTuple):
    """Random numbers and bytes, which come from outside."""

    choose: Callable[[int], int]
    """Draws a number from 0 to below its argument."""
    random_bytes: Callable[[int], bytes]


class LocalHost(LocalServing, LocalTopics, LocalCaps, LocalDepths, Protocol):
    """This host's own shards and topics, as routing sees them."""

    def known_topics(self) -> Collection[Topic]:
        """All topics that can have ready items here."""

    def aging_ms(self, topic: Topic) -> int:
        """The wait in which items of a topic become more urgent by one priority; 0 for strict priorities."""

    @property
    def waits(self) -> Waits:
        """Counts a call that waits for items of other hosts alone."""


def _surveyed(table: Table, rounds: HostRounds) -> Table:
    """The verbs for which all hosts say which shards they serve."""
    some = {name: rounds.surveyed(method) for name, method in table.items() if VERBS[name].route is Whole.SURVEYED}
    return {**some, "listHosts": rounds.list_hosts}


class Routing(Service):
    """Joins the parts that route calls. The host makes it around its own verbs, and starts, drains and stops it.

    As long as no other host lives it only passes calls on.
    """

    def __init__(
        self,
        me: str,
        cluster: str,
        table: Table,
        local: LocalHost,
        facts: LocalFacts,
        owners: OwnerMap,
        peers: PeerTable,
        secrets: ClusterSecrets,
        audit: AuditedCalls,
        chance: Chance,
        now_s: Callable[[], float],
        slices: Slices,
        needs_certificate: bool = False,
    ) -> None:
        """`table` has the verbs of this host alone, `facts` returns its facts about topics and items.

        `audit` records the calls of clients that are audited.

        `secrets` are those of the cluster. With `needs_certificate` hosts that call have to show certificates.

        `me` is the id of this host, `cluster` the name of its cluster. `now_s` is the time of the event loop, and
        `slices` runs long work on it.
        """
        super().__init__("routing")
        self._me = me
        self._local = local
        self._peers = peers
        self._guarded = guarded = GuardedPeers(me, peers, now_s, lambda: owners.living)
        routes = Routes(me, owners, guarded, local)
        self._topic_homes = TopicHomes(me, guarded.living, local, chance.choose, now_s)
        self.caps = CapHomes(me, guarded.living, local, now_s)
        self._depths = OtherDepths(me, guarded.living, local, now_s)
        self._owner_reports = OwnerReports(me, guarded.living, owners, now_s, local.serves)
        self.door = PeerDoor(
            me,
            cluster,
            lambda: owners.living,
            self._topic_homes,
            self.caps,
            self._depths,
            self._owner_reports,
            guarded.claims,
            secrets,
            chance.random_bytes,
            now_s,
            needs_certificate,
        )
        self._rounds = HostRounds(me, owners, guarded, table["getHostStatus"], now_s)
        self._explaining = explaining = Explaining(me, facts, owners, guarded, now_s)
        table = {**table, **self.door.table, **_surveyed(table, self._rounds), **explaining.table}
        enqueue = self._depths.around(table["enqueue"])
        merged = MergedCalls(table, routes, owners, slices)
        divided = DividedCalls(table, routes, partial(merged.call, "listDeadLetters"))
        nack = partial(divided.by_shard, "nack")
        number_of, serves_any = local.number_of, local.serves_any
        self._pulls = Pulls(
            table["dequeue"], self._topic_homes, guarded.find, number_of, serves_any, nack, local.aging_ms,
            local.waits,
        )  # fmt: skip
        enqueues = RoutedEnqueue(enqueue, routes, chance.choose, now_s)
        served = {**table, "dequeue": self._pulls.serve, "enqueue": enqueue}
        by_verb = ways(divided, merged, enqueues.enqueue, self._pulls.dequeue)
        self.router = Router(table, served, by_verb, routes, owners, explaining, audit)
        self.sources = RoutingSources(peers, self._pulls, self._topic_homes, guarded.claims, owners.claims)
        """The parts that metrics read."""
        self.is_alone = True
        """True if no other host needs reports of changed topics."""

    async def _start(self) -> None:
        await self._topic_homes.start()
        await self.caps.start()
        await self._depths.start()
        await self._owner_reports.start()

    async def _drain(self) -> None:
        self._pulls.drain()

    async def _stop(self) -> None:
        self.is_alone = True
        await self._rounds.stop()
        await self._explaining.stop()
        await self._pulls.stop()
        await self._owner_reports.stop()
        await self._depths.stop()
        await self.caps.stop()
        await self._topic_homes.stop()
        await self._peers.stop()

    def topic_changed(self, topic: Topic) -> None:
        """Note that the ready items of a topic on this host possibly changed, while it is not alone."""
        self._topic_homes.changed(topic)

    def shard_opened(self, shard: OpenedShard) -> None:
        """This host serves the shard from now on."""
        self._owner_reports.opened(shard)

    def follow_hosts(self, addresses: Mapping[str, str], leaving: Set[str]) -> None:
        """Set the living hosts with their addresses, and the leaving ones.

        A leaving host serves its shards and is no home, because reports to a home would keep its connections busy, and
        a draining host waits until its peers do not need it any more. After the stop it changes nothing.
        """
        if self.state is ServiceState.STOPPED:
            return
        was_alone, self.is_alone = self.is_alone, len(addresses) < 2
        self._guarded.live(addresses)
        host_ids = sorted(addresses)
        homes = [host_id for host_id in host_ids if host_id not in leaving]
        self._owner_reports.members(addresses, leaving)
        self._topic_homes.members(host_ids, homes)
        self.caps.members(host_ids, homes)
        self._depths.members(host_ids)
        if was_alone and not self.is_alone:
            self._tasks.spawn(self._report(self._local.known_topics()), "topics-reported")

    async def _report(self, topics: Iterable[Topic]) -> None:
        """Report the topics that this host had while it was alone."""
        for number, topic in enumerate(list(topics)):
            self._topic_homes.changed(topic)
            if number % limits.TOPICS_PER_TICK_MAX == 0:
                await asyncio.sleep(0)
