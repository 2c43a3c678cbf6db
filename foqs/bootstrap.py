"""The composition root: a host from its configuration."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import structlog
from sqlalchemy import make_url

from foqs.cluster.backends import membership_backend
from foqs.cluster.membership import Membership
from foqs.cluster.owner_map import OwnerMap
from foqs.cluster.peers import PeerTable
from foqs.cluster.routing import Chance, Routing
from foqs.cluster.sharing import Sharing
from foqs.config import HostConfig
from foqs.host.admin import Admin
from foqs.host.ages import Ages
from foqs.host.bulk_lane import BulkEnqueues, BulkLane
from foqs.host.census import Censuses
from foqs.host.condition import Condition
from foqs.host.dequeues import Dequeues
from foqs.host.dispatch import Dispatcher
from foqs.host.enqueues import Enqueues, Placement
from foqs.host.event_log.service import EventLog, EventLogOptions, EventLogSource
from foqs.host.exports import Exports
from foqs.host.hand_over import let_go
from foqs.host.inspection import Inspection
from foqs.host.job_calls import JobCalls, JobEnqueues
from foqs.host.jobs import Jobs
from foqs.host.leases import Leases
from foqs.host.metrics import Metrics
from foqs.host.namespace_calls import NamespaceCalls
from foqs.host.namespaces import Namespaces
from foqs.host.page_budget import PageBudget
from foqs.host.pulse import Pulse
from foqs.host.queue import Queue
from foqs.host.quotas import Quotas
from foqs.host.shard_calls import ShardCalls
from foqs.host.shard_maps import ShardMaps
from foqs.host.shards import OwnedShard, Shards
from foqs.host.slices import Slices
from foqs.host.slot_moves import SlotMover, Source
from foqs.host.slots import Slots
from foqs.host.stocks import Stocks
from foqs.host.topics import Topics
from foqs.host.waiting import Waiting
from foqs.model import limits
from foqs.model.cluster import HostRow, ShardUse, process_id
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.item import ItemEvent
from foqs.model.peers import SECRET_BYTES
from foqs.model.service import Service, ServiceState
from foqs.server.mysql_server import CommitScheduler, MysqlServer, TurningTime
from foqs.shard.state.events import Events
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.meta import MetaStore
from foqs.storage.migrations import MigrationError, SchemaKind, check_current
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.index import PackIndex
from foqs.storage.places import place_of, url_at
from foqs.storage.session import server_of
from foqs.storage.shard_reader import ShardReader
from foqs.storage.shard_store import ShardAccess, ShardStore
from foqs.storage.slot_source import SlotSource
from foqs.transport.bounds import TransportLimits
from foqs.transport.peers import Peers as ThriftPeers
from foqs.transport.server import ThriftServer

PREFETCH_SWEEP_MS = 500
"""The pause between two checks for prefetched items that nobody took."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What ties a host to the world outside of its process: databases, sockets, clocks and metrics."""

    meta: Callable[..., MetaStore]
    store: Callable[[ShardAccess, Callable[[int], int], Callable[[str, int], bool], PackIndex], ShardStore]
    reader: Callable[[int, str, PackIndex], ShardReader]
    slot_source: Callable[[int, str], Source]
    check_schema: Callable[[str, SchemaKind], None]
    server: Callable[..., ThriftServer]
    metrics: Callable[[Callable[[int], str | None]], Metrics]
    wall_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    chance: Chance
    peers: Callable[..., PeerTable]
    event_log: Callable[[EventLogOptions, EventLogSource], EventLog] = EventLog


def real_parts() -> Parts:
    """MySQL, TCP and the clocks of this machine."""
    return Parts(
        meta=MetaStore,
        store=ShardStore,
        reader=ShardReader,
        slot_source=SlotSource,
        check_schema=check_current,
        server=ThriftServer,
        metrics=Metrics,
        wall_ms=_wall_ms,
        monotonic_s=_monotonic_s,
        chance=_chance(),
        peers=ThriftPeers,
        event_log=EventLog,
    )


