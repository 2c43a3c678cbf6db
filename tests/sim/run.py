"""One run: load and faults, then calm, until all is consumed; then everything is held against the promises."""

from __future__ import annotations

import asyncio
import gc
import math
import random
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, MutableMapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import structlog

from foqs.background.service import ServiceState
from foqs.cluster.homes import cap_homes
from foqs.host.verbs import page_reads
from foqs.model import limits
from foqs.model.topic import ShardTopic
from foqs.testing.fake_store import FakeStore
from tests.histories.checker import check
from tests.sim.any_host import AnyHost
from tests.sim.bundles import counted_bundles
from tests.sim.caller import NAMESPACE
from tests.sim.chance import Delays, Profile, far_meta_s, make_profile
from tests.sim.changes import Changes
from tests.sim.checked import checked_dispatcher, checked_state
from tests.sim.clients import TOPICS, SimClient
from tests.sim.cluster import ClusterNemesis, ClusterWorld, cluster_problems, cluster_profile
from tests.sim.events import event_sizes
from tests.sim.groups import GROUPS_NAMESPACE, GroupLoad
from tests.sim.host import SimHost, simulated
from tests.sim.keeper import Keeper
from tests.sim.lane import checked_lane
from tests.sim.loop import VirtualLoop
from tests.sim.nemesis import Nemesis
from tests.sim.quotas import quota_problems, quota_times
from tests.sim.reach import Reach
from tests.sim.serials import SERIAL_NAMESPACE
from tests.sim.shared_caps import checked_ledger, rush
from tests.sim.slots import checked_placement, restless_mover
from tests.sim.tier_trials import TierTrials
from tests.sim.tuned import tuned
from tests.sim.uniques import UNIQUE_NAMESPACE, UniqueLoad
from tests.sim.world import World
from tests.support.dispatcher_invariants import dispatcher_problems, parts_left
from tests.support.invariants import state_problems

_POLICIES_S_MAX = 2.0
"""Within so long a change of a policy holds on every host."""
_RUSHING_COUNT = 3
_WORK_OFF_S_MAX = 60.0
_LIMITS_AT_REST = {"TOPICS_PER_SHARD_MAX": 200, "OPEN_LEASES_MAX": 200}
_LOOK_EVERY_S = 0.05
_LEASE_TOLERANCE_MS = 2
"""What is lost of a lease by whole milliseconds."""
_AFTER_REDRIVE = re.compile("due|deliver_after|attempt|in vain|TTL")
_COMPLAINTS_SHOWN_MAX = 10
_NOT_GIVEN_BACK = "pulls that were not given back"


@dataclass(slots=True)
class Outcome:
    seed: int
    load_s_max: float
    complaints: list[str]
    steps_count: int
    virtual_s: float
    counts: Counter[str] = field(default_factory=Counter)
    kinds: tuple[str, ...] = ()
    """The options of `python -m tests.sim` that make it this kind of run."""

    def tally(self) -> Counter[str]:
        """What sums of many runs are made of."""
        return self.counts + Counter({"steps": self.steps_count, "virtual seconds": round(self.virtual_s)})

    def __str__(self) -> str:
        shown = "\n".join([f"  {complaint}" for complaint in self.complaints[:_COMPLAINTS_SHOWN_MAX]])
        short = "" if math.isinf(self.load_s_max) else f" --load-s {self.load_s_max}"
        kinds = "".join(f" --{kind}" for kind in self.kinds)
        replay = f"python -m tests.sim --seed {self.seed}{short}{kinds} -v"
        return f"seed {self.seed}: {len(self.complaints)} complaints (replay: {replay})\n{shown}"


def profile_of(seed: int) -> Profile:
    """What a run of the seed will have."""
    return make_profile(random.Random(seed))


