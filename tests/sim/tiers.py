"""Tiers in the simulation: in some clusters two kinds of hosts and shards, and namespaces that belong to one of them.

What is drawn for it comes from a generator of its own, so that all other runs stay what they are.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.namespace import NamespaceSettings
from foqs.storage.places import place_of
from foqs.testing.fake_server import Script
from tests.histories.history import uid_of

if TYPE_CHECKING:
    from tests.sim.world import World

TIERS = ("", "fast")
_SHARE = 0.2
"""Of the clusters."""


class TierWatch:
    """Knows the tier of each host, shard and namespace of a run, and whether items keep to them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"tiers {world.seed}")
        self.is_there = self._chance.random() < _SHARE and world.profile.is_cluster
        self._of_shard: dict[int, str] = {}
        self._of_host: dict[str, str] = {}
        """By name: a host that is restarted is of the tier that it had."""
        if self.is_there:
            shards = list(world.servers)
            self._chance.shuffle(shards)
            fast_count = self._chance.randint(1, len(shards) - 1)
            self._of_shard = {shard_id: TIERS[at < fast_count] for at, shard_id in enumerate(shards)}

    def enter(self, rows: dict[int, ShardRow], urls: Mapping[int, str]) -> None:
        """The meta database knows of the tiers before there is any host, which would take all shards for its own."""
        for shard_id, tier in self._of_shard.items():
            rows[shard_id] = ShardRow(
                shard_id, 0, "", 0, place_of(urls[shard_id]), ShardUse.SERVING, tier, "", "", self._world.now_ms()
            )

    def drawn(self, settings: NamespaceSettings) -> NamespaceSettings:
        """The settings of a namespace that is to be created, of one of the tiers."""
        return replace(settings, tier=self._chance.choice(TIERS)) if self.is_there else settings

    def of_shard(self, shard_id: int) -> str:
        return self._of_shard.get(shard_id, "")

    def of_host(self, name: str) -> str:
        """A new host is of the tier that has the fewest."""
        if self.is_there and name not in self._of_host:
            counts = Counter([self._of_host[host.name] for host in self._world.hosts])
            self._of_host[name] = min(TIERS, key=lambda tier: counts[tier])
        return self._of_host.get(name, "")

    def missing_count(self) -> int:
        """How many tiers have no host now."""
        present = {self._of_host.get(host.name) for host in self._world.hosts}
        return sum(tier not in present for tier in TIERS) if self.is_there else 0

    def committed(self, shard_id: int, script: Script) -> None:
        """Items without a dedup id are of the shard's tier. Those with ids go where the slot of the id leads."""
        world = self._world
        if not self.is_there:
            return
        topics = world.servers[shard_id].tables.topics
        for row in script.rows_new:
            uid = uid_of(row.content.payload)
            if row.topic not in topics or uid in world.dedup_ids:
                continue
            tier = world.slots.settings[topics[row.topic][0]].tier
            world.counts["items held against a tier"] += 1
            if tier != self._of_shard[shard_id]:
                world.complain(f"{uid} is of tier {tier!r} and came to shard {shard_id}, which is of another")
