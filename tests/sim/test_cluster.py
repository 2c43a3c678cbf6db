"""Simulated lives of clusters, whose hosts share shards that move between them (tests.sim.cluster)."""

from __future__ import annotations

import itertools
from unittest.mock import patch

import pytest

from foqs.host.verbs import page_reads
from tests.sim.run import run_seed
from tests.support.deep import deep_but

SEEDS = 500
CHUNK = 5
QUICK_SEEDS = 5
DEEP_SEEDS = 75
"""All others run in `make test-slow`."""
LOAD_S_MAX = 1.5


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK), range(DEEP_SEEDS, SEEDS)))
def test_every_promise_holds_while_shards_move(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX, is_cluster=True)
        assert not outcome.complaints, str(outcome)


@pytest.mark.deep
@pytest.mark.parametrize("seed", range(3))
def test_a_seed_of_a_cluster_always_gives_the_same_run(seed: int) -> None:
    first = run_seed(seed, load_s_max=LOAD_S_MAX, is_cluster=True)
    ticks = itertools.count()
    with patch.object(page_reads, "perf_counter", lambda: next(ticks) / 100):  # As on a machine that is very busy.
        second = run_seed(seed, load_s_max=LOAD_S_MAX, is_cluster=True)
    assert (first.steps_count, first.virtual_s, first.counts) == (second.steps_count, second.virtual_s, second.counts)