def run_seed(
    seed: int,
    *,
    load_s_max: float = math.inf,
    verbose: bool = False,
    is_cluster: bool = False,
    is_unique: bool = False,
    is_serial: bool = False,
    has_groups: bool = False,
    limits_in_flight: bool = False,
    has_bundles: bool = False,
    has_parks: bool = False,
    script: Callable[[Any], Awaitable[None]] | None = None,
) -> Outcome:
    """Repeatable by the seed. The cyclic garbage collector rests meanwhile: when it runs is not up to the seed.

    What happens is drawn, unless there is a `script`, which does it to the world. `is_unique`: items with ids that are
    taken as long as they live come as well, which makes the seed another run. `is_serial`: with serial topics beside
    the other load, which does so as well, and `limits_in_flight`: with limits of items in flight. `has_bundles`: most
    calls have items that differ by their payloads alone, and hosts have no event log. `has_groups`: with
    consumer groups, which some seeds have by themselves. `has_parks`: shards of the cluster are parked and unparked.
    """
    chance = random.Random(seed)
    profile = make_profile(chance)
    if is_cluster:
        profile = cluster_profile(profile, seed)
    profile = replace(profile, load_s=min(profile.load_s, load_s_max))
    delays = Delays(random.Random(chance.random()), profile)
    delays.far_s = far_meta_s(seed) if is_cluster else 0.0
    loop = VirtualLoop(delays.thread, delays.lateness)
    kind = ClusterWorld if is_cluster else World
    world = kind(seed, profile, loop, delays, verbose=verbose)
    world.uniques = UniqueLoad(world) if is_unique else None
    world.serials.is_there = is_serial
    world.loads.has_bundles = has_bundles
    if isinstance(world, ClusterWorld):
        world.parks.is_there = has_parks
    if limits_in_flight:
        world.in_flight.begin(TOPICS)
    if verbose:
        print(profile)
    every = chance.choice([1, 5, 25])
    state = checked_state(lambda: world, every=1 if verbose else every)
    checked: dict[str, Callable[..., Any]] = {
        "Dispatcher": checked_dispatcher(lambda: world),
        "SlotMover": restless_mover(lambda: world),
        "Placement": checked_placement(lambda: world),
        "BulkLane": checked_lane(lambda: world),
    }
    ledgers = patch.object(cap_homes, "CapLedger", checked_ledger(lambda: world))
    hosts = simulated(lambda: world, state, checked)
    with _without_collections(), ExitStack() as patches:
        for one in [
            tuned(profile.limits | quota_times(profile)), tuned(event_sizes(seed)), hosts, ledgers, _logs(world),
            world.in_flight.patches(), counted_bundles(world.counts),
            *(world.liar.limits() if isinstance(world, ClusterWorld) else []),
            # On a busy machine a page takes so long that its reader pauses, and a seed would be another run.
            patch.object(page_reads, "perf_counter", loop.time),
        ]:  # fmt: skip
            patches.enter_context(one)
        try:
            life = partial(_live, chance=chance, has_groups=has_groups) if script is None else script
            loop.run_until_complete(_watch(world, life(world)))
        except Exception as error:
            world.complain(f"the run ended with {error!r}")
            if verbose:
                raise
        finally:
            loop.end_tasks()
            loop.close()
    counts: Counter[str] = Counter()
    if not world.complaints:
        counts = _check_history(world) + world.counts
    for failure in loop.failures:
        if "exception" in failure and not world.complaints:
            world.complaints.append(f"nobody handled {failure['exception']!r}")
    chosen = {"cluster": is_cluster, "unique": is_unique, "serial": is_serial, "groups": has_groups}
    chosen["in-flight"] = limits_in_flight
    chosen["bundles"], chosen["parks"] = has_bundles, has_parks
    kinds = tuple(kind for kind, is_chosen in chosen.items() if is_chosen)
    return Outcome(seed, load_s_max, world.complaints, loop.steps_count, loop.time(), counts, kinds)


@contextmanager
def _without_collections() -> Iterator[None]:
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


async def _watch(world: World, living: Awaitable[None]) -> None:
    """Run until the end, or until something is wrong."""
    live = asyncio.ensure_future(living)
    broken = asyncio.create_task(world.broken.wait())
    look = asyncio.create_task(_look(world))
    done, _ = await asyncio.wait([live, broken, look], return_when=asyncio.FIRST_COMPLETED)
    if look in done:
        look.result()  # It never ends by itself.
    broken.cancel()
    look.cancel()
    if live in done:
        live.result()
    else:
        live.cancel()
        await asyncio.wait([live])


