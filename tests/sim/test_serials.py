"""Serial topics hold their order in simulated lives of one host and of clusters (tests.sim.serials)."""

from __future__ import annotations

import pytest

from tests.sim.run import run_seed
from tests.support.deep import deep_but

SEEDS = 60
"""`make sim-serial` runs more."""
CHUNK = 10
CLUSTER_SEEDS = 20
CLUSTER_CHUNK = 5
LOAD_S_MAX = 1.2


@pytest.mark.parametrize("first", deep_but([0], range(0, SEEDS, CHUNK), range(30, SEEDS)))
def test_serial_topics_keep_their_order_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, is_serial=True)
        assert not outcome.complaints, str(outcome)


@pytest.mark.deep
@pytest.mark.parametrize("first", range(0, CLUSTER_SEEDS, CLUSTER_CHUNK))
def test_serial_topics_keep_their_order_while_shards_and_slots_move(first: int) -> None:
    for seed in range(first, first + CLUSTER_CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, is_serial=True, is_cluster=True)
        assert not outcome.complaints, str(outcome)
