"""The composition root: a host from its configuration."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping

from foqs.background.service import Service, ServiceState
from foqs.background.tasks import Tasks, log_defect
from foqs.cluster.members.membership import Follower, Membership
from foqs.cluster.members.view import ClusterView
from foqs.cluster.members.watch_report import OF_WATCH
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.ownership.owner_word import OwnerWord
from foqs.cluster.ownership.sharing import Sharing
from foqs.cluster.peers.cluster_secrets import ClusterSecrets
from foqs.cluster.routing.routing import Routing
from foqs.cluster.routing.routing_gauges import OF_ROUTING
from foqs.config import HostConfig
from foqs.config_addresses import peer_advertised_of
from foqs.contract.verbs import Table
from foqs.host.access.book import AccessBook
from foqs.host.access.follower import AccessFollower
from foqs.host.access.guard import check_is_guarded
from foqs.host.admission.bulk_lane import BulkEnqueues, BulkLane
from foqs.host.admission.depths import Depths
from foqs.host.admission.hosted_jobs import Jobs
from foqs.host.admission.hosted_quota import RepeatLookUps
from foqs.host.admission.permit_asks import PermitAsks
from foqs.host.admission.placement import Placement
from foqs.host.admission.quotas import Quotas
from foqs.host.dispatch.consumers import Consumers
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.metrics.ages import Ages
from foqs.host.metrics.condition import Condition, Pulse
from foqs.host.metrics.gauges import OF_ACCESS, OF_AUDIT, OF_EVENT_LOG, OF_HOST, Sources
from foqs.host.metrics.rates import Rates
from foqs.host.registry.censuses import Censuses
from foqs.host.registry.group_calls import GroupCalls
from foqs.host.registry.kept_gates import SlotGates
from foqs.host.registry.known_slots import Slots
from foqs.host.registry.namespace_calls import NamespaceCalls
from foqs.host.registry.namespaces import Namespaces
from foqs.host.registry.slot_moves import SlotMover
from foqs.host.shards.hand_over import let_go
from foqs.host.shards.shards import Shards
from foqs.host.shards.waiting import Waiting
from foqs.host.verbs.access_verbs import AccessVerbs
from foqs.host.verbs.audit_list import AuditList
from foqs.host.verbs.bulk_acts import BulkActs
from foqs.host.verbs.bulk_calls import BulkCalls
from foqs.host.verbs.bulk_walker import BulkWalker
from foqs.host.verbs.consumer_verbs import ConsumerVerbs
from foqs.host.verbs.dedup_calls import DedupCalls
from foqs.host.verbs.dequeues import Dequeues
from foqs.host.verbs.distant_holders import DistantHolders
from foqs.host.verbs.enqueues import Enqueues
from foqs.host.verbs.exports import Exports
from foqs.host.verbs.group_copier import GroupCopier
from foqs.host.verbs.group_purge import GroupPurge
from foqs.host.verbs.group_verbs import GroupCreation, GroupVerbs
from foqs.host.verbs.history_verb import HistoryVerb
from foqs.host.verbs.host_stocks import Stocks
from foqs.host.verbs.inspection import Inspection
from foqs.host.verbs.job_calls import JobCalls, JobEnqueues
from foqs.host.verbs.known_facts import KnownFacts
from foqs.host.verbs.namespace_verbs import NamespaceCreation, NamespacePages, NamespaceVerbs
from foqs.host.verbs.page_reads import PageBudget, Slices
from foqs.host.verbs.place_check import PlaceCheck
from foqs.host.verbs.rate_verbs import RateVerbs
from foqs.host.verbs.settlements import Leases
from foqs.host.verbs.shard_calls import ShardCalls
from foqs.host.verbs.shard_maps import ShardMaps
from foqs.host.verbs.status_of_host import StatusOfHost
from foqs.host.verbs.table import verb_table
from foqs.host.verbs.topic_facts import HostTopics
from foqs.host.verbs.topics import Topics
from foqs.membership_factory import make_membership
from foqs.model import limits
from foqs.model.cluster import OpenedShard, ShardRow, process_id
from foqs.model.peer_proof import PROOF, SECRET_BYTES
from foqs.model.secret import Secret
from foqs.model.shared_caps import SharedCap
from foqs.model.stocks import Topic
from foqs.parts import Parts, real_parts
from foqs.record_factory import make_audit, make_event_log
from foqs.server_factory import make_server
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Events
from foqs.shard_factory import ShardFactory
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind
from foqs.transport.tls.certificates import Certificates
from foqs.transport.tls.tls_gauges import OF_TLS, TlsSources

PREFETCH_SWEEP_MS = 500
"""Interval between two checks for prefetched items that nobody took, in milliseconds."""


class Host(Service):
    """One host. Makes, starts, drains and stops its shards, the verbs on them and the server, in order.

    The command `foqs host` and the tests make it. It does the work that is due by time, and can gain and lose shards
    while it runs.
    """

    def __init__(self, config: HostConfig, parts: Parts | None = None) -> None:
        """`parts` replaces MySQL, TCP and the clocks in tests."""
        super().__init__("host")
        self._config = config
        self._parts = parts = parts or real_parts()
        self._loop = asyncio.get_running_loop()
        started_at_ms = parts.wall_ms()
        self.id = process_id(config.host_name, started_at_ms)
        self._meta = self._make_meta(limits.META_STATEMENT_MS_MAX)
        self._secrets = ClusterSecrets(lambda: self.owners.living, parts.monotonic_s)
        self._membership = self._make_membership(started_at_ms)
        self._jobs = Jobs(self._meta.jobs, config.host_name, started_at_ms, self._loop.time)
        self._shards = Shards(config.shards, self._membership.refused, self._is_elsewhere)
        self._waiting, self._slots = Waiting(self._loop), Slots(self._shards)
        self._censuses = Censuses(self._shards, self._slots, self._waiting)
        self.access = AccessBook(self._meta.access, parts.monotonic_s)
        self._follower = AccessFollower(self.access, parts.monotonic_s)
        self._namespaces = self._make_namespaces()
        self._audit = make_audit(self._meta.audit, self.id, parts, self._namespaces, self.access.refusals)
        files, self.note = config.tls_files, self._audit.noted
        self.certificates = None if files is None else Certificates(files, parts.wall_ms, self.note)
        self.metrics = parts.metrics(self._namespaces.name_of)
        self._event_log = make_event_log(config, parts, self._namespaces, self.metrics.items)
        self._dispatcher = Dispatcher(
            self._shards.writers, self._loop.time, self._namespaces.settings,
            self._record if self._event_log is not None else self.metrics.items.record,
            self._topic_changed,
            lambda key, rate, now_s: SharedCap(key, rate, now_s, self._routing.caps),
        )  # fmt: skip
        self._factory = ShardFactory(
            config, parts, self._meta, self._namespaces, self._dispatcher, self._membership,
            self.metrics.transactions, self._shard_opened, self.id,
        )  # fmt: skip
        self.owners = OwnerMap(parts.monotonic_s, self.id, lambda *hosts: self._routing.follow_hosts(*hosts))  # noqa: PLW0108
        self._sharing = Sharing(self, self.owners, self._membership, parts.monotonic_s)
        self._owner_word = OwnerWord(self._shards, self._membership, parts.monotonic_s)
        self._namespace_calls = NamespaceCalls(self._namespaces, self._censuses, self._slots, parts.wall_ms)
        self._slot_moves = self._make_slot_moves()
        self._distant = DistantHolders(self._namespaces, self._shards, self._waiting, self._factory.source)
        self._lane, slices, pages = BulkLane(self._loop), Slices(self._loop), PageBudget()
        self._consumers, self._ages = Consumers(self._loop.time), Ages(self._shards, self._loop.time)
        on_events, gates = self._dispatcher.on_events, self._slot_moves.gates
        self._inspection = Inspection(self._namespaces, self._shards, self._waiting, on_events, slices, pages, gates)
        self._exports = Exports(self._namespaces, self._shards, pages, slices, parts.wall_ms)
        self._group_purge, self._bulk_walker = self._make_group_purge(), self._make_bulk_walker(gates)
        self._group_copier = GroupCopier(self._namespaces, self._shards, self._exports, self._waiting, self._loop.time)
        self._quotas, self._depths = self._make_quotas(), Depths(self._namespaces.settings, self._shards.owned)
        self._permit_asks = PermitAsks(self._meta.permits, self._dispatcher, self._loop.time)
        self._dequeues = Dequeues(
            self._namespaces, self._shards, self._dispatcher, self._loop.time, self.metrics.items.count_event,
            self._consumers,
        )  # fmt: skip
        self._rates = Rates(self._shards, self._loop.time, parts.wall_ms, parts.monotonic_s)
        self._routing = self._make_routing(self._make_verbs(slices), slices)
        self._server = make_server(
            config, parts, self._routing, self.access, self._namespaces, self.metrics.transport, self.certificates,
            self._audit.sign_in_refused, lambda: self.owners.has_older_hosts,
        )  # fmt: skip
        self._ticking, self._pulse = Tasks("ticker"), Pulse()
        self._watch()
        self.condition = Condition(self._pulse, self._shards, lambda: self.state)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def owned_count(self) -> int:
        """Number of shards that this host owns now."""
        return sum(1 for _ in self._shards.owned())

    def use_urls(self, config: HostConfig) -> None:
        """Open new sessions by the URLs of `config`, which lead to the same databases. Open sessions stay."""
        self._factory.use_urls(config)
        self._meta.use_url(config.meta_url)
        self._membership.use_url(config.meta_url)
        for shard_id, shard in self._shards.by_id.items():
            shard.use_url(self._factory.url_of(shard_id, shard.place))

    # ---- foqs.cluster.ownership.sharing.LocalShards ----

    @property
    def shards_run(self) -> Collection[int]:
        return self._shards.by_id.keys()

    @property
    def shards_owned(self) -> Collection[int]:
        return {shard.shard_id for _, shard in self._shards.owned()}

    @property
    def shards_awaited(self) -> Collection[int]:
        return {shard_id for shard_id, writer in self._shards.writers.items() if writer.is_standing_by}

    def knows_shards(self, rows: Collection[ShardRow], moving: Collection[int]) -> None:
        self._shards.know(rows, moving)
        self._factory.relocated = {row.shard_id for row in rows if row.is_relocated}

    def place_of(self, shard_id: int) -> str:
        return self._shards.by_id[shard_id].place

    def knows_epochs(self, epochs: Mapping[int, int]) -> None:
        for shard_id, writer in self._shards.writers.items():
            writer.knows_epoch(epochs.get(shard_id, 0))

    def expect_shards(self, shard_ids: Collection[int]) -> None:
        for shard_id, writer in self._shards.writers.items():
            writer.expect(is_expected=shard_id in shard_ids)

    def retry_now(self, shard_ids: Collection[int]) -> None:
        for shard_id in shard_ids:
            self._shards.writers[shard_id].retry_now()

    async def gain_shard(self, shard_id: int, place: str) -> None:
        """Try to own one more shard while the host runs. At first another host can still own it."""
        assert shard_id not in self._shards.by_id, f"the host has shard {shard_id}"
        shard = self._factory.make(shard_id, place, self._shards.take_tenure(shard_id))
        self._shards.add(shard)
        await shard.start()

    async def lose_shard(self, shard_id: int) -> None:
        """Hand a shard over while the host runs, once all accepted work is written; its leases stay valid."""
        await self._bulk_walker.leave(shard_id)
        await let_go(self._shards.by_id[shard_id], self._dispatcher)
        self._shards.remove(shard_id)

    async def _start(self) -> None:
        # Start the ticker first, because it shows that the event loop turns.
        self._ticking.spawn(self._tick())
        if self.certificates is not None:
            await self.certificates.start()
        await self._namespaces.calls.run(lambda _: self._parts.check_schema(self._config.meta_url, SchemaKind.META))
        await self._namespaces.calls.run(self._join)
        await self._routing.start()
        await self._membership.start()
        await self._namespaces.start()
        await self._follower.start()
        check_is_guarded(self._config, self.access.snapshot.mode)
        for part in (self._jobs, self._quotas, self._permit_asks, self._audit):
            await part.start()
        if self._event_log is not None:
            await self._event_log.start()
        for service in (self._sharing, self._group_purge, self._group_copier, self._bulk_walker, self._server):
            await service.start()
        self._membership.advertise(self._advertised(), self._peer_advertised())

    def _join(self, meta: MetaStore) -> None:
        """Check the name and the id of the cluster, and read its secret. Raises InvalidArgumentError in another."""
        meta.cluster.agree_on_name(self._config.cluster)
        self._factory.cluster.read()
        self._secrets.join(meta, Secret(self._parts.chance.random_bytes(SECRET_BYTES)))

    async def _drain(self) -> None:
        await self._sharing.leave()
        await self._dequeues.drain()
        await self._routing.drain()
        await self._server.drain()
        for _ in self._dispatcher.prefetch.drain():
            await asyncio.sleep(0)
        await asyncio.gather(*[shard.drain() for shard in self._shards.by_id.values()])
        await self._jobs.drain()
        await self._quotas.drain()
        await self._audit.drain()
        if self._event_log is not None:
            await self._event_log.drain()

    async def _stop(self) -> None:
        await self._server.stop()
        await self._routing.stop()
        await self._bulk_walker.stop()
        await self._group_copier.stop()
        await self._group_purge.stop()
        await self._namespace_calls.stop()
        await self._slot_moves.stop()
        self._distant.stop()
        await self._slots.stop()
        await self._sharing.stop()
        await self._owner_word.stop()
        await asyncio.gather(*[shard.stop() for shard in self._shards.by_id.values()])
        if self._event_log is not None:
            await self._event_log.stop()
        await self._censuses.stop()
        await self._jobs.stop()
        await self._quotas.stop()
        await self._permit_asks.stop()
        await self._audit.stop()
        await self._follower.stop()
        await self._namespaces.stop()
        await self._membership.stop()
        if self.certificates is not None:
            await self.certificates.stop()
        # Stop the ticker last. Stopping the other parts can take long if a server hangs, and the loop turns meanwhile.
        await self._ticking.stop()

    async def _tick(self) -> None:
        """Do the work that is due by time, except the ticks of the shards."""
        swept_s = cleaned_s = self._loop.time()
        while True:
            await self._pulse.pause(limits.TICK_MS)
            if self.state is ServiceState.STOPPED:
                continue
            now_s = self._loop.time()
            self._factory.turning.tick(now_s)
            works = [writer.tick for writer in self._shards.writers.values()]
            works += [self._dispatcher.tick, self._dequeues.tick, self._waiting.tick, self._ages.tick, self.access.tick]
            if now_s >= self._rates.due_s:
                works.append(self._rates.tick)
            if now_s - swept_s > PREFETCH_SWEEP_MS / 1000:
                swept_s = now_s
                works.append(self._dispatcher.sweep)
            if now_s - cleaned_s > limits.TOPIC_IDLE_MS / 4_000:
                cleaned_s = now_s
                works += [self._forget_quotas, self._dispatcher.rings.forget_prefixes]
            for work in works:
                try:
                    work()
                except Exception:  # A defect in one part must not stop the clock of the others.
                    log_defect(work.__qualname__)

    def _shard_opened(self, shard: ShardState) -> None:
        """Prepare an opened shard before its first call."""
        self._namespaces.shard_opened(shard)
        self._routing.shard_opened(OpenedShard(shard.shard_id, shard.epoch))

    def _topic_changed(self, topic: Topic) -> None:
        if not self._routing.is_alone:
            self._routing.topic_changed(topic)

    def _forget_quotas(self) -> None:
        self._quotas.forget(self._namespaces.numbers)

    def _is_elsewhere(self, shard_id: int) -> bool:
        """True if another host serves the shard, as far as this one knows."""
        owner = self.owners.get(shard_id)
        return owner is not None and owner.host_id != self.id and bool(owner.address)

    def _watch(self) -> None:
        """Register the parts with the metrics."""
        sources = Sources(
            self._shards,
            self._ages,
            self._dispatcher,
            self._pulse,
            self._quotas,
            self._lane,
            self._jobs,
            self._namespaces.name_of,
            self._is_draining,
            lambda: len(self._censuses.unknown),
            self._slot_moves.gates.ages_s,
        )
        self.metrics.watch(OF_HOST, sources)
        self.metrics.watch(OF_AUDIT, self._audit)
        self.metrics.watch(OF_ROUTING, self._routing.sources)
        self.metrics.watch(OF_WATCH, self._membership.report)
        self.metrics.watch(OF_ACCESS, self.access)
        if self.certificates is not None:
            self.metrics.watch(OF_TLS, TlsSources(self._server, self.certificates))
        if self._event_log is not None:
            self.metrics.watch(OF_EVENT_LOG, self._event_log)

    def _is_draining(self) -> bool:
        return self.state is ServiceState.DRAINING

    def _make_meta(self, statement_ms_max: int) -> MetaStore:
        """The meta database, with sessions that other hosts can end once this process is dead."""
        return self._parts.meta(self._config.meta_url, statement_ms_max, self.id)

    def _make_membership(self, started_at_ms: int) -> Membership:
        follower = Follower(
            self._follow_view,
            lambda: self._sharing.owner_died(),  # noqa: PLW0108 - it is made later
            lambda: self._sharing.is_moving,
            lambda shard_id, place: self._factory.place_problem(shard_id, place),  # noqa: PLW0108 - it is made later
            self._secrets.read,
            lambda: self._secrets.ids,
        )
        return make_membership(self._config, self._parts, self.id, started_at_ms, self._make_meta, follower)

    async def _follow_view(self, view: ClusterView) -> None:
        """Do what follows from a round of the membership."""
        if await self._sharing.refresh(view):
            self._owner_word.refresh(view)

    def _make_namespaces(self) -> Namespaces:
        return Namespaces(
            self._meta,
            self.id,
            self._parts.wall_ms,
            self._censuses,
            self._slots,
            allow_undurable=self._config.allow_undurable_servers,
            on_slot_move=lambda move: self._slot_moves.refresh(move),  # noqa: PLW0108 - it is made later
            restore_id=lambda: self._factory.cluster.restore(),  # noqa: PLW0108 - it is made later
        )

    def _advertised(self) -> str:
        """The address and the port at which clients and other hosts reach this host."""
        return self._config.advertised(self.port)

    def _peer_advertised(self) -> str:
        """The same for other hosts alone; empty if they use that for clients."""
        port = self._server.peer_port
        return "" if port is None else peer_advertised_of(self._config, port)

    def _make_slot_moves(self) -> SlotMover:
        namespaces, source = self._namespaces, self._factory.source
        return SlotMover(namespaces, self._censuses, self._shards, self._slots, self._waiting, source)

    def _make_group_purge(self) -> GroupPurge:
        calls = GroupCalls(self._namespaces, self._namespace_calls)
        return GroupPurge(self._namespaces, self._shards, self._exports, self._inspection, calls, self._loop.time)

    def _make_bulk_walker(self, gates: SlotGates) -> BulkWalker:
        acts = BulkActs(self._namespaces, self._shards, self._inspection, gates, self._loop.time)
        return BulkWalker(self._namespaces, self._shards, self._exports, acts, self._loop.time)

    def _make_quotas(self) -> Quotas:
        return Quotas(
            self._meta.quotas,
            self._config.host_name,
            self._parts.monotonic_s,
            lambda: self._membership.hosts_count,
            lambda: self._namespaces.missed_s,
        )

    def _record(self, events: Events) -> None:
        """Record the events of a shard."""
        self.metrics.items.record(events)
        if self._event_log is not None:
            self._event_log.record(events)

    def _make_verbs(self, slices: Slices) -> Table:
        """The verbs on the shards of this host."""
        namespaces, shards, count_event = self._namespaces, self._shards, self.metrics.items.count_event
        placement = Placement(shards, self._dispatcher, self._slots)
        places = PlaceCheck(namespaces.calls, self._factory, self._config.host_name)
        look_ups, make_slots = RepeatLookUps(self._parts.monotonic_s), self._namespace_calls.slots
        enqueues = Enqueues(
            namespaces, self._quotas, placement, self._waiting, count_event, make_slots, look_ups, self._depths,
            self._distant,
        )  # fmt: skip
        bulk = BulkEnqueues(namespaces, self._lane, enqueues.enqueue)
        undelivered, random_bytes = self._dispatcher.tokens.undelivered, self._parts.chance.random_bytes
        group_calls, wall_ms = GroupCalls(namespaces, self._namespace_calls), self._parts.wall_ms
        consumer_verbs = ConsumerVerbs(
            namespaces, shards, self._consumers, self._waiting, slices, self._config.host_name, wall_ms, count_event
        )
        table = verb_table(
            JobEnqueues(namespaces, self._jobs, bulk.enqueue, count_event),
            AccessVerbs(namespaces, self._follower, self.access.refusals, random_bytes, wall_ms),
            self._dequeues, self._inspection, self._exports, NamespacePages(namespaces), consumer_verbs,
            Topics(namespaces, shards, self._dispatcher, slices, self._rates),
            RateVerbs(namespaces, shards, self._rates, slices), HistoryVerb(namespaces, self._event_log),
            NamespaceCreation(self._namespace_calls), GroupCreation(group_calls, wall_ms, random_bytes),
            JobCalls(namespaces, self._jobs), BulkCalls(namespaces, wall_ms),
            without_context=[
                Leases(namespaces, shards, self._inspection, self._waiting, count_event, undelivered, self._consumers),
                ShardMaps(namespaces, self._namespace_calls, shards, self._advertised),
                NamespaceVerbs(namespaces, self._namespace_calls, self._follower.refresh),
                GroupVerbs(namespaces, group_calls),
                DedupCalls(namespaces, placement, self._waiting),
                ShardCalls(namespaces, shards, self._slots, self._waiting, self._sharing.tiers_of, places),
                StatusOfHost(self._config.host_name, shards, self._is_draining, self._peer_advertised),
                AuditList(namespaces.access_calls.run),
            ],
        )  # fmt: skip
        return {**table, **{verb: self._lane.beside(table[verb]) for verb in ("dequeue", "ack", "nack", "extendLease")}}

    def _make_routing(self, table: Table, slices: Slices) -> Routing:
        """Extend the verbs of one host to all shards of the cluster."""
        chance, now_s = self._parts.chance, self._loop.time

        def proof(host_id: str) -> int:
            row = self.owners.living.get(host_id)
            return PROOF if row is None else row.proof

        cluster = self._config.cluster
        tls = self.certificates if self._config.calls_peers_by_tls else None
        to_peers = None if tls is None else tls.peer_tls()
        peers = self._parts.peers(self.id, cluster, self._secrets, proof, chance.random_bytes, now_s, to_peers)
        depths, consumers = self._depths, self._consumers
        local = Stocks(self._dispatcher, self._shards, self._namespaces, now_s, self._tasks, depths, consumers)
        wall_ms = self._parts.wall_ms
        topics = HostTopics(self._dispatcher, self._shards, consumers, self._rates, now_s, wall_ms)
        facts = KnownFacts(
            self._namespaces, self._dispatcher, self._shards, topics, self._inspection, slices, self._quotas.left_ms,
            wall_ms,
        )  # fmt: skip
        return Routing(
            self.id, cluster, table, local, facts, self.owners, peers, self._secrets, self._audit, chance, now_s,
            slices, self._config.needs_peer_certificates,
        )  # fmt: skip