async def _live(world: World, *, chance: random.Random, has_groups: bool) -> None:
    until_s = world.profile.load_s
    nemesis: Nemesis | ClusterNemesis
    if isinstance(world, ClusterWorld):
        for _ in range(chance.choice([1, 2, 3])):
            world.start_host()
        world.complete()
        nemesis = ClusterNemesis(world, random.Random(chance.random()))
    else:
        world.start_host()
        nemesis = Nemesis(world, random.Random(chance.random()))
    keeper = Keeper(world, random.Random(world.seed ^ 0xBEEF))
    clients = [client.run(until_s) for client in world.clients]
    groups = GroupLoad(world)
    groups.is_there |= has_groups
    rushing = [SimClient(world, f"r{at}", random.Random(f"rush {world.seed} {at}")) for at in range(_RUSHING_COUNT)]
    await asyncio.gather(
        nemesis.run(until_s),
        keeper.run(until_s),
        world.cap_keeper.run(until_s),
        world.in_flight.run(until_s, TOPICS),
        rush(world, rushing, until_s),
        groups.run(until_s),
        *([] if world.uniques is None else [world.uniques.run(until_s)]),
        world.serials.run(until_s),
        *clients,
        *([world.liar.run(until_s)] if isinstance(world, ClusterWorld) and world.liar.is_there else []),
        *([world.rotations.run(until_s)] if isinstance(world, ClusterWorld) and world.rotations.is_there else []),
        *([world.parks.run(until_s)] if isinstance(world, ClusterWorld) and world.parks.is_there else []),
    )
    world.trace("sim", "load is over")
    await work_off(world, keeper, groups)
    groups.check()
    if world.uniques is not None:
        await world.uniques.check()
    world.serials.check()
    # Each of these trials takes longer than the load.
    if isinstance(world, ClusterWorld) and isinstance(nemesis, ClusterNemesis) and not world.serials.is_there:
        await _trials(world, nemesis)
    host = world.primary
    hosts = world.ready if isinstance(world, ClusterWorld) else [host] if host is not None else []
    assert hosts
    for host in hosts:
        await world.slots.settled(host)
        await _policies_settled(world, host)
    for problem in [*_problems(world), *[problem for host in hosts for problem in _rest_problems(world, host)]]:
        world.complain(problem)
    for host in hosts:
        await world.drain_host(host)
    events = [] if world.loads.has_bundles else world.events.problems()  # Without an event log.
    for problem in [*world.loads.problems(world), *events, *quota_problems(world)]:
        world.complain(problem)
    for shard_id, server in world.servers.items():
        if server.tables.claims and shard_id not in world.shards_undrained:
            left = {f"{claim_id:x}": claim.entries for claim_id, claim in server.tables.claims.items()}
            world.complain(f"shard {shard_id}: nothing is leased after the drain, and the journal says {left}")


async def _trials(world: ClusterWorld, nemesis: ClusterNemesis) -> None:
    """What is tried while all is calm."""
    with tuned(_LIMITS_AT_REST):
        await AnyHost(world).run(nemesis.is_even)
        await Changes(world).run()
        await TierTrials(world, nemesis.is_even).run()
        await Reach(world).run(nemesis.is_even)


async def work_off(world: World, keeper: Keeper, groups: GroupLoad) -> None:
    """Consume until nothing live is left."""
    deadline_s = world.loop.time() + _WORK_OFF_S_MAX
    while world.live_count() or not world.is_served():
        if world.loop.time() > deadline_s:
            left = [f"{row.id}={row.uid} {row.state.name}" for row in world.stored() if row.state.name != "DEAD"]
            world.complain(f"not consumed, or not served, after {_WORK_OFF_S_MAX} s of calm: {left[:5]}")
            return
        await keeper.recover()
        await world.cap_keeper.lift()
        stored = world.namespaces_stored()
        found = [one.name for one in world.meta.tables.namespaces.values() if one.number in stored]
        names = [name for name in found if name not in (GROUPS_NAMESPACE, SERIAL_NAMESPACE, UNIQUE_NAMESPACE)]
        for name in names or [NAMESPACE]:
            await asyncio.gather(*[client.work_off(TOPICS, name) for client in world.clients])
        await groups.work_off()
        if world.uniques is not None:
            await world.uniques.work_off()
        await world.serials.work_off()
        await asyncio.sleep(0.02)


async def _look(world: World) -> None:
    left: set[ShardTopic] = set()
    while True:
        await asyncio.sleep(_LOOK_EVERY_S)
        left_before, left = left, set(_parts_left(world))
        for part in left & left_before:
            world.complain(f"the dispatcher still knows {part.name} of shard {part.shard_id}, which its host lost")
        for problem in _problems(world):
            world.complain(problem)
        world.slots.look()
        world.tiers.look()
        world.cap_check.look()
        if isinstance(world, ClusterWorld):
            world.parks.look()
        world.meta_locks.look()


def _parts_left(world: World) -> Iterator[ShardTopic]:
    for host in world.hosts:
        if not host.ended:
            queues = host.host._dispatcher.queues
            for queue in queues.by_topic.values():
                # A shard that is handed on ends its sessions first, which takes as long as its server takes.
                yield from [part for part in parts_left(queue, host.held) if part.shard_id not in queues.leaving]


