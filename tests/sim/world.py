"""Everything that one seed makes: servers, hosts, clients, and what goes wrong."""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from contextvars import copy_context
from typing import Any, cast

from foqs.client.client_errors import NotSentError
from foqs.model import ids, limits
from foqs.model.calls import Delivery, ItemState
from foqs.model.errors import FoqsError, NotFoundError, UnavailableError
from foqs.model.limits import NEVER_MS
from foqs.model.namespace import DedupScope, Namespace, NamespaceSettings
from foqs.shard.state.engine import ShardState
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.testing.fake_server import FakeServer, Fate, Faults, Script
from foqs.testing.fake_store import FakeStore
from foqs.testing.fake_tables import FakeServerError, Tables
from tests.histories.dedup_checks import DedupWindow
from tests.histories.history import Call, uid_of
from tests.histories.lives import Stored
from tests.sim.caller import NAMESPACE, Held, SimCaller
from tests.sim.caps import CapKeeper
from tests.sim.chance import Delays, Layout, Profile
from tests.sim.clients import OTHERS, TOPICS, SimClient
from tests.sim.clocks import SimClocks
from tests.sim.events import EventBook
from tests.sim.failure_reasons import ReasonBook
from tests.sim.host import FakeDoor, SimHost, shard_urls
from tests.sim.in_flight import InFlight
from tests.sim.links import Links
from tests.sim.loads import Loads
from tests.sim.loop import ProcessState, VirtualLoop
from tests.sim.meta_locks import MetaLocks
from tests.sim.ownership import MetaTables, Tenures
from tests.sim.raising import Raising
from tests.sim.script_words import shown
from tests.sim.serials import SerialLoad
from tests.sim.shared_caps import SharedCapCheck
from tests.sim.slots import SlotWatch
from tests.sim.tiers import TierWatch
from tests.sim.uniques import UniqueLoad
from tests.support.invariants import newest_claims

_RESTART_S = 0.1
_BASE_MS = 1_700_000_000_000
_REFUSALS = (Fate.FAILED, Fate.DEADLOCK, Fate.READ_ONLY)
_FATES = (Fate.FAILED, Fate.LOST_BEFORE, Fate.LOST_AFTER, Fate.LATE)


class BrokenPromiseError(Exception):
    """The run has found something; there is no use in going on."""


class SimFaults(Faults):
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance

    def fate(self) -> Fate:
        if self._world.delays.calm:
            return Fate.DONE
        drawn = self._chance.random()
        for fate, share in zip(_FATES, self._world.profile.fates, strict=True):
            if drawn < share:
                return _REFUSALS[int(drawn / share * len(_REFUSALS))] if fate is Fate.FAILED else fate
            drawn -= share
        return Fate.DONE

    def later(self, work: Callable[[], None]) -> None:
        world = self._world
        world.loop.call_later(self._chance.random() * 1.5, work, context=world.context)


