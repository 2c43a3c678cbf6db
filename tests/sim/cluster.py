"""Several hosts that share shards: they come, go, crash and hang while clients work, and shards move between them.

`python -m tests.sim --cluster` runs it. Beside the promises of a queue it holds the hosts against those of a cluster:
no two of them serve a shard under one epoch, every shard has an owner soon after all is well, loads are even, what
moves by plan fails no call of a client that tries again elsewhere, and without the meta database nothing moves.
"""

from __future__ import annotations

import asyncio
import math
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from typing import Any, cast

from foqs.client.client_errors import NotSentError
from foqs.model import limits
from foqs.model.calls import PositionErrors
from foqs.model.errors import ErrorCode, FoqsError
from foqs.testing.fake_server import FakeServer
from foqs.testing.fake_store import FakeStore
from tests.sim.caller import Held, SimCaller
from tests.sim.chance import Delays, Profile
from tests.sim.host import FakeDoor, SimHost
from tests.sim.liar import Liar
from tests.sim.loop import VirtualLoop
from tests.sim.parks import Parks
from tests.sim.rotations import Rotations
from tests.sim.tier_changes import TierChanges, settle
from tests.sim.world import World

HOSTS_MAX = 4
_OWNED_S_MAX = 4.0
"""All shards have owners so soon after a host ended in whatever way: it is dead after 1.25 s."""
_EVEN_S_MAX = 8.0
"""Loads are even so long after the last host came or went; one shard moves at a time."""
_PATIENCE_S = 4.0
"""A client tries so long to settle what it holds, going from host to host."""
_PAUSE_S = 0.05
_STEADY_S = 6.0
"""Caps that stay as they are show within this time whether they are kept."""
_ELSEWHERE = (ErrorCode.UNAVAILABLE, ErrorCode.OVERLOADED)
_CLUSTER_LIMITS = {"SETTLED_MS": 300, "LEAVE_MS_MAX": 6_000, "NEGLECTED_MS": 800}


def cluster_profile(profile: Profile, seed: int) -> Profile:
    """The profile of a seed for a cluster: one in three has no faults but hosts that come and go as they should."""
    chance = random.Random(f"cluster {seed}")
    is_orderly = chance.random() < 0.35
    has_steady_caps = random.Random(f"steady {seed}").random() < 0.2
    if is_orderly:
        profile = replace(
            profile, slow_share=0.0, fates=(0.0, 0.0, 0.0, 0.0), server_fault_rate=0.0, meta_fault_rate=0.0,
            undurable_rate=0.0, jump_ms_max=0, skew_ms_max=0, answer_loss_share=0.0, cancel_share=0.0,
        )  # fmt: skip
    return replace(
        profile,
        shard_count=chance.choice([3, 4, 6]),
        client_count=3,
        host_fault_rate=0.0 if is_orderly else 1.0,
        drain_rate=1.5,
        contends=False,
        is_cluster=True,
        has_steady_caps=has_steady_caps,
        quota_items=0 if has_steady_caps else profile.quota_items,
        load_s=_STEADY_S if has_steady_caps else profile.load_s,
        limits={**profile.limits, **_CLUSTER_LIMITS},
    )


