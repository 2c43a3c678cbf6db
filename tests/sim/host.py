"""A simulated host: foqs.bootstrap.Host as it is, on fake servers, with its verbs in place of a port."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from unittest.mock import patch

from foqs import bootstrap, parts, shard_factory
from foqs.background.service import Service
from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.decision import Decision, shards_in_use
from foqs.cluster.ownership.sharing import Sharing
from foqs.cluster.routing.routing import Chance
from foqs.config import HostConfig
from foqs.contract.verbs import Call
from foqs.host.event_log.log_service import EventLog, EventLogOptions, EventLogSource
from foqs.host.metrics.gauges import Sources
from foqs.model import limits
from foqs.model.calls import CallContext
from foqs.model.errors import FoqsError, OverloadedError, UnavailableError
from foqs.model.item import ItemEvent, Phase
from foqs.model.principal import EVERYBODY
from foqs.model.slots import SlotTable
from foqs.shard.port import Transaction, TransactionResult
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Events
from foqs.shard.writer import ownership
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.testing.fake_reader import FakeReader
from foqs.testing.fake_slot_source import FakeSlotSource
from foqs.testing.fake_store import fake_identity
from tests.sim.chance import Layout
from tests.sim.lane import tuned_lane
from tests.sim.loop import Process
from tests.sim.ownership import SteppingStore, sim_meta
from tests.sim.peers import SimPeers
from tests.sim.replays import note_replays
from tests.support.asked import Asked

if TYPE_CHECKING:
    from tests.sim.world import World

CONTEXT = CallContext("sim", principal=EVERYBODY)


class FakeDoor(Service):
    """In place of the Thrift server: runs calls as tasks of the host, and drains as that does."""

    def __init__(self, call: Call, *, is_living_peer: Callable[[str, str], bool], **_: Any) -> None:
        super().__init__("door")
        self.call = call
        self.is_living_peer = is_living_peer
        self.queue: Any = Asked(call, CONTEXT)
        self.admin: Any = Asked(call, CONTEXT)
        self.port, self.peer_port = 0, None
        self.draining = False
        self.calls: dict[asyncio.Task[Any], None] = {}
        """In the order in which they came: those of a host that is stopped end in it, in each run of a seed."""

    async def serve(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> Any:
        if self.draining:
            raise OverloadedError("this host is draining", retry_after_ms=1_000)
        return await work(self)

    async def _drain(self) -> None:
        self.draining = True
        if self.calls:
            await asyncio.wait(list(self.calls), timeout=limits.DRAIN_MS_MAX / 1000)

    async def _stop(self) -> None:
        self.draining = True
        calls = list(self.calls)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


class NoMetrics:
    def __init__(self, world: World, namespace_name: Callable[[int], str | None]) -> None:
        self._world = world
        self.transport = None
        self.transactions = self.items = self

    def watch(self, rows: object, source: object) -> None:
        if isinstance(source, Sources):
            note_replays(self._world, source.quotas)

    def counts_of(self, event: ItemEvent) -> dict[int | None, int]:
        return {}

    def count_event(self, namespace: int, event: ItemEvent, count: int) -> None:
        return None

    def record(self, events: Events) -> None:
        return None

    def waited(self, shard_id: int, wait_s: float) -> None:
        return None

    def ended(self, shard_id: int, elapsed_s: float, outcome: str) -> None:
        return None

    def committed(self, shard_id: int, transaction: Transaction, result: TransactionResult) -> None:
        return None

    def lost(self, shard_id: int, count: int) -> None:
        self._world.counts["transactions lost"] += count


class SimReader(FakeReader):
    """In some seeds the copies of the slot table cannot be read in the beginning."""

    def __init__(self, world: World, shard_id: int, packs: PackIndex) -> None:
        super().__init__(world.servers[shard_id], packs)
        self._world = world

    def keep_slots(self, known: SlotTable) -> SlotTable:
        if self._world.loop.time() < self._world.slots.readable_from_s:
            raise UnavailableError("the slot copy cannot be read yet")
        return super().keep_slots(known)


class Contending(Sharing):
    """Wants all shards and hands none on: the locks decide, as they have to where hosts do not plan the same."""

    def _decide(self, view: ClusterView) -> Decision:
        return Decision(wanted=set(shards_in_use(view)))

    async def leave(self) -> None:
        return None


def shard_urls(world: World) -> dict[int, str]:
    """By which hosts know the world's shards, and whose servers they share."""
    apart = world.profile.layout is Layout.APART
    addresses = {shard_id: f"sim-{shard_id}" if apart else "sim" for shard_id in world.servers}
    return {shard_id: f"mysql+pymysql://{at}/shard_{shard_id}" for shard_id, at in addresses.items()}