class World:
    def __init__(self, seed: int, profile: Profile, loop: VirtualLoop, delays: Delays, *, verbose: bool) -> None:
        self.seed = seed
        self.profile = profile
        self.loop = loop
        self.delays = delays
        self.verbose = verbose
        self.chance = random.Random(seed ^ 0x5EED)
        self.context = copy_context()
        """Of nobody's process: the network, the servers."""
        self.calls: list[Call] = []
        self.complaints: list[str] = []
        self.broken = asyncio.Event()
        self.hosts: list[SimHost] = []
        self.primary: SimHost | None = None
        self.ids_ended: set[str] = set()
        """Ids that somebody tried to end without a receipt."""
        self.ids_known: dict[str, list[str]] = {}
        """By namespace."""
        self.counts: Counter[str] = Counter()
        """Of what happened beside the calls of clients."""
        self.raising = Raising(seed, lambda: self.delays.calm or not profile.host_fault_rate, self.counts)
        self.links = Links(random.Random(f"links {seed}"), loop.time, self.counts)
        self.aliases: dict[str, str] = {}
        """The names that namespaces had before they were recovered under others."""
        self.numbers_deleted: set[int] = set()
        """Of namespaces, since the meta database was restored last."""
        self.restored = False
        """The meta database has gone back to an older state: a name may lead to another namespace than before."""
        self.shards_undrained: set[int] = set()
        """Their last drain reached its bound, and may have left work undone."""
        self.sliced: set[str] = set()
        """The uids of items of bulk calls."""
        self.dedup_ids: dict[str, str] = {}
        """By uid, of the enqueues that had one."""
        self.dedup_recent: dict[str, list[str]] = {}
        """The last ones of each namespace."""
        self.uids_redriven: set[str] = set()
        """Of items that somebody tried to redrive, which gives them a new deliver_after."""
        self.uniques: UniqueLoad | None = None
        self.loads = Loads()
        self.reasons = ReasonBook(self)
        self.cap_check = SharedCapCheck(self)
        self.cap_keeper = CapKeeper(self, NAMESPACE, TOPICS)
        self.in_flight = InFlight(self, NAMESPACE)
        self.events = EventBook(self)
        self.serials = SerialLoad(self, is_there=False)
        self.claims_left: dict[str, set[int]] = {}
        """By uid: deliveries that a new owner takes for delivered and that the last one gave to nobody."""
        self._states: dict[int, ShardState] = {}
        """By shard: of its last owner."""
        self._make_databases()
        self.clients = [self._make_client(number) for number in range(profile.client_count)]
        self._host_count = 0
        self._epochs_seen: dict[int, int] = {}
        self._keys_seen: dict[int, set[int]] = {shard_id: set() for shard_id in self.servers}
        self.calm_since_s = math.inf
        """When the delays of a part of the run became ordinary ones."""
        self.tenure_book = Tenures()
        self.led: dict[tuple[str, int], FakeServer] = {}
        """The servers that URLs of shards lead to, by name of a host and shard, where they differ from all others'."""

    def _make_client(self, number: int) -> SimClient:
        return SimClient(self, f"c{number}", random.Random(self.chance.random()))

    def _make_server(self, shard_id: int) -> FakeServer:
        skew_ms = self.profile.skew_ms_max
        self.clocks.skews_ms[shard_id] = self.chance.randint(-skew_ms, skew_ms)
        faults = SimFaults(self, random.Random(self.chance.random()))
        server = FakeServer(shard_id, self.clocks.of(shard_id), faults, strict=True)
        server.on_commit = self._watching(server)
        server.on_nonsense = self._server_refused
        return server

    def _make_dedup_window(self) -> DedupWindow:
        # Drawn apart, so that the rest of a seed stays what it was.
        apart = random.Random(f"dedup {self.seed}")
        return DedupWindow(
            [NAMESPACE], apart.choice([1_500, NEVER_MS]), apart.choice([40, NEVER_MS]), apart.random() < 0.3
        )

    def _make_meta(self, settings: NamespaceSettings) -> MetaTables:
        names = enumerate([NAMESPACE, OTHERS[0]], 1)
        namespaces = [Namespace(number, name, self.tiers.drawn(settings), 0) for number, name in names]
        for namespace in namespaces:
            self.slots.created(namespace)
            self.tiers.has_namespace(namespace.number, namespace.settings.tier)
        return MetaTables(namespaces, self.slots.in_meta, random.Random(self.seed), self.now_ms)

    def _settings(self) -> NamespaceSettings:
        return NamespaceSettings(
            lease_ms_default=500, attempts_max=self.chance.choice([2, 5, 16]), dedup_ms=self.dedup.ms,
            dedup_ids=min(self.dedup.ids, limits.DEDUP_IDS_MAX), dedup_scope=DedupScope(self.dedup.by_topic),
            key_spread=self.slots.key_spread, dedup_when_away=self.slots.when_away,
            enqueues_per_minute_max=self.profile.quota_items or limits.ENQUEUES_PER_MINUTE_DEFAULT,
        )  # fmt: skip

    # ---- time and words ----

    def exact_now_ms(self) -> float:
        return _BASE_MS + self.loop.time() * 1000

    def now_ms(self) -> int:
        return int(self.exact_now_ms())

    def trace(self, who: str, what: str) -> None:
        if self.verbose:
            print(f"{self.loop.time():9.4f} {who:8} {what}")

    def opens_to_peer(self, caller_id: str, callee: SimHost) -> None:
        """A host proves itself to another one."""

    def heard_of_peer(self, sender: str, receiver: str, verb: str, told: Any) -> None:
        """One host tells another one something."""

    def complain(self, what: str) -> None:
        self.complaints.append(f"at {self.loop.time():.4f} s: {what}")
        self.trace("!!!", what)
        self.broken.set()

    @property
    def tables(self) -> dict[int, Tables]:
        return {shard_id: server.tables for shard_id, server in self.servers.items()}

    def machine_of(self, shard_id: int) -> list[FakeServer]:
        """What fails together with this shard, itself included."""
        together = self.profile.layout is Layout.TOGETHER
        return list(self.servers.values()) if together else [self.servers[shard_id]]

    def server_of(self, host_name: str, shard_id: int) -> FakeServer:
        """The server that the host's URL of the shard leads to."""
        return self.led.get((host_name, shard_id)) or self.servers[shard_id]

    # ---- hosts ----

    def start_host(self, name: str = "") -> SimHost:
        """A new one, which is the primary from now on; with a name that a host had, it is that host restarted."""
        if not name:
            self._host_count += 1
            name = f"host-{self._host_count}"
        host = SimHost(self, name)
        self.hosts.append(host)
        self.primary = host
        self.trace(name, "starts")
        return host

    def kill_host(self, host: SimHost, *, sockets_closed: bool = True) -> None:
        """As by kill -9; with `sockets_closed` False as if its machine had lost its network."""
        self.trace(host.name, "is killed")
        host.ended = True
        host.ready = False
        host.process.kill()
        for thread in host.process.threads:
            thread.die(hurry=self.chance.random() < 0.5)
        if sockets_closed:
            self.meta.sessions.end_of(host.host.id)
            for store in self.stores_of(host):
                store.close()
        for answered in list(host.connections):
            self.hang_up(host, answered)
        self.hosts.remove(host)

    async def drain_host(self, host: SimHost) -> None:
        """As by SIGTERM."""
        self.trace(host.name, "drains")
        await host.shut_down(drain=True)
        self.trace(host.name, "has ended")
        if host in self.hosts:
            self.hosts.remove(host)

    def host_failed(self, host: SimHost, error: FoqsError) -> None:
        """It could not start: whoever watches over it starts it once more."""
        self.trace(host.name, f"does not start: {error!r}")
        self.hosts.remove(host)
        if host is self.primary:
            self.loop.call_later(_RESTART_S, self.start_host, host.name, context=self.context)

    def packs_of(self, shard_id: int, epoch: int) -> PackIndex:
        """Of the store that has the shard under this epoch."""
        stores = [store for host in self.hosts for store in self.stores_of(host)]
        return next(at.packs for at in stores if at._server.shard_id == shard_id and at.epoch == epoch)

    def stores_of(self, host: SimHost) -> list[FakeStore]:
        return [cast(FakeStore, writer._store) for writer in host.host._shards.writers.values()]

    def is_surely_alive(self, process_id: str) -> bool:
        """Its heartbeats can have been late for no reason that others do not have, too."""
        host = next((host for host in self.hosts if host.host.id == process_id), None)
        if host is None or not host.ready or host.ended:
            return False
        since_s = max(host.process.resumed_s, self.meta.cut_off.get(host.name, -math.inf))
        if self.profile.slow_share:
            since_s = max(since_s, self.calm_since_s)
        return host.process.state is ProcessState.RUNNING and self.loop.time() - since_s > limits.HOST_DEAD_MS / 500

    def pick_host(self, chance: random.Random) -> SimHost | None:
        if len(self.hosts) > 1 and chance.random() < 0.2:
            return chance.choice(self.hosts)
        return self.primary

    # ---- the network ----

    async def call(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]], patience_s: float) -> Any:
        """One call of a client. Raises FoqsError."""
        return await self.send(host, work, patience_s)

    async def send(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]], patience_s: float) -> Any:
        """One call over a connection of its own. Raises FoqsError."""
        await asyncio.sleep(self.delays.network())
        if not host.ready or host.ended:
            raise NotSentError(f"{host.name} does not listen")
        answered: asyncio.Future[Any] = self.loop.create_future()
        task: asyncio.Task[None] = self.loop.create_task(
            self._serve(host, work, answered), context=host.process.context
        )  # fmt: skip
        host.connections[answered] = task
        host.door.calls[task] = None
        task.add_done_callback(host.door.calls.pop, context=host.process.context)
        try:
            async with asyncio.timeout(patience_s):
                return await answered
        except TimeoutError:
            raise UnavailableError("the caller has waited long enough") from None
        finally:
            host.connections.pop(answered, None)
            if not task.done():
                self.loop.call_soon(task.cancel, context=host.process.context)

    def hang_up(self, host: SimHost, answered: asyncio.Future[Any]) -> None:
        host.connections.pop(answered, None)
        if not answered.done():
            answered.set_exception(UnavailableError(f"the connection to {host.name} is gone"))

    async def _serve(
        self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]], answered: asyncio.Future[Any]
    ) -> None:
        """In the host's process."""
        failure: FoqsError | None = None
        result = None
        try:
            result = await host.door.serve(work)
        except FoqsError as error:
            failure = error
        except Exception as error:
            self.complain(f"a call ended with {error!r}")
            raise
        lost = not self.delays.calm and self.chance.random() < self.profile.answer_loss_share

        def deliver() -> None:
            if answered.done():
                return
            if lost:
                self.hang_up(host, answered)
            elif failure is not None:
                answered.set_exception(failure)
            else:
                answered.set_result(result)

        self.loop.call_later(self.delays.network(), deliver, context=self.context)

    # ---- what all-knowing eyes see ----

    def taken_over(self, shard: ShardState) -> None:
        """Note what the last owner had claimed for calls and given to none, which only that one knew.

        It had no time left to undo it: otherwise the dispatcher's invariants complain before its end.
        """
        last, self._states[shard.shard_id] = self._states.get(shard.shard_id), shard
        if last is None or last.epoch == shard.epoch:
            return
        tables = self.servers[shard.shard_id].tables
        unseen = last.unseen_keys()
        for (key, number), claim in newest_claims(tables).items():
            row = tables.items.get(key)
            if key in unseen and not claim.is_ahead and row is not None and row.deliveries + 1 == number:
                self.claims_left.setdefault(uid_of(row.content.payload), set()).add(number)
                self.counts["claims for calls that nobody got, left to a new owner"] += 1

    def has_row(self, item_id: str) -> bool:
        shard_id, key, _ = ids.parse(item_id)
        return key in self.servers[shard_id].tables.items

    def label_of(self, namespace: str) -> str:
        """What its items are known by: the name that they were enqueued under."""
        return self.aliases.get(namespace, namespace)

    def some_id(self, chance: random.Random, namespace: str) -> str | None:
        """Of an item that an enqueue was answered with, preferably one that is there."""
        known = self.ids_known.get(namespace)
        if not known:
            return None
        drawn = [chance.choice(known) for _ in range(5)]
        return next((item_id for item_id in drawn if self.has_row(item_id)), drawn[0])

    def delivered(self, client: SimClient, item: Delivery) -> None:
        if not item.payload:
            self.complain(f"{item.receipt} was delivered to {client.name} without its payload")
        for problem in self.clocks.problems_of_delivery(ids.parse(item.receipt)[0], item):
            self.complain(problem)

    def refused(self, client: SimCaller, host: SimHost | None, held: Held, invoked_at_ms: int) -> None:
        """STALE_LEASE for a lease that runs and that nobody can have ended is a lie."""
        sure_ms = held.until_ms - self.profile.tolerance_ms - 5_000 * (host is not self.primary)
        alone = len(self.hosts) == 1 and not self.restored
        if alone and not held.doubtful and self.now_ms() < sure_ms and held.receipt.split(":")[0] not in self.ids_ended:
            self.complain(
                f"STALE_LEASE for {held.receipt} ({held.uid}) of {client.name}, whose lease runs until {held.until_ms}"
            )

    def refused_again(self, receipt: str, *, was_gone: bool) -> None:
        """The repeat of an ack got STALE_LEASE: the item is there, and that delivery has ended without an ack."""
        shard_id, key, delivery = ids.parse(receipt)
        row = self.servers[shard_id].tables.items.get(key)
        if not self.restored and (was_gone or (row is not None and row.deliveries < delivery)):
            state = "gone before" if was_gone else f"in its delivery {delivery} still"
            self.complain(f"STALE_LEASE for the repeated ack of {receipt}, which was {state}")

    def redriven(self, item_id: str, since_ms: int) -> None:
        """It has a TTL again, unless it has gone on since."""
        shard_id, key, _ = ids.parse(item_id)
        row = self.servers[shard_id].tables.items.get(key)
        since_ms = self.clocks.latest_ms(shard_id, since_ms) - self.profile.tolerance_ms
        if row is not None and row.lane > 0 and not row.failed_attempts and since_ms <= row.due_at >= row.expires_at:
            self.complain(f"{item_id} was redriven and is of {row.due_at}, but its TTL ends at {row.expires_at}")

    def not_found(self, host: SimHost | None, item_id: str, error: NotFoundError, was_there: bool) -> None:
        honest = "not a dead" in error.message or "named before" in error.message
        if was_there and self.has_row(item_id) and not honest and len(self.hosts) == 1 and not self.restored:
            self.complain(f"{item_id} is there, and its caller is told {error.message!r}")

    def stored(self) -> list[Stored]:
        found = []
        for shard_id, server in self.servers.items():
            for row in server.tables.items.values():
                state = ItemState.DEAD if row.lane < 0 else ItemState.DELAYED if row.lane == 0 else ItemState.READY
                found.append(Stored(ids.item_id(shard_id, row.key), uid_of(row.content.payload), state))
        return found

    def deleted(self, number: int, name: str) -> None:
        self.numbers_deleted.add(number)
        if number in self.namespaces_stored():
            self.complain(f"P2: namespace {name} ({number}) was deleted and holds items")

    def namespaces_stored(self) -> dict[int, str]:
        """Number and name of those that shards have items of."""
        found = {}
        for server in self.servers.values():
            tables = server.tables
            for number in {tables.topics[row.topic][0] for row in tables.items.values() if row.topic in tables.topics}:
                found[number] = tables.namespaces[number].decode()
        return found

    def is_served(self) -> bool:
        """One host is there, has all shards and knows what is on them."""
        host = self.primary
        if host is None or not host.ready:
            return False
        writers = host.host._shards.writers.values()
        return all(writer.shard is not None and writer.counted.is_set() for writer in writers)

    def live_count(self) -> int:
        return sum(
            len(sort_keys)
            for server in self.servers.values()
            for lane, sort_keys in server.tables.lanes.items()
            if lane >= 0
        )  # fmt: skip

    def _make_databases(self) -> None:
        self.servers: dict[int, FakeServer] = {}
        self.clocks = SimClocks(self)
        self.servers |= {shard_id: self._make_server(shard_id) for shard_id in range(self.profile.shard_count)}
        self.dedup = self._make_dedup_window()
        self.slots = SlotWatch(self)
        self.tiers = TierWatch(self)
        self.meta = self._make_meta(self._settings())
        self.meta_locks = MetaLocks(self)
        self.tiers.enter(self.meta.tables.cluster.shards, shard_urls(self))

    def _watching(self, server: FakeServer) -> Callable[[Script], None]:
        """P8 and the checkpoints, at every commit."""

        def on_commit(script: Script) -> None:
            tables = server.tables
            if self.verbose:
                self.trace(f"shard-{server.shard_id}", f"commits {shown(script)}")
            seen = self._epochs_seen.get(server.shard_id, 0)
            if script.epoch < seen:
                self.complain(f"P8: epoch {script.epoch} wrote to shard {server.shard_id} of epoch {seen}")
            self._epochs_seen[server.shard_id] = max(seen, script.epoch)
            for problem in self.clocks.problems_of_commit(server.shard_id, script):
                self.complain(problem)
            for row in script.rows_new:
                number = tables.topics[row.topic][0] if row.topic in tables.topics else 0
                if number in self.numbers_deleted:
                    self.complain(f"P2: {row.key:x} comes into namespace {number}, which is deleted")
            self._watch_keys(server.shard_id, script)
            self.slots.committed(server.shard_id, script)
            self.tiers.committed(server.shard_id, script)
            self.serials.committed(server.shard_id, script)
            self.events.committed(server, script)
            if self.uniques is not None:
                self.uniques.committed(server, script)
            timers = tables.lanes.get(0)
            if timers and timers[0][1] < tables.writer.delay_checkpoint:
                what = f"row {timers[0][2]:x} is due {tables.writer.delay_checkpoint - timers[0][1]} ms before"
                self.complain(f"{what} the delay checkpoint of shard {server.shard_id}")

        return on_commit

    def _watch_keys(self, shard_id: int, script: Script) -> None:
        """P9, of claims as well, which have their keys from the same sequence."""
        keys = [row.key for row in script.rows_new] + [claim[0] for claim in script.claims]
        seen = self._keys_seen[shard_id]
        again = seen.intersection(keys)
        if again:
            self.complain(f"P9: keys {[f'{key:x}' for key in again]} of shard {shard_id} are used again")
        seen.update(keys)

    def _server_refused(self, error: FakeServerError) -> None:
        self.complain(str(error))