class ClusterWorld(World):
    """All hosts live side by side, and a client may ask any of them."""

    def __init__(self, seed: int, profile: Profile, loop: VirtualLoop, delays: Delays, *, verbose: bool) -> None:
        super().__init__(seed, profile, loop, delays, verbose=verbose)
        self.liar = Liar(self)
        self.rotations = Rotations(self)
        self.parks = Parks(self)

    def opens_to_peer(self, caller_id: str, callee: SimHost) -> None:
        self.rotations.check(caller_id, callee)

    def heard_of_peer(self, sender: str, receiver: str, verb: str, told: Any) -> None:
        self.liar.heard(sender, receiver, verb, told)

    @property
    def is_orderly(self) -> bool:
        """Nothing goes wrong: hosts come and go as they should."""
        return not self.profile.host_fault_rate

    @property
    def ready(self) -> list[SimHost]:
        return [host for host in self.hosts if host.ready and not host.ended]

    def pick_host(self, chance: random.Random) -> SimHost | None:
        return chance.choice(self.ready) if self.ready else None

    def spare(self) -> list[SimHost]:
        """Hosts that may end by plan: others can have their shards."""
        counts = Counter([self.tiers.of_host(host.name) for host in self.ready])
        return [host for host in self.ready if counts[self.tiers.of_host(host.name)] > 1]

    def complete(self) -> None:
        """Whoever watches over the cluster sees to it that each tier has a host."""
        for _ in range(self.tiers.missing_count()):
            self.start_host()

    def host_failed(self, host: SimHost, error: FoqsError) -> None:
        self.trace(host.name, f"does not start: {error!r}")
        self.hosts.remove(host)
        self.loop.call_later(0.1, self.start_host, host.name, context=self.context)

    def is_served(self) -> bool:
        counted = {
            writer.shard_id for host in self.ready for writer, _ in host.host._shards.owned()
            if writer.counted.is_set() and writer.health.healthy
        }  # fmt: skip
        return counted == set(self.servers)

    def owners(self) -> dict[int, list[str]]:
        """Hosts that serve each shard, as far as they know."""
        found: dict[int, list[str]] = {shard_id: [] for shard_id in self.servers}
        for host in self.ready:
            for writer, _ in host.host._shards.owned():
                found[writer.shard_id].append(host.name)
        return found

    def tenures(self) -> dict[int, list[tuple[str, int | None]]]:
        """Hosts that serve each shard, with the session in which they do; it is another one after a KILL."""
        found: dict[int, list[tuple[str, int | None]]] = {shard_id: [] for shard_id in self.servers}
        for host in self.ready:
            for writer, _ in host.host._shards.owned():
                store = cast(FakeStore, writer._store)
                number = store._session.number if store._session is not None else None
                found[writer.shard_id].append((host.name, number))
        return found

    def refused(self, client: SimCaller, host: SimHost | None, held: Held, invoked_at_ms: int) -> None:
        """STALE_LEASE for a lease that runs is a lie: an owner knows it, and others must not judge."""
        sure_ms = held.until_ms - self.profile.tolerance_ms
        is_ended = held.receipt.split(":")[0] in self.ids_ended
        if self.is_orderly and not self.restored and not held.doubtful and self.now_ms() < sure_ms and not is_ended:
            self.complain(f"STALE_LEASE for {held.receipt} of {client.name}, whose lease runs until {held.until_ms}")

    async def call(self, host: SimHost, work: Callable[[FakeDoor], Awaitable[Any]], patience_s: float) -> Any:
        """One call of a client that goes on to other hosts as long as certainly nothing was done."""
        until_s = self.loop.time() + min(patience_s, _PATIENCE_S)
        judged: PositionErrors | None = None
        """The errors by position, once a host has answered; those that are elsewhere may still change."""
        asked = [host]
        while True:
            try:
                answer = await super().call(asked[-1], work, patience_s)
            except FoqsError as error:
                is_elsewhere = isinstance(error, NotSentError) or error.code in _ELSEWHERE
                if not (is_elsewhere and error.nothing_done) or self.loop.time() > until_s:
                    if judged is None:
                        raise
                    return {at: error if _is_elsewhere(old) else old for at, old in judged.items()}
            else:
                if not isinstance(answer, dict):
                    return answer
                # A settlement: what one host has judged counts, whatever another one says of it later.
                judged = answer if judged is None else _merged(judged, answer)
                if not any(map(_is_elsewhere, judged.values())) or self.loop.time() > until_s:
                    self._check_settled(judged)
                    return judged
            others = [other for other in self.ready if other not in asked]
            if not others:
                await asyncio.sleep(_PAUSE_S)
                asked, others = [], self.ready
            if not others:
                raise NotSentError("no host listens")
            asked.append(others[0])

    def _check_settled(self, errors: PositionErrors) -> None:
        if self.is_orderly:
            for error in filter(_is_elsewhere, errors.values()):
                self.complain(f"nothing goes wrong, and a call failed on all hosts for {_PATIENCE_S} s: {error!r}")


def _is_elsewhere(error: FoqsError) -> bool:
    return error.code is ErrorCode.UNAVAILABLE and error.nothing_done


def _merged(judged: PositionErrors, answer: PositionErrors) -> PositionErrors:
    """What is known after another answer. A position that is elsewhere for one host may be done by the next."""
    found = {at: error if not _is_elsewhere(error) else answer.get(at) for at, error in judged.items()}
    return {at: error for at, error in found.items() if error is not None}


