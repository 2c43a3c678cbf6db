"""In some clusters an operator gives namespaces and shards to the other tier, and drains shards, under load."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from foqs.client.client_errors import NotSentError
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError
from tests.sim.caller import NAMESPACE
from tests.sim.tiers import TIERS

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld
    from tests.sim.host import FakeDoor

_CHANGES_PER_S = 2.0


class TierChanges:
    """Changes of one run. A tier may have no shard meanwhile: its namespaces take no items then."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = world.tiers.changes_chance

    async def run(self, until_s: float) -> None:
        world, chance = self._world, self._chance
        while world.tiers.has_changes:
            await asyncio.sleep(chance.expovariate(_CHANGES_PER_S))
            if world.loop.time() >= until_s:
                return
            kind = chance.choice([self._move_namespace, self._move_namespace, self._move_shard, self._use_shard])
            try:
                await kind()
            except FoqsError as error:
                world.trace("tiers", f"failed: {error!r}")
            else:
                world.counts[f"tiers: {kind.__name__.strip('_')}"] += 1

    async def _move_namespace(self) -> None:
        name = self._chance.choice([NAMESPACE, NAMESPACE, *self._world.meta.tables.namespaces])
        changes = SimpleNamespace(tier=self._chance.choice(TIERS))
        await self._call(lambda door: door.admin.update_namespace(name, changes))

    async def _move_shard(self) -> None:
        shard_id, tier = self._chance.choice(list(self._world.servers)), self._chance.choice(TIERS)
        await self._call(lambda door: door.admin.update_shard(shard_id, None, None, tier))

    async def _use_shard(self) -> None:
        shard_id = self._chance.choice(list(self._world.servers))
        use = self._chance.choice([ShardUse.SERVING, ShardUse.DRAINING])
        await self._call(lambda door: door.admin.update_shard(shard_id, int(use), None, None, True))

    async def _call(self, work: Callable[[FakeDoor], Awaitable[Any]]) -> None:
        host = self._world.pick_host(self._chance)
        if host is None:
            raise NotSentError("no host listens")
        await self._world.call(host, work, limits.CALL_MS_MAX / 1000 + 2)


def settle(world: ClusterWorld) -> None:
    """Whoever watches over the cluster sees to it that each tier has a shard, and that all shards take items."""
    if not world.tiers.has_changes:
        return
    rows = world.meta.tables.cluster.shards
    for shard_id, row in list(rows.items()):
        rows[shard_id] = row._replace(use=ShardUse.SERVING)
    for tier in TIERS:
        if not any(row.tier == tier for row in rows.values()):
            shard_id = world.tiers.changes_chance.choice(list(rows))
            rows[shard_id] = rows[shard_id]._replace(tier=tier)
            world.tiers.has_shard(shard_id, tier)
