"""The secret of a cluster is replaced while hosts come, go, hang and are cut off: no living host refuses another.

Hosts call each other without sockets here, so this asks what foqs.transport.peers would: which secret the caller shows,
and whether the callee takes it.
"""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from foqs.model.cluster_secret import secret_id
from foqs.model.secret import Secret

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import SimHost

_SHARE = 0.25
"""Of the clusters."""
_PAUSE_S = 0.1
"""An operator tries to finish so often."""


class Rotations:
    """The operator of one run. Its chance is its own, so that other runs stay what they are."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = random.Random(f"{world.seed}/rotations")
        self.is_there = self._chance.random() < _SHARE

    async def run(self, until_s: float) -> None:
        world, chance = self._world, self._chance
        while world.loop.time() < until_s:
            await self._sleep(chance.random() * 0.2, until_s)
            tables = world.meta.tables.cluster
            if not tables.secret or world.meta.away_count:
                continue
            tables.next_secret = chance.randbytes(32)
            world.trace("operator", "begins a rotation")
            if chance.random() < 0.2:
                await self._sleep(chance.random(), until_s)
                tables.next_secret = b""
                world.counts["rotations taken back"] += 1
                continue
            while not self._all_know(tables.next_secret):
                if world.loop.time() >= until_s:
                    return
                await self._sleep(_PAUSE_S, until_s)
            tables.secret, tables.next_secret = tables.next_secret, b""
            world.trace("operator", "ends a rotation")
            world.counts["secrets replaced"] += 1

    async def _sleep(self, pause_s: float, until_s: float) -> None:
        """The end of the load must not wait for an operator."""
        await asyncio.sleep(max(0.0, min(pause_s, until_s - self._world.loop.time())))

    def _all_know(self, secret: bytes) -> bool:
        """As the meta database sees it; the rows of killed hosts are too old to count, in minutes that do not pass."""
        world, wanted = self._world, secret_id(Secret(secret))
        alive = {host.host.id for host in world.hosts}
        rows = [row for row in world.meta.hosts.values() if row.id in alive]
        return not world.meta.away_count and all(wanted in row.secret_ids for row in rows)

    def check(self, caller_id: str, callee: SimHost) -> None:
        """One host opens a connection to another, which knows that it lives."""
        caller = next((host for host in self._world.hosts if host.host.id == caller_id), None)
        if caller is None:
            return
        shown, taken = caller.host._secrets.for_host(callee.host.id), callee.host._secrets.accepted()
        if shown and not any(one.secret in taken for one in shown):
            ids = ", ".join(one.id for one in shown)
            self._world.complain(f"{caller.name} shows {callee.name} the secrets {ids}, which that does not take")