class ClusterNemesis:
    """Lets hosts come and go, pins shards, and has servers and the meta database fail."""

    def __init__(self, world: ClusterWorld, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._pinned: set[int] = set()
        self.counts: Counter[str] = world.counts

    async def run(self, until_s: float) -> None:
        if self._world.tiers.has_changes:
            await asyncio.gather(TierChanges(self._world).run(until_s), self._disturb(until_s))
        else:
            await self._disturb(until_s)
        await self._heal()

    async def _disturb(self, until_s: float) -> None:
        world = self._world
        while world.loop.time() < until_s:
            await asyncio.sleep(self._chance.expovariate(2.0))
            works: list[Callable[[], Awaitable[None]]] = [self._join, self._leave, self._restart, self._pin]
            if not world.is_orderly:
                works += [self._kill, self._kill_and_restart, self._hang, self._meta_away, self._cut_off]
                works += [self._cut_link, self._slow_link]
                works += [self._server_fault] * bool(world.profile.server_fault_rate)
            else:
                works += [self._meta_away_in_calm]
            work = self._chance.choice(works)
            world.trace("nemesis", work.__name__.strip("_"))
            await work()
            if self._chance.random() < 0.3:
                await asyncio.sleep(1.0)

    async def _heal(self) -> None:
        world = self._world
        world.delays.calm = True
        world.clocks.go_on()
        for shard_id, server in world.servers.items():
            server.restart()
            server.thaw()
            world.clocks.durable(shard_id, durable=True)
            server.problems = []
        world.meta.away_count = 0
        world.links.heal()
        world.meta.cut_off = dict.fromkeys(world.meta.cut_off, world.loop.time())
        if not world.hosts:
            world.start_host()
        world.complete()
        settle(world)
        await self._until(self._is_owned, _OWNED_S_MAX + 2, "every shard has one owner")
        await self._until(self.is_even, _EVEN_S_MAX, "loads are even")

    async def _join(self) -> None:
        if len(self._world.hosts) < HOSTS_MAX:
            self._world.start_host()
            self._world.counts["hosts that came"] += 1

    async def _leave(self) -> None:
        """A host ends as by SIGTERM, and hands on its shards."""
        world = self._world
        if spare := world.spare():
            await world.drain_host(self._chance.choice(spare))
            world.counts["hosts that left"] += 1

    async def _restart(self) -> None:
        world = self._world
        if spare := world.spare():
            host = self._chance.choice(spare)
            await world.drain_host(host)
            world.start_host(host.name)
            world.counts["hosts restarted in order"] += 1

    async def _pin(self) -> None:
        world, chance = self._world, self._chance
        shard_id = chance.choice(list(world.servers))
        name = chance.choice(["", *[host.name for host in world.ready]])
        rows = world.meta.tables.cluster.shards
        if shard_id in rows:
            rows[shard_id] = rows[shard_id]._replace(pinned_to=name)
            world.counts["shards pinned"] += 1

    async def _kill(self) -> None:
        world = self._world
        if world.ready:
            world.kill_host(self._chance.choice(world.ready), sockets_closed=self._chance.random() < 0.7)
            if not world.ready:
                world.start_host()
            world.complete()

    async def _kill_and_restart(self) -> None:
        world = self._world
        if world.ready:
            host = self._chance.choice(world.ready)
            world.kill_host(host, sockets_closed=self._chance.random() < 0.7)
            await asyncio.sleep(self._chance.choice([0.01, 0.3]))
            world.start_host(host.name)

    async def _hang(self) -> None:
        world, chance = self._world, self._chance
        if not world.ready:
            return
        host = chance.choice(world.ready)
        host.process.stop()
        await asyncio.sleep(chance.choice([0.1, 2.0]))
        host.process.resume()

    async def _meta_away(self) -> None:
        world = self._world
        world.meta.away_count += 1
        await asyncio.sleep(self._chance.choice([0.1, 1.0, 2.0]))
        world.meta.away_count = max(0, world.meta.away_count - 1)

    async def _meta_away_in_calm(self) -> None:
        """Without the meta database nobody dies and nothing moves, but what is on its way already."""
        world = self._world
        if not await self._is_true_within(self.is_even, _EVEN_S_MAX):
            return
        before, changes_count = world.tenures(), world.tiers.shard_changes_count
        world.meta.away_count += 1
        await asyncio.sleep(limits.HOST_DEAD_MS / 1000 * self._chance.choice([1, 2, 12]) + 1)
        if before != world.tenures():
            world.complain(f"the meta database was away, and shards went from {before} to {world.tenures()}")
        world.meta.away_count -= 1
        # Whoever comes back first must not take the others for dead.
        await asyncio.sleep(2 * limits.HOST_DEAD_MS / 1000 + 1)
        if before != world.tenures() and changes_count == world.tiers.shard_changes_count and not world.parks.is_there:
            world.complain(f"the meta database is back, and shards went from {before} to {world.tenures()}")
        world.counts["outages of the meta database in which nothing moved"] += 1

    async def _cut_off(self) -> None:
        world = self._world
        if not world.ready:
            return
        host = self._chance.choice(world.ready)
        world.meta.cut_off[host.name] = math.inf
        await asyncio.sleep(self._chance.choice([0.3, 2.0]))
        world.meta.cut_off[host.name] = world.loop.time()

    async def _cut_link(self) -> None:
        """Between two hosts, in one direction or both."""
        world, chance = self._world, self._chance
        if len(world.ready) > 1:
            one, other = [host.host.id for host in chance.sample(world.ready, 2)]
            for sender, receiver in chance.choice([[(one, other)], [(one, other), (other, one)]]):
                world.links.cut(sender, receiver, chance.choice([0.05, 0.5, 2.5, 5.0]))

    async def _slow_link(self) -> None:
        world, chance = self._world, self._chance
        if len(world.ready) > 1:
            one, other = [host.host.id for host in chance.sample(world.ready, 2)]
            world.links.slow(one, other, chance.choice([0.03, 0.3]), chance.choice([1.0, 4.0]))

    async def _server_fault(self) -> None:
        world, chance = self._world, self._chance
        shard_id = chance.choice(list(world.servers))
        begin, end = chance.choice([(FakeServer.crash, FakeServer.restart), (FakeServer.freeze, FakeServer.thaw)])
        for server in world.machine_of(shard_id):
            begin(server)
        await asyncio.sleep(chance.choice([0.05, 0.3]))
        for server in world.machine_of(shard_id):
            end(server)

    def _is_owned(self) -> bool:
        return all(len(names) == 1 for names in self._world.owners().values())

    def is_even(self) -> bool:
        """Loads of what is not pinned to a host that is there differ by one at most."""
        world = self._world
        names = {host.name for host in world.ready}
        rows = world.meta.tables.cluster.shards
        if not self._is_owned() or len(world.ready) < len(world.hosts):
            return False
        owners = {shard_id: owners[0] for shard_id, owners in world.owners().items()}
        loads = Counter(owners.values())
        for shard_id, owner in owners.items():
            tier, pinned_to = world.tiers.of_shard(shard_id), rows[shard_id].pinned_to
            of_tier = {name for name in names if world.tiers.of_host(name) == tier}
            if owner not in of_tier or (pinned_to in of_tier and owner != pinned_to):
                return False
            if pinned_to not in of_tier and loads[owner] - min([loads[name] for name in of_tier]) > 1:
                return False
        return True

    async def _until(self, condition: Callable[[], bool], within_s: float, what: str) -> None:
        if not await self._is_true_within(condition, within_s):
            world = self._world
            hosts = [(host.name, host.ready, host.ended) for host in world.hosts]
            world.complain(f"not within {within_s} s of calm: {what}; {world.owners()}, hosts {hosts}")

    async def _is_true_within(self, condition: Callable[[], bool], within_s: float) -> bool:
        until_s = self._world.loop.time() + within_s
        while not condition():
            if self._world.loop.time() > until_s:
                return False
            await asyncio.sleep(0.05)
        return True


def cluster_problems(world: World) -> Iterator[str]:
    """No two hosts serve a shard under one epoch."""
    served: dict[tuple[int, int], str] = {}
    for host in world.hosts:
        for shard in host.held:
            other = served.setdefault((shard.shard_id, shard.epoch), host.name)
            if other != host.name:
                yield f"{other} and {host.name} serve shard {shard.shard_id} under epoch {shard.epoch}"