def _problems(world: World) -> Iterator[str]:
    yield from cluster_problems(world)
    for host in world.hosts:
        if host.ended:
            continue
        yield from dispatcher_problems(host.host._dispatcher, host.held)
        for writer in host.host._shards.writers.values():
            if writer.held is not None:
                yield from world.clocks.problems_of_host(writer)
            if writer.state is ServiceState.RUNNING and not len(writer._tasks):
                yield f"the writer of shard {writer.shard_id} ended"


async def _policies_settled(world: World, host: SimHost) -> None:
    """Return when the host has read what is set, or should have: one that did not set it itself reads every second."""
    until_s = world.loop.time() + _POLICIES_S_MAX
    while not _follows_policies(world, host) and world.loop.time() < until_s:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


def _follows_policies(world: World, host: SimHost) -> bool:
    settings, tables = host.host._namespaces.settings, world.meta.tables
    return (settings.policies, settings.prefix_policies) == (tables.policies, tables.prefix_policies)


def _rest_problems(world: World, host: SimHost) -> Iterator[str]:
    """When all is quiet the shards' states must be exact."""
    if not _follows_policies(world, host):
        yield f"{host.name} does not follow the policies of the meta database"
    for writer in host.host._shards.writers.values():
        if writer.shard is None:
            if isinstance(world, ClusterWorld):
                continue  # Another host has it.
            yield f"shard {writer.shard_id} is not owned after all is well again: {writer.detail}"
        elif writer.shard.in_flight is None:
            packs = cast(FakeStore, writer._store).packs
            yield from state_problems(writer.shard, packs, world.servers[writer.shard_id].tables)


def _dedup_ids(world: World) -> int:
    """The last ids that are known in any case: where memory is short they are fewer than the namespace has set."""
    changed = world.profile.limits
    if changed["DEDUP_FILTERS_OF_SHARD_BYTES_MAX"] < limits.DEDUP_FILTERS_OF_SHARD_BYTES_MAX:
        return min(world.dedup.ids, int(changed["DEDUP_IDS_KEPT"]))
    return world.dedup.ids


def _check_history(world: World) -> Counter[str]:
    # With few leases, no room for what was prefetched, or a cap, an empty answer is right although something is ready.
    bounds = ("OPEN_LEASES_MAX", "PREFETCH_BYTES_MAX")
    bounded = any(world.profile.limits[name] < getattr(limits, name) for name in bounds) or world.cap_keeper.is_there
    bounded = bounded or world.in_flight.is_there
    report = check(
        world.calls,
        # The history has no calls of items that hold their ids or of serial topics, of which dead letters are left.
        [one for one in world.stored() if not one.uid.startswith((f"{UNIQUE_NAMESPACE}:", f"{SERIAL_NAMESPACE}:"))],
        drained=True,
        tolerance_ms=world.profile.tolerance_ms,
        lease_tolerance_ms=_LEASE_TOLERANCE_MS,
        steps=world.clocks.steps,
        disturbed=[(0, limits.NEVER_MS)] if world.profile.disturbed or bounded else [],
        ended_ms=world.now_ms(),
        claims_left=world.claims_left,
        hand_overs_lost=world.counts[_NOT_GIVEN_BACK] > 0,
        dedup=world.dedup._replace(accepted=world.slots.accepted, sliced=world.sliced, ids=_dedup_ids(world)),
    )
    for violation in report.violations:
        # A redriven item has a new deliver_after and TTL and counts its attempts anew: the history says nothing of it.
        is_redriven = violation.item in world.uids_redriven and _AFTER_REDRIVE.search(violation.what)
        if not is_redriven:
            world.complaints.append(str(violation))
    return report.counts


@contextmanager
def _logs(world: World) -> Iterator[None]:
    """The host's log lines go into the trace."""

    def into_trace(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
        if event["event"] in ("drain_bound_reached", "sick_shard_given_up"):
            world.shards_undrained.add(event["shard"])
        if event["event"] == "pull_not_given_back":
            world.counts[_NOT_GIVEN_BACK] += 1
        if world.verbose:
            world.trace("log", " ".join([f"{name}={value}" for name, value in event.items()]))
        raise structlog.DropEvent

    before = structlog.get_config()
    structlog.configure(processors=[into_trace], cache_logger_on_first_use=False)
    try:
        yield
    finally:
        structlog.configure(**before)