class Host(Service):
    """One host: its shards, the verbs on them and the front door, which it makes, starts, drains and stops in order.

    The command `foqs host` and the tests make it. It ticks all that time alone moves, and can gain and lose shards.
    """

    def __init__(self, config: HostConfig, parts: Parts | None = None) -> None:
        """`parts` takes the place of MySQL, TCP and the clocks, in tests."""
        super().__init__("host")
        self._config = config
        self._parts = parts = parts or real_parts()
        self._loop = asyncio.get_running_loop()
        self._meta = parts.meta(config.meta_url)
        self._meta_url = config.meta_url
        self._shard_urls = dict(config.shards)
        started_at_ms = parts.wall_ms()
        self.id = process_id(config.host_name, started_at_ms)
        self._membership = self._make_membership(started_at_ms)
        self._jobs = Jobs(self._meta, config.host_name, started_at_ms, self._loop.time)
        self._namespaces = Namespaces(
            self._meta, self.id, parts.wall_ms, allow_undurable=config.allow_undurable_servers
        )
        self.metrics = parts.metrics(self._namespaces.name_of)
        self._shards = Shards(config.shards)
        self._event_log = self._make_event_log()
        self._dispatcher = Dispatcher(
            self._shards.writers,
            self._loop.time,
            self._namespaces.settings,
            self._record if self._event_log is not None else self.metrics.items.record,
        )
        self._turning = TurningTime()
        self._servers: dict[str, MysqlServer] = {}
        """Each stands under the address in the URLs of its shards."""
        self._pack_budget = PackBudget(limits.PACKS_OF_HOST_BYTES_MAX)
        self.owners = OwnerMap()
        self._sharing = Sharing(self, self.owners, self._membership, parts.monotonic_s)
        self._waiting = Waiting(self._loop)
        self._slots = self._namespaces.slots = Slots(self._shards)
        self._censuses = self._namespaces.shards = Censuses(self._shards, self._namespaces, self._slots, self._waiting)
        self._namespace_calls = NamespaceCalls(self._namespaces, self._censuses, self._slots, parts.wall_ms)
        self._slot_moves = self._namespaces.slot_moves = SlotMover(
            self._namespaces, self._censuses, self._shards, self._slots, self._waiting,
            lambda shard_id, place: parts.slot_source(shard_id, self._url_of(shard_id, place)),
        )  # fmt: skip
        slices = Slices(self._loop)
        pages = PageBudget()
        self._inspection = Inspection(self._shards, self._waiting, self._dispatcher.on_events, slices, pages)
        self._exports = Exports(self._shards, pages, slices, parts.wall_ms)
        self._quotas = Quotas(
            self._meta,
            config.host_name,
            parts.monotonic_s,
            lambda: self._membership.hosts_count,
            lambda: self._namespaces.missed_s,
        )
        self._dequeues = Dequeues(
            self._namespaces, self._shards, self._dispatcher, self._loop.time, self.metrics.items.happened
        )
        self._shards.is_elsewhere = self._is_elsewhere
        self._routing = self._make_routing(*self._make_verbs(slices))
        self._server = self._make_server()
        self._secret: bytes | None = None
        """That of the cluster, from the meta database."""
        self._ticker: asyncio.Task[None] | None = None
        self._pulse = Pulse()
        self._ages = Ages(self._shards, self._loop.time)
        self.metrics.watch(self._shards, self._dispatcher, self._ages, self._pulse, self._is_draining)
        self.metrics.watch_quotas(self._quotas)
        self.metrics.watch_also(self._routing.gauges)
        self.metrics.watch_namespaces(lambda: len(self._censuses.unknown))
        self.condition = Condition(self._pulse, self._shards, lambda: self.state)

    @property
    def port(self) -> int:
        return self._server.port

    @property
    def owned_count(self) -> int:
        """Shards that this host owns now."""
        return sum(1 for _ in self._shards.owned())

    def use_urls(self, meta_url: str, shard_urls: Mapping[int, str]) -> None:
        """New sessions are opened by these URLs, which lead to the same databases; those that are open stay."""
        self._meta_url, self._shard_urls = meta_url, dict(shard_urls)
        self._meta.use_url(meta_url)
        self._membership.use_url(meta_url)
        for shard_id, shard in self._shards.by_id.items():
            shard.use_url(self._url_of(shard_id, shard.place))

    # ---- foqs.cluster.sharing.LocalShards ----

    @property
    def shards_run(self) -> Collection[int]:
        return self._shards.by_id.keys()

    @property
    def shards_owned(self) -> Collection[int]:
        return {shard.shard_id for _, shard in self._shards.owned()}

    def knows_shards(self, uses: Mapping[int, ShardUse], moving: Collection[int]) -> None:
        self._shards.know(uses, moving)

    def expect_shards(self, shard_ids: Collection[int]) -> None:
        for shard_id, writer in self._shards.writers.items():
            writer.expect(is_expected=shard_id in shard_ids)

    def look_again(self, shard_ids: Collection[int]) -> None:
        for shard_id in shard_ids:
            self._shards.writers[shard_id].look_again()

    async def gain_shard(self, shard_id: int, place: str) -> None:
        """Try to own one more shard from now on, while the host runs. Another host may own it for a while yet."""
        assert shard_id not in self._shards.by_id, f"the host has shard {shard_id}"
        shard = self._make_shard(shard_id, place)
        self._shards.add(shard)
        await shard.start()

    def _url_of(self, shard_id: int, place: str) -> str:
        """What this host was told of the shard, and else its place for the user of all shards."""
        return self._shard_urls.get(shard_id) or url_at(place, self._config.shard_login or self._meta_url)

    async def lose_shard(self, shard_id: int) -> None:
        """Hand a shard on while the host runs: all that was accepted is written before it is owned no more.

        What no consumer has got goes back. Leases go on: the next owner honours them.
        """
        await let_go(self._shards.by_id[shard_id], self._dispatcher)
        self._shards.remove(shard_id)

    async def _start(self) -> None:
        # First of all: it tells that the event loop turns.
        self._ticker = asyncio.create_task(self._tick(), name="ticker")
        await self._namespaces.calls.run(lambda _: self._parts.check_schema(self._config.meta_url, SchemaKind.META))
        proposed = self._parts.chance.random_bytes(SECRET_BYTES)
        self._secret = await self._namespaces.calls.run(lambda meta: meta.cluster_secret(proposed))
        await self._routing.start()
        await self._membership.start()
        await self._namespaces.start()
        await self._jobs.start()
        await self._quotas.start()
        if self._event_log is not None:
            await self._event_log.start()
        await self._sharing.start()
        await self._server.start()
        self._membership.advertise(self._advertised())

    async def _drain(self) -> None:
        await self._sharing.leave()
        self._dequeues.drain()
        await self._routing.drain()
        await self._server.drain()
        self._dispatcher.drain()
        await asyncio.gather(*[shard.drain() for shard in self._shards.by_id.values()])
        await self._jobs.drain()
        await self._quotas.drain()
        if self._event_log is not None:
            await self._event_log.drain()

    async def _stop(self) -> None:
        await self._server.stop()
        await self._routing.stop()
        await self._namespace_calls.stop()
        await self._slot_moves.stop()
        await self._slots.stop()
        await self._sharing.stop()
        await asyncio.gather(*[shard.stop() for shard in self._shards.by_id.values()])
        if self._event_log is not None:
            await self._event_log.stop()
        await self._censuses.stop()
        await self._jobs.stop()
        await self._quotas.stop()
        await self._namespaces.stop()
        await self._membership.stop()
        # Last of all: what stops may wait for a server that hangs, and the loop turns meanwhile.
        if self._ticker is not None:
            self._ticker.cancel()
            await asyncio.gather(self._ticker, return_exceptions=True)

    async def _tick(self) -> None:
        """What time alone brings, beside the shards' own."""
        swept_s = cleaned_s = self._loop.time()
        while True:
            await self._pulse.pause(limits.TICK_MS)
            if self.state is ServiceState.STOPPED:
                continue
            now_s = self._loop.time()
            self._turning.tick(now_s)
            works = [writer.tick for writer in self._shards.writers.values()]
            works += [self._dispatcher.tick, self._dequeues.tick, self._waiting.tick, self._ages.tick]
            if now_s - swept_s > PREFETCH_SWEEP_MS / 1000:
                swept_s = now_s
                works.append(self._dispatcher.sweep)
            if now_s - cleaned_s > limits.TOPIC_IDLE_MS / 4_000:
                cleaned_s = now_s
                works += [self._forget_quotas, self._dispatcher.forget_prefixes]
            for work in works:
                try:
                    work()
                except Exception:  # A defect of one must not stop the clock of all.
                    _log.error("host_defect", work=work.__qualname__, exc_info=True)

    def _forget_quotas(self) -> None:
        self._quotas.forget(self._namespaces.numbers)

    def _is_elsewhere(self, shard_id: int) -> bool:
        """Whether another host serves the shard, as far as this one knows."""
        owner = self.owners.get(shard_id)
        return owner is not None and owner.host_id != self.id and bool(owner.address)

    def _is_draining(self) -> bool:
        return self.state is ServiceState.DRAINING

    def _check_database(self, place: str) -> None:
        """Raises InvalidArgumentError for a place that this host cannot serve a shard at. It blocks."""
        try:
            self._parts.check_schema(url_at(place, self._config.shard_login or self._meta_url), SchemaKind.SHARD)
        except (MigrationError, UnavailableError) as error:
            raise InvalidArgumentError(f"no shard can be served at {place}: {error}") from error

    def _make_membership(self, started_at_ms: int) -> Membership:
        config, parts = self._config, self._parts
        meta = parts.meta(config.meta_url)
        # Where it listens is known once it does.
        me = HostRow(self.id, "", started_at_ms, 0, tier=config.tier)
        places = {shard_id: place_of(url) for shard_id, url in config.shards.items()}
        beats = partial(parts.meta, config.meta_url, limits.BEAT_STATEMENT_MS_MAX)
        backend = membership_backend(config.membership, config.cluster, meta, parts.monotonic_s, beats)
        return Membership(backend, meta, me, places, parts.monotonic_s, parts.chance.choose)

    def _advertised(self) -> str:
        """The address and the port by which clients and other hosts reach this one."""
        return self._config.advertised(self.port)

    def _make_shard(self, shard_id: int, place: str) -> OwnedShard:
        config, parts, url = self._config, self._parts, self._url_of(shard_id, place)
        access = ShardAccess(
            shard_id=shard_id,
            url=url,
            lock_name=_lock_name(config.cluster, shard_id, url),
            owner=self.id,
            allow_undurable=config.allow_undurable_servers,
        )
        packs = PackIndex(self._pack_budget)
        store = parts.store(access, partial(self._take_epoch, shard_id), self._membership.is_dead, packs)
        writer = ShardWriter(
            shard_id,
            store,
            self._server_of(url),
            self._dispatcher,
            self.metrics.transactions,
            self._namespaces.shard_opened,
        )
        reader, exporter = [parts.reader(shard_id, url, packs) for _ in range(2)]
        return OwnedShard(writer, store, reader, exporter, packs, self._dispatcher.on_events, place)

    def _make_event_log(self) -> EventLog | None:
        """None unless it has a directory."""
        config = self._config
        if not config.event_log_dir:
            return None
        options = EventLogOptions(
            config.host_name, Path(config.event_log_dir), config.event_log_bytes_max, config.event_log_days
        )
        source = EventLogSource(
            self._namespaces.name_of,
            self._namespaces.settings.events_per_mille,
            partial(self.metrics.items.counts_of, ItemEvent.RATE_LIMITED),
        )
        event_log = self._parts.event_log(options, source)
        self._namespaces.settings.has_event_log = True
        self.metrics.watch_event_log(event_log)
        return event_log

    def _record(self, events: Events) -> None:
        """Take down what a shard tells."""
        self.metrics.items.record(events)
        if self._event_log is not None:
            self._event_log.record(events)

    def _server_of(self, url: str) -> MysqlServer:
        """One for all shards of an address."""
        address = server_of(url)
        if address not in self._servers:
            scheduler = CommitScheduler(self._loop, self._config.transactions_per_server_max)
            self._servers[address] = MysqlServer(address, scheduler, self._turning)
        return self._servers[address]

    def _make_verbs(self, slices: Slices) -> tuple[Queue, Admin]:
        """The verbs of users and of operators on the shards of this host."""
        namespaces, shards, happened = self._namespaces, self._shards, self.metrics.items.happened
        placement = Placement(shards, self._dispatcher, self._slots)
        lane = BulkLane(self._loop)
        self.metrics.watch_loads(lane, self._jobs)
        enqueues = Enqueues(namespaces, self._quotas, placement, self._waiting, happened, self._namespace_calls.slots)
        queue = Queue(
            JobEnqueues(namespaces, self._jobs, BulkEnqueues(namespaces, lane, enqueues.enqueue).enqueue, happened),
            self._dequeues,
            Leases(namespaces, shards, self._inspection, self._waiting, happened),
            Topics(namespaces, shards, self._dispatcher, slices),
            ShardMaps(namespaces, self._namespace_calls, shards, self._advertised),
            lane,
        )
        admin = Admin(
            self._config.host_name,
            self._namespaces,
            self._namespace_calls,
            self._shards,
            self._inspection,
            JobCalls(self._namespaces, self._jobs),
            self._exports,
            ShardCalls(namespaces, shards, self._slots, self._waiting, self._sharing.address_of, self._check_database),
            self._is_draining,
        )
        return queue, admin

    def _make_routing(self, queue: Queue, admin: Admin) -> Routing:
        """The same verbs on all shards of the cluster."""
        chance, now_s = self._parts.chance, self._loop.time

        def secret() -> bytes | None:
            return self._secret

        peers = self._parts.peers(self.id, secret, chance.random_bytes, now_s)
        local = Stocks(self._dispatcher, self._shards, self._namespaces, now_s)
        return Routing(self.id, queue, admin, local, self.owners, peers, secret, chance, now_s)

    def _make_server(self) -> ThriftServer:
        """The front door."""
        config = self._config
        return self._parts.server(
            self._routing.queue,
            self._routing.admin,
            peers=self._routing.door,
            address=config.listen_address,
            port=config.port,
            namespaces=self._namespaces,
            metrics=self.metrics.transport,
            bounds=TransportLimits(
                connections_max=config.connections_max,
                connections_per_address_max=config.connections_per_address_max,
                idle_ms_max=config.idle_ms_max,
                # The other half is for the shards: those that are well give back what they claimed.
                drain_ms_max=config.drain_ms_max // 2,
            ),
        )

    def _take_epoch(self, shard_id: int, at_least: int) -> int:
        self._namespaces.require_durable()
        epoch = self._meta.take_shard_epoch(shard_id, self.id, self._parts.wall_ms(), at_least)
        # Only now, so that the owner of this epoch knows which namespaces were closed or deleted before it.
        self._namespaces.read(self._meta)
        return epoch


def _lock_name(cluster: str, shard_id: int, url: str) -> str:
    """Locks belong to the server, so that two clusters of one name on it need the database in theirs."""
    database = (make_url(url).database or "").encode()
    return f"{cluster}.shard.{shard_id}.{crc32(database):08x}"


def _chance() -> Chance:
    return Chance(random.randrange, os.urandom)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_s() -> float:
    """Unlike the event loop's time it goes on while the loop stands still."""
    return time.monotonic()
