"""Defects of tiers: of where items go that have no dedup id, and of tiers that change."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from unittest.mock import patch

from foqs.host.admission.placement import Placement
from foqs.host.registry.namespaces import Namespaces
from foqs.host.verbs.host_stocks import Stocks
from foqs.model.namespace import Namespace
from foqs.shard.writer.shard_writer import ShardWriter
from tests.sim.planting import in_place_of

_next, _serving = Placement._next, Namespaces.serving


@in_place_of(Placement, "_next")
def takes_items_for_shards_of_another_tier(
    self: Placement, namespace: Namespace, avoided: Collection[int]
) -> ShardWriter:
    with patch.object(self._shards, "tier_of", lambda _: namespace.settings.tier):
        return _next(self, namespace, avoided)


@in_place_of(Namespaces, "serving")
def keeps_to_the_tier_that_a_namespace_had_first(self: Namespaces, name: str) -> Namespace:
    namespace = _serving(self, name)
    first_tiers: dict[int, str] = self.__dict__.setdefault("first_tiers", {})
    tier = first_tiers.setdefault(namespace.number, namespace.settings.tier)
    return replace(namespace, settings=replace(namespace.settings, tier=tier))


@in_place_of(Stocks, "can_take")
def hands_items_to_hosts_of_another_tier(self: Stocks, namespace_name: str, shard_id: int) -> bool:
    return True


@in_place_of(Stocks, "can_take")
def hands_items_to_hosts_whose_shards_drain(self: Stocks, namespace_name: str, shard_id: int) -> bool:
    number = self.number_of(namespace_name)
    namespace = None if number is None else self._namespaces.settings.by_number.get(number)
    return namespace is None or namespace.settings.tier == self._shards.tier_of(shard_id)
