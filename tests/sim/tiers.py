"""Tiers in the simulation: in some clusters two kinds of hosts and shards, and namespaces that belong to one of them.

In some of these an operator gives namespaces and shards to the other tier while clients work (tests.sim.tier_changes).
What is drawn for tiers comes from generators of its own, so that all other runs stay what they are.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from foqs.model import limits
from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.namespace import NamespaceSettings
from foqs.storage.sessions.places import place_of
from foqs.testing.fake_server import Script
from tests.histories.history import uid_of
from tests.sim.serials import SERIAL_NAMESPACE
from tests.sim.uniques import UNIQUE_NAMESPACE

if TYPE_CHECKING:
    from tests.sim.host import SimHost
    from tests.sim.world import World

TIERS = ("", "fast")
_SHARE = 0.2
"""Of the clusters."""
_CHANGES_SHARE = 0.6
"""Of those with tiers."""
_LATE_S_MAX = 2.0
"""A transaction is committed so long after it was given up at the latest (tests.sim.world)."""


class _Tier:
    """The tier of a namespace or a shard, and those before it that a host may still have gone by."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._before: dict[str, float] = {}
        """Until when each of them may show."""

    def change(self, name: str) -> None:
        if name != self.name:
            self._before[self.name] = math.inf
            self.name = name

    def is_known(self, until_s: float) -> None:
        """All hosts know this tier. The calls that they had begun before that have ended by then."""
        for name, shows_until_s in self._before.items():
            self._before[name] = min(shows_until_s, until_s)

    def names(self, now_s: float) -> set[str]:
        return {self.name, *[name for name, until_s in self._before.items() if now_s < until_s]}


class TierWatch:
    """Knows the tier of each host, shard and namespace of a run, and whether items keep to them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._chance = random.Random(f"tiers {world.seed}")
        self.is_there = self._chance.random() < _SHARE and world.profile.is_cluster
        self.changes_chance = random.Random(f"tier changes {world.seed}")
        self.has_changes = self.changes_chance.random() < _CHANGES_SHARE and self.is_there
        self._of_shard: dict[int, _Tier] = {}
        self._of_namespace: dict[int, _Tier] = {}
        """By number."""
        self.shard_changes_count = 0
        """Of the tiers of shards."""
        self._is_news = False
        """A tier has changed, and some hosts do not know it."""
        self._of_host: dict[str, str] = {}
        """By name: a host that is restarted is of the tier that it had."""
        if self.is_there:
            shards = list(world.servers)
            self._chance.shuffle(shards)
            fast_count = self._chance.randint(1, len(shards) - 1)
            self._of_shard = {shard_id: _Tier(TIERS[at < fast_count]) for at, shard_id in enumerate(shards)}

    def enter(self, rows: dict[int, ShardRow], urls: Mapping[int, str]) -> None:
        """The meta database knows of the tiers before there is any host, which would take all shards for its own."""
        for shard_id, tier in self._of_shard.items():
            rows[shard_id] = ShardRow(
                shard_id, 0, "", 0, place_of(urls[shard_id]), ShardUse.SERVING, tier.name, "", "", self._world.now_ms()
            )

    def drawn(self, settings: NamespaceSettings) -> NamespaceSettings:
        """The settings of a namespace that is to be created, of one of the tiers."""
        return replace(settings, tier=self._chance.choice(TIERS)) if self.is_there else settings

    def of_shard(self, shard_id: int) -> str:
        return self._of_shard[shard_id].name if self.is_there else ""

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

    # ---- what the meta database has ----

    def has_namespace(self, number: int, tier: str) -> None:
        if self.is_there:
            known = self._of_namespace.setdefault(number, _Tier(tier))
            self._is_news = self._is_news or known.name != tier
            known.change(tier)

    def has_shard(self, shard_id: int, tier: str) -> None:
        if self.is_there and tier != self._of_shard[shard_id].name:
            self._of_shard[shard_id].change(tier)
            self._is_news = True
            self.shard_changes_count += 1

    def look(self) -> None:
        """Note when all hosts know what has changed."""
        hosts = [host for host in self._world.hosts if not host.ended]
        if self._is_news and all(map(self._knows, hosts)):
            self._is_news = False
            until_s = self._world.loop.time() + limits.CALL_MS_MAX / 1000 + _LATE_S_MAX
            for tier in [*self._of_shard.values(), *self._of_namespace.values()]:
                tier.is_known(until_s)

    def _knows(self, host: SimHost) -> bool:
        shards, known = host.host._shards, host.host._namespaces.view.by_number
        return all(shards.tier_of(shard_id) == tier.name for shard_id, tier in self._of_shard.items()) and all(
            known[number].settings.tier == tier.name for number, tier in self._of_namespace.items() if number in known
        )

    def committed(self, shard_id: int, script: Script) -> None:
        """Items without a dedup id are of the shard's tier. Those with ids go where the slot of the id leads."""
        world = self._world
        if not self.is_there:
            return
        topics, now_s = world.servers[shard_id].tables.topics, world.loop.time()
        for row in script.rows_new:
            uid = uid_of(row.content.payload)
            if row.topic not in topics or uid in world.dedup_ids:
                continue
            if uid.startswith((f"{SERIAL_NAMESPACE}:", f"{UNIQUE_NAMESPACE}:")):
                continue  # The items of serial topics, and those with ids that they hold, are placed by slots.
            tiers = self._of_namespace[topics[row.topic][0]].names(now_s)
            world.counts["items held against a tier"] += 1
            if tiers.isdisjoint(self._of_shard[shard_id].names(now_s)):
                world.complain(f"{uid} is of tier {tiers} and came to shard {shard_id}, which is of another")
