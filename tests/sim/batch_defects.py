"""Defects of runs: of items of a key, or of a serial topic, that come together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from foqs.model.item import ShardItem
from foqs.model.topic import ShardTopic
from foqs.shard.port import Rewrite
from foqs.shard.state.ops import settle
from foqs.shard.state.ops.settle import Settlements
from tests.sim.planting import in_place_of, runs_with
from tests.sim.run import run_seed

runs_with(__name__, partial(run_seed, is_serial=True, load_s_max=2.0))


@in_place_of(Settlements, "_with_runs")
def lets_items_behind_one_that_comes_back_stay_out(
    self: Settlements, items: list[ShardItem], rewrites: Sequence[Rewrite | None]
) -> tuple[list[ShardItem], list[Rewrite | None]]:
    return items, list(rewrites)


@in_place_of(ShardTopic, "_serial_room")
def begins_a_run_beside_another(self: ShardTopic) -> int:
    return self.batch_max - self.out_count if self.batch_max > 1 else int(not self.out_count and not self.delayed)


@in_place_of(settle, "_in_chunks")
def divides_runs_among_settlements(items: list[ShardItem]) -> Iterator[list[ShardItem]]:
    return ([item] for item in items)