class SimHost:
    """One process of the world with a host in it."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.process = Process(world.loop, name)
        self.ready = False
        self.ended = False
        """It was told to end, or was killed."""
        self.connections: dict[asyncio.Future[Any], asyncio.Task[Any]] = {}
        self._world = world
        self.host: bootstrap.Host = self.process.context.run(self._make)
        self.main = world.loop.create_task(self._run(), context=self.process.context)

    @property
    def door(self) -> FakeDoor:
        return cast(FakeDoor, self.host._server)

    def _make(self) -> bootstrap.Host:
        # Not validated: the URLs are those of no server.
        config = HostConfig.model_construct(
            meta_url="", host_name=self.name, listen_address="sim", port=0, cluster="sim",
            event_log_dir="" if self._world.loads.has_bundles else "memory",
            shards=shard_urls(self._world), tier=self._world.tiers.of_host(self.name), allow_open=True,
        )  # fmt: skip
        return bootstrap.Host(config)

    async def _run(self) -> None:
        try:
            await self.host.start()
        except FoqsError as error:
            self.ended = True
            self._world.host_failed(self, error)
            return
        self.ready = True

    @property
    def held(self) -> list[ShardState]:
        """The shards that it owns, also those that it drains."""
        return [shard for writer in self.host._shards.writers.values() if (shard := writer.held) is not None]

    def _check_drained(self) -> None:
        """What was only prefetched went back, unless something was in the way."""
        profile = self._world.profile
        if sum(profile.fates) or profile.slow_share or profile.server_fault_rate:
            return
        for shard in self.held:
            for key, item in shard.index.leases.items():
                if item.phase in (Phase.CLAIMING, Phase.PREFETCHED):
                    self._world.complain(f"{key:x} of shard {shard.shard_id} is {item.phase.name} after the drain")

    def shut_down(self, *, drain: bool) -> asyncio.Task[None]:
        async def end() -> None:
            await asyncio.wait([self.main])
            if drain:
                await self.host.drain()
                self._check_drained()
            await self.host.stop()
            for future in list(self.connections):
                self._world.hang_up(self, future)

        self.ended = True
        return self._world.loop.create_task(end(), context=self.process.context)


def _event_log_of(world_of: Callable[[], World], options: EventLogOptions, source: EventLogSource) -> EventLog:
    return world_of().events.make_log(options, source)


@contextmanager
def simulated(
    world_of: Callable[[], World], shard_state: type[ShardState], checked: Mapping[str, Callable[..., Any]]
) -> Iterator[None]:
    """Every Host that is made meanwhile gets the world's servers, and the checked state and parts, by their names."""

    chance = random.Random(0)
    replaced: dict[str, Any] = {
        "MetaStore": lambda url, statement_ms_max, process_id: sim_meta(world_of(), process_id),
        "ShardStore": lambda *arguments: SteppingStore(world_of(), *arguments),
        "ShardReader": lambda shard_id, url, packs, served_on: SimReader(world_of(), shard_id, packs),
        "identity_at": lambda shard_id, url: fake_identity(world_of().servers[shard_id]),
        "SlotSource": lambda shard_id, url, served_on: FakeSlotSource(world_of().servers[shard_id]),
        "EventLog": partial(_event_log_of, world_of),
        "ThriftServer": FakeDoor,
        "ThriftPeers": lambda *arguments: SimPeers(world_of(), *arguments),
        "_chance": lambda: Chance(chance.randrange, chance.randbytes),
        "Metrics": lambda *arguments: NoMetrics(world_of(), *arguments),
        **checked,
        "check_current": lambda url, kind: None,
        "_wall_ms": lambda: world_of().now_ms(),
        "monotonic": world_of().loop.time,
    }
    if world_of().profile.contends:
        replaced["Sharing"] = Contending
    # So small that slices wait for each other.
    slices = tuned_lane()
    with ExitStack() as stack:
        for name, replacement in replaced.items():
            homes = [module for module in (parts, shard_factory, bootstrap) if hasattr(module, name)]
            assert homes, f"no host is made of {name}"
            for module in homes:
                stack.enter_context(patch.object(module, name, replacement))
        stack.enter_context(patch.object(ownership, "ShardState", shard_state))
        stack.enter_context(slices)
        yield
