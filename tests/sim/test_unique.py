"""Lives of items whose dedup ids are taken as long as they live, with the faults of all other runs (tests.sim)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.run import run_seed
from tests.support.deep import deep_but

SEEDS, CHUNK = 60, 20
"""`make sim-unique` runs more."""
CLUSTER_SEEDS, CLUSTER_CHUNK = 4, 2
QUICK_SEEDS, QUICK_CLUSTER_SEEDS = 20, 0
LOAD_S_MAX = 1.0


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK)))
def test_no_two_living_items_have_one_id_and_ended_ones_have_none(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, is_unique=True)
        assert not outcome.complaints, str(outcome)
        counts += outcome.counts
    assert counts["items that hold their ids"] > 2 * CHUNK
    assert counts["repeats of items that hold their ids"] > 2 * CHUNK


@pytest.mark.parametrize("first", deep_but(range(QUICK_CLUSTER_SEEDS), range(0, CLUSTER_SEEDS, CLUSTER_CHUNK)))
def test_the_same_of_clusters(first: int) -> None:
    for seed in range(first, first + CLUSTER_CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, is_cluster=True, is_unique=True)
        assert not outcome.complaints, str(outcome)
