"""An operator of the simulation who parks shards of a cluster, and unparks them a while later."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING

from foqs.model.cluster import ShardRow, ShardUse

if TYPE_CHECKING:
    from tests.sim.cluster import ClusterWorld

_REST_S = (0.05, 0.8)
"""Between two shards that are parked."""
_PARKED_S = (0.02, 2.0)


class Parks:
    """Parks one shard at a time, and watches that no host has one whose owner has said that it left."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._chance = random.Random(f"parks {world.seed}")
        self.is_there = False

    async def run(self, until_s: float) -> None:
        loop = self._world.loop
        while loop.time() < until_s:
            await asyncio.sleep(self._chance.uniform(*_REST_S))
            shard_id = self._chance.choice(list(self._world.servers))
            row = self._rows.get(shard_id)
            if row is None or row.use is not ShardUse.SERVING:
                continue
            self._rows[shard_id] = row._replace(use=ShardUse.PARKED, moving_to="")
            self._world.counts["shards parked"] += 1
            self._world.tenure_book.parked.add(shard_id)
            await asyncio.sleep(self._chance.uniform(*_PARKED_S))
            row = self._rows[shard_id]
            if row.owner and not row.server:
                self._world.counts["shards parked and left"] += 1
            self._rows[shard_id] = row._replace(use=ShardUse.SERVING)

    def look(self) -> None:
        """Check what an operator who restores the database relies on: no host has the shard."""
        free = {at for at, row in self._rows.items() if row.use is ShardUse.PARKED and row.owner and not row.server}
        for host in self._world.hosts:
            for shard in [] if host.ended else host.held:
                if shard.shard_id in free:
                    self._world.complain(f"{host.name} has shard {shard.shard_id}, which is parked and was left")

    @property
    def _rows(self) -> dict[int, ShardRow]:
        return self._world.meta.tables.cluster.shards
