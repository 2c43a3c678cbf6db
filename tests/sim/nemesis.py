"""What goes wrong with servers, hosts, clocks and the meta database, and how it is put right again."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from foqs.model import limits
from foqs.testing.fake_meta_tables import MetaTables
from foqs.testing.fake_server import FakeServer

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

_BACKUP_S = 0.15


_OWNED_AGAIN_S_MAX = 4.0
"""A host is dead after 1.2 s there (tests.sim.chance)."""


_SERVER_FAULTS: dict[str, tuple[Callable[[FakeServer], None], Callable[[FakeServer], None] | None]] = {
    "crash": (FakeServer.crash, FakeServer.restart),
    "freeze": (FakeServer.freeze, FakeServer.thaw),
    "kill sessions": (FakeServer.kill_sessions, None),
}
"""How it begins, and how it ends where it lasts."""


class Nemesis:
    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._apart = random.Random(world.seed ^ 0xD1CE)
        self._cuts = random.Random(world.seed ^ 0xC075)
        self._short = random.Random(f"short reads {world.seed}")
        self._past: list[MetaTables] = []

    async def run(self, until_s: float) -> None:
        world, profile = self._world, self._world.profile
        pauses = [
            self._server_fault, self._host_fault, self._drain, self._meta_fault, self._clock_jump, self._undurable,
        ]  # fmt: skip
        rates = [
            profile.server_fault_rate, profile.host_fault_rate, profile.drain_rate, profile.meta_fault_rate,
            1.5 if profile.jump_ms_max else 0.0, profile.undurable_rate,
        ]  # fmt: skip
        await asyncio.gather(
            self._restore_metas(until_s),
            *([self._cut_reads(until_s)] if profile.has_short_reads else []),
            *[self._strike(fault, rate, until_s) for fault, rate in zip(pauses, rates, strict=True) if rate],
        )
        await self._heal()
        world.trace("nemesis", "rests")

    async def _strike(self, fault, rate: float, until_s: float) -> None:  # type: ignore[no-untyped-def]
        while True:
            await asyncio.sleep(self._chance.expovariate(rate))
            if self._world.loop.time() > until_s:
                return
            await fault()

    async def _server_fault(self) -> None:
        world, chance = self._world, self._chance
        shard_id = chance.choice(list(world.servers))
        failing = world.machine_of(shard_id)
        kind = chance.choice(list(_SERVER_FAULTS))
        world.trace(f"shard-{shard_id}", kind)
        begin, end = _SERVER_FAULTS[kind]
        for server in failing:
            begin(server)
        if end is not None:
            await asyncio.sleep(chance.choice([0.05, 0.3, 1.5]))
            for server in failing:
                end(server)
        world.trace(f"shard-{shard_id}", "is well")

    async def _cut_reads(self, until_s: float) -> None:
        """Now and then a server returns a few rows of each read and not the rest, and nothing tells that."""
        world, chance = self._world, self._short
        while world.loop.time() < until_s:
            await asyncio.sleep(chance.choice([0.05, 0.2, 0.6]))
            shard_id, server = chance.choice(list(world.servers.items()))
            share = chance.choice([1.0, 0.3])
            server.reads.is_cut = lambda share=share: chance.random() < share  # type: ignore[misc]
            server.reads.rows_max = chance.choice([0, 1, 2, 5] if share == 1 else [1, 2, 5])
            world.trace(f"shard-{shard_id}", f"returns {server.reads.rows_max} rows of {share:.0%} of its reads")
            await asyncio.sleep(chance.choice([0.02, 0.1, 0.4]) / share)
            server.reads.rows_max = None
            world.counts["short reads"] += server.reads.cut_count
            server.reads.cut_count = 0

    async def _undurable(self) -> None:
        """Somebody makes a server one that can lose what it has committed: its owner is to notice."""
        world, chance = self._world, self._chance
        shard_id, server = chance.choice(list(world.servers.items()))
        world.trace(f"shard-{shard_id}", "is not durable")
        server.problems = ["somebody made it so"]
        world.clocks.durable(shard_id, durable=False)
        await asyncio.sleep(limits.DURABILITY_CHECK_MS / 1000 + chance.choice([0.1, 3.0]))
        world.clocks.durable(shard_id, durable=True)
        server.problems = []
        world.trace(f"shard-{shard_id}", "is durable")

    async def _host_fault(self) -> None:
        world, chance = self._world, self._chance
        host = world.primary
        if host is None or not host.ready:
            return
        kinds = [
            "kill",
            "kill and another",
            "drain",
            "pause",
            "take over",
            "take over",
            "contest",
            "contest",
            "contest",
        ]
        kind = chance.choice(kinds)
        world.trace(host.name, kind)
        if world.profile.jump_ms_max and chance.random() < 0.5:
            # Perhaps when there is no owner.
            world.loop.call_later(chance.random() * 0.3, self._step, context=world.context)
        if kind == "kill":
            world.kill_host(host, sockets_closed=chance.random() < 0.7)
            await asyncio.sleep(chance.choice([0.01, 0.3]))
            world.start_host(host.name)
        elif kind == "kill and another":
            world.kill_host(host, sockets_closed=chance.random() < 0.7)
            world.start_host()
        elif kind == "drain":
            await world.drain_host(host)
            world.start_host(chance.choice(["", host.name]))
        elif kind == "contest":
            await self._contest(host)
        elif kind == "take over" and self._cuts.random() < 0.6:
            await self._outcast(host)
        else:
            for thread in host.process.threads:
                if chance.random() < 0.5:
                    thread.hurry()
            host.process.stop()
            if kind == "pause":
                await asyncio.sleep(chance.choice([0.05, 0.4]))
                host.process.resume()
            else:
                await self._take_over()

    async def _drain(self) -> None:
        """A host ends as it should, and another one starts."""
        host = self._world.primary
        if host is not None and host.ready:
            await self._world.drain_host(host)
            self._world.start_host()

    async def _take_over(self) -> None:
        """Another host takes over from one that is stopped, and later runs on as if nothing had been."""
        world, chance = self._world, self._chance
        host = world.primary
        assert host is not None
        world.start_host()
        await asyncio.sleep(chance.choice([0.3, 2.0, 3.0]))
        world.trace(host.name, "resumes")
        host.process.resume()
        await asyncio.sleep(chance.choice([0.05, 0.5, 2.0]))
        if chance.random() < 0.5:
            world.kill_host(host)
        else:
            await world.drain_host(host)

    async def _outcast(self, host: SimHost) -> None:
        """Another host takes over from one that serves, and that alone cannot reach the meta database."""
        world, chance = self._world, self._cuts
        standby = world.start_host()
        world.primary = host
        await asyncio.sleep(0.2)
        world.trace("meta", f"is away for {host.name}")
        world.meta.cut_off[host.name] = math.inf
        await asyncio.sleep(limits.HOST_DEAD_MS / 1000 + chance.choice([0.3, 1.0]))
        world.meta.cut_off[host.name] = world.loop.time()
        takes_over = standby in world.hosts and standby.ready
        world.primary, leaving = (standby, host) if takes_over else (host, standby)
        if leaving in world.hosts:
            if leaving.ready:
                await world.drain_host(leaving)
            else:
                world.kill_host(leaving)

    async def _contest(self, dead: SimHost) -> None:
        """Two hosts want the shards of one that died without its sessions; then one of the two goes as well."""
        world, chance = self._world, self._chance
        world.delays.calm, world.calm_since_s = True, world.loop.time()
        world.kill_host(dead, sockets_closed=False)
        contenders = [world.start_host() for _ in range(2)]
        await self._until_owned(contenders)
        if chance.random() < 0.8:
            await self._meta_outage(chance.choice([1.5, 2.5]))
            await asyncio.sleep(chance.choice([0.1, 1.0]))
        world.delays.calm, world.calm_since_s = False, math.inf
        leaving = chance.choice(contenders)
        if not all(host in world.hosts and host.ready for host in contenders):
            return
        world.primary = next(host for host in contenders if host is not leaving)
        if chance.random() < 0.5:
            world.kill_host(leaving, sockets_closed=chance.random() < 0.5)
        else:
            await world.drain_host(leaving)

    async def _until_owned(self, contenders: list[SimHost]) -> None:
        """A time bound of its own where nothing else is in the way."""
        world, profile = self._world, self._world.profile
        alone = not (
            profile.server_fault_rate or profile.meta_fault_rate or profile.undurable_rate or profile.has_short_reads
        )
        until_s = world.loop.time() + _OWNED_AGAIN_S_MAX
        while world.loop.time() < until_s:
            owners = {
                writer.shard_id for host in contenders for writer, _ in host.host._shards.owned() if host in world.hosts
            }
            if owners == set(world.servers):
                return
            await asyncio.sleep(0.05)
        if alone:
            world.complain(f"{_OWNED_AGAIN_S_MAX} s after a host died only {owners} of its shards have an owner")

    async def _meta_fault(self) -> None:
        """Away for all hosts, or for one of them while others see it."""
        world, chance = self._world, self._chance
        host = world.pick_host(chance)
        if host is None or chance.random() < 0.5:
            await self._meta_outage(chance.choice([0.1, 1.0, 2.5]))
            return
        world.trace("meta", f"is away for {host.name}")
        world.meta.cut_off[host.name] = math.inf
        await asyncio.sleep(chance.choice([0.1, 1.0, 2.5]))
        world.meta.cut_off[host.name] = world.loop.time()

    async def _meta_outage(self, seconds: float) -> None:
        world = self._world
        world.meta.away_count += 1
        world.trace("meta", "is away")
        await asyncio.sleep(seconds)
        world.meta.away_count -= 1

    async def _restore_metas(self, until_s: float) -> None:
        world = self._world
        if not world.profile.disturbed or self._apart.random() > 0.3:
            return
        while world.loop.time() < until_s:
            self._past.append(world.meta.tables.copy())
            await asyncio.sleep(_BACKUP_S)
            if self._apart.random() < 0.1:
                self._restore_meta()

    def _restore_meta(self) -> None:
        """It comes back with an older state: that of a backup, of a replica that was behind, or none at all."""
        world = self._world
        kind = self._apart.choice(["restored", "promoted", "lost"])
        kept = {"restored": self._past, "promoted": self._past[-1:], "lost": [MetaTables()]}[kind]
        world.trace("meta", f"is {kind}")
        before = world.meta.tables.gates
        world.meta.tables = self._apart.choice(kept).copy()
        if world.meta.tables.gates != before:
            world.serials.lose("the meta database has other gates than before")
        world.restored = True
        world.numbers_deleted.clear()
        world.counts[f"meta databases {kind}"] += 1

    async def _clock_jump(self) -> None:
        self._step()

    def _step(self) -> None:
        world = self._world
        if world.delays.calm:
            return
        shard_id = self._chance.choice(list(world.servers))
        bound_ms = world.profile.jump_ms_max
        world.clocks.step(shard_id, self._chance.randint(-bound_ms, bound_ms))

    async def _heal(self) -> None:
        world = self._world
        world.delays.calm = True
        world.clocks.go_on()
        for shard_id, server in world.servers.items():
            server.restart()
            server.thaw()
            world.clocks.durable(shard_id, durable=True)
            server.problems = []
            server.reads.rows_max = None
        world.meta.away_count = 0
        world.meta.cut_off = dict.fromkeys(world.meta.cut_off, world.loop.time())
