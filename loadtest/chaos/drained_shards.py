"""Slots move between the shards of a cluster, because a shard is drained."""

from __future__ import annotations

import random
from contextlib import closing

from foqs.model.cluster import ShardUse
from foqs.storage.meta.meta_store import MetaStore
from loadtest.chaos.cluster_faults import ClusterFault
from loadtest.chaos.cluster_room import ClusterRoom
from loadtest.chaos.fault import META


class ShardDrained(ClusterFault):
    """The slots of a shard move to the others, with the items of serial topics behind gates, and afterwards back."""

    kind = "shard: drained, and serving again"
    length_ms = (3_000, 20_000)

    def _draw(self, rng: random.Random) -> None:
        self.shard = rng.choice(list(self.layout.shards))
        # Of one shard at a time: so the others have the slots.
        self.targets = frozenset({"slots", META, "server-0"})

    def begin(self, room: ClusterRoom) -> None:
        self._use(room, ShardUse.DRAINING)

    def end(self, room: ClusterRoom) -> None:
        self._use(room, ShardUse.SERVING)

    def _use(self, room: ClusterRoom, use: ShardUse) -> None:
        """Past all hosts, which can be away."""
        with closing(MetaStore(room.servers[0].url("meta"))) as meta:
            meta.shards.update(self.shard, use, None, None)
