"""The composition root: a host from its configuration."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zlib import crc32

import structlog
from sqlalchemy import make_url

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
from foqs.host.inspection import Inspection
from foqs.host.job_calls import JobCalls, JobEnqueues
from foqs.host.jobs import Jobs
from foqs.host.leases import Leases
from foqs.host.membership import Membership
from foqs.host.metrics import Metrics
from foqs.host.namespace_calls import NamespaceCalls
from foqs.host.namespaces import Namespaces
from foqs.host.page_budget import PageBudget
from foqs.host.pulse import Pulse
from foqs.host.queue import Queue
from foqs.host.quotas import Quotas
from foqs.host.shard_maps import ShardMaps
from foqs.host.shards import OwnedShard, Shards
from foqs.host.slices import Slices
from foqs.host.slots import Slots
from foqs.host.topics import Topics
from foqs.host.waiting import Waiting
from foqs.model import limits
from foqs.model.item import ItemEvent
from foqs.model.service import Service, ServiceState
from foqs.model.topic import ShardTopic
from foqs.server.mysql_server import CommitScheduler, MysqlServer, TurningTime
from foqs.shard.state.events import Events
from foqs.shard.writer.shard_writer import ShardWriter
from foqs.storage.meta import MetaStore
from foqs.storage.migrations import SchemaKind, check_current
from foqs.storage.packs.budget import PackBudget
from foqs.storage.packs.index import PackIndex
from foqs.storage.session import server_of
from foqs.storage.shard_reader import ShardReader
from foqs.storage.shard_store import ShardAccess, ShardStore
from foqs.transport.bounds import TransportLimits
from foqs.transport.server import ThriftServer

PREFETCH_SWEEP_MS = 500
"""The pause between two checks for prefetched items that nobody took."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What ties a host to the world outside of its process: databases, sockets, clocks and metrics."""

    meta: Callable[[str], MetaStore]
    store: Callable[[ShardAccess, Callable[[int], int], Callable[[str, int], bool], PackIndex], ShardStore]
    reader: Callable[[int, str, PackIndex], ShardReader]
    check_schema: Callable[[str, SchemaKind], None]
    server: Callable[..., ThriftServer]
    metrics: Callable[[Callable[[int], str | None]], Metrics]
    wall_ms: Callable[[], int]
    monotonic_s: Callable[[], float]
    event_log: Callable[[EventLogOptions, EventLogSource], EventLog] = EventLog


