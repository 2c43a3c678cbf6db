"""Defects of shards that are parked."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from foqs.cluster.members.view import ClusterView
from foqs.cluster.ownership import decision
from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.ownership.owner_word import OwnerWord
from foqs.model import shard_place
from foqs.model.cluster import ShardRow, ShardUse
from foqs.model.shard_place import EpochAsk
from foqs.storage.meta import meta_shards
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, load_s_max=1.5, is_cluster=True, has_parks=True))

_refusal = shard_place.refusal
_refresh = OwnerMap.refresh


@in_place_of(meta_shards, "refusal")
def gives_an_epoch_of_a_parked_shard(row: ShardRow, me: str, ask: EpochAsk, is_dead: Callable[[str, int], bool]) -> str:
    return _refusal(row._replace(use=ShardUse.SERVING), me, ask, is_dead)


@in_place_of(decision, "shards_in_use")
def plans_for_parked_shards(view: ClusterView) -> dict[int, ShardRow]:
    return {row.shard_id: row for row in view.shards.values() if row.use is not ShardUse.REMOVED and row.place}


@in_place_of(OwnerWord, "_parked_of")
def says_that_it_left_before_it_has_left(self: OwnerWord, mine: Mapping[int, ShardRow]) -> dict[int, tuple[int, int]]:
    return {
        row.shard_id: (row.epoch, row.last_number) for row in mine.values() if row.use is ShardUse.PARKED and row.server
    }


@in_place_of(OwnerMap, "refresh")
def leaves_parked_shards_out_of_whole_answers(self: OwnerMap, view: ClusterView) -> None:
    _refresh(self, view._replace(shards={at: row for at, row in view.shards.items() if row.use.is_served}))
