"""Defects of tiers: of where items go that have no dedup id."""

from __future__ import annotations

from collections.abc import Collection
from unittest.mock import patch

from foqs.host.placement import Placement
from foqs.host.stocks import Stocks
from foqs.model.namespace import Namespace
from foqs.shard.writer.shard_writer import ShardWriter
from tests.sim.planting import in_place_of

_next = Placement._next


@in_place_of(Placement, "_next")
def takes_items_for_shards_of_another_tier(
    self: Placement, namespace: Namespace, avoided: Collection[int]
) -> ShardWriter:
    with patch.object(self._shards, "tier_of", lambda _: namespace.settings.tier):
        return _next(self, namespace, avoided)


@in_place_of(Stocks, "is_of_tier")
def hands_items_to_hosts_of_another_tier(self: Stocks, namespace_name: str, shard_id: int) -> bool:
    return True
