"""Defects of shards that are parked."""

from __future__ import annotations

from functools import partial

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.ownership.owner_word import OwnerWord
from foqs.model.cluster import ShardUse
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, load_s_max=1.5, is_cluster=True, has_parks=True))

_refresh = OwnerMap.refresh


@in_place_of(OwnerWord, "_parked_of")
def says_that_it_left_before_it_has_left(self: OwnerWord, view: ClusterView) -> dict[int, tuple[int, int]]:
    parked = [row for row in view.shards.values() if row.use is ShardUse.PARKED and row.server]
    return {row.shard_id: (row.epoch, row.last_number) for row in parked if row.owner == view.me}


@in_place_of(OwnerMap, "refresh")
def leaves_parked_shards_out_of_whole_answers(self: OwnerMap, view: ClusterView) -> None:
    _refresh(self, view._replace(shards={at: row for at, row in view.shards.items() if row.use.is_served}))