def real_parts() -> Parts:
    """MySQL, TCP and the clocks of this machine."""
    return Parts(
        meta=MetaStore,
        store=ShardStore,
        reader=ShardReader,
        check_schema=check_current,
        server=ThriftServer,
        metrics=Metrics,
        wall_ms=_wall_ms,
        monotonic_s=_monotonic_s,
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
        address = f"{config.listen_address}:{config.port}"
        started_at_ms = parts.wall_ms()
        self._membership = Membership(
            parts.meta(config.meta_url), config.host_name, address, started_at_ms, parts.monotonic_s
        )
        self._jobs = Jobs(self._meta, config.host_name, started_at_ms, self._loop.time)
        self._namespaces = Namespaces(
            self._meta, config.host_name, parts.wall_ms, allow_undurable=config.allow_undurable_servers
        )
        self.metrics = parts.metrics(self._namespaces.name_of)
        self._shards = Shards()
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
        for shard_id, url in config.shards.items():
            self._shards.add(self._make_shard(shard_id, url))
        self._waiting = Waiting(self._loop)
        self._slots = self._namespaces.slots = Slots(self._shards)
        self._censuses = self._namespaces.shards = Censuses(self._shards, self._namespaces, self._slots, self._waiting)
        self._namespace_calls = NamespaceCalls(self._namespaces, self._censuses, self._slots, parts.wall_ms)
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
        self._server = self._make_server(slices)
        self._ticker: asyncio.Task[None] | None = None
        self._pulse = Pulse()
        self._ages = Ages(self._shards, self._loop.time)
        self.metrics.watch(self._shards, self._dispatcher, self._ages, self._pulse, self._is_draining)
        self.metrics.watch_quotas(self._quotas)
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
        self._meta.use_url(meta_url)
        self._membership.use_url(meta_url)
        for shard_id, url in shard_urls.items():
            self._shards.by_id[shard_id].use_url(url)

    async def gain_shard(self, shard_id: int, url: str) -> None:
        """Try to own one more shard from now on, while the host runs. Another host may own it for a while yet."""
        assert shard_id not in self._shards.by_id, f"the host has shard {shard_id}"
        shard = self._make_shard(shard_id, url)
        self._shards.add(shard)
        await shard.start()

    async def lose_shard(self, shard_id: int) -> None:
        """Hand a shard on while the host runs: all that was accepted is written before it is owned no more.

        What no consumer has got goes back. Leases go on: the next owner honours them.
        """
        shard, dispatcher = self._shards.by_id[shard_id], self._dispatcher
        first, *others = _topic_slices(shard)
        dispatcher.shard_leaves(shard_id, first)
        for topics in others:
            await asyncio.sleep(0)
            dispatcher.adopt(topics)
        await shard.drain()
        first, *others = _topic_slices(shard)
        await shard.stop()
        dispatcher.shard_lost(shard_id, first)
        for topics in others:
            await asyncio.sleep(0)
            dispatcher.disown(topics)
        dispatcher.shard_left(shard_id)
        self._shards.remove(shard_id)

    async def _start(self) -> None:
        # First of all: it tells that the event loop turns.
        self._ticker = asyncio.create_task(self._tick(), name="ticker")
        await self._namespaces.calls.run(lambda _: self._parts.check_schema(self._config.meta_url, SchemaKind.META))
        await self._membership.start()
        await self._namespaces.start()
        await self._jobs.start()
        await self._quotas.start()
        if self._event_log is not None:
            await self._event_log.start()
        await asyncio.gather(*[shard.start() for shard in self._shards.by_id.values()])
        await self._server.start()

    async def _drain(self) -> None:
        self._dequeues.drain()
        await self._server.drain()
        self._dispatcher.drain()
        await asyncio.gather(*[shard.drain() for shard in self._shards.by_id.values()])
        await self._jobs.drain()
        await self._quotas.drain()
        if self._event_log is not None:
            await self._event_log.drain()

    async def _stop(self) -> None:
        await self._server.stop()
        await self._namespace_calls.stop()
        await self._slots.stop()
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

    def _is_draining(self) -> bool:
        return self.state is ServiceState.DRAINING

    def _make_shard(self, shard_id: int, url: str) -> OwnedShard:
        config, parts = self._config, self._parts
        access = ShardAccess(
            shard_id=shard_id,
            url=url,
            lock_name=_lock_name(config.cluster, shard_id, url),
            owner=config.host_name,
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
        return OwnedShard(writer, store, reader, exporter, packs, self._dispatcher.on_events)

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

    def _make_server(self, slices: Slices) -> ThriftServer:
        """The front door, with the verbs of users and of operators behind it."""
        config = self._config
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
            ShardMaps(namespaces, self._namespace_calls, shards, lambda: (config.listen_address, self.port)),
            lane,
        )
        admin = Admin(
            config.host_name,
            self._namespaces,
            self._namespace_calls,
            self._shards,
            self._inspection,
            JobCalls(self._namespaces, self._jobs),
            self._exports,
            self._is_draining,
        )
        return self._parts.server(
            queue,
            admin,
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
        epoch = self._meta.take_shard_epoch(shard_id, self._config.host_name, self._parts.wall_ms(), at_least)
        # Only now, so that the owner of this epoch knows which namespaces were closed or deleted before it.
        self._namespaces.read(self._meta)
        return epoch


def _topic_slices(shard: OwnedShard) -> list[list[ShardTopic]]:
    """The topics of the shard for one turn of the event loop after the other; at least one slice."""
    state = shard.writer.shard
    topics = list(state.index.topics.values()) if state is not None else []
    size = limits.TOPICS_PER_TICK_MAX
    return [topics[start : start + size] for start in range(0, max(1, len(topics)), size)]


def _lock_name(cluster: str, shard_id: int, url: str) -> str:
    """Locks belong to the server, so that two clusters of one name on it need the database in theirs."""
    database = (make_url(url).database or "").encode()
    return f"{cluster}.shard.{shard_id}.{crc32(database):08x}"


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000


def _monotonic_s() -> float:
    """Unlike the event loop's time it goes on while the loop stands still."""
    return time.monotonic()
