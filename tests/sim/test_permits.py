"""Limits of items in flight hold whatever goes wrong, and every shard has its turns (tests.sim.permits, in_flight)."""

from __future__ import annotations

import pytest

from tests.sim.in_flight import run_in_flight
from tests.sim.permits import run_permits
from tests.support.deep import deep_but

CHUNK = 100
SEEDS = 300
"""`make sim-permits` runs more."""
QUICK_SEEDS = 100
"""All others run in `make test-deep`."""
HOST_SEEDS = 60
HOST_CHUNK = 20
QUICK_HOST_SEEDS = 20
CLUSTER_SEEDS = 10
CLUSTER_CHUNK = 2
QUICK_CLUSTER_SEEDS = 2
LOAD_S_MAX = 0.5


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK)))
def test_no_more_leases_run_than_the_limit_and_all_shards_have_turns(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_permits(seed)
        assert not outcome.complaints, f"seed {seed}: {outcome.complaints}"


@pytest.mark.parametrize("first", deep_but(range(QUICK_HOST_SEEDS), range(0, HOST_SEEDS, HOST_CHUNK)))
def test_the_limits_of_a_host_hold_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + HOST_CHUNK):
        outcome = run_in_flight(seed, load_s_max=LOAD_S_MAX)
        assert not outcome.complaints, str(outcome)


@pytest.mark.parametrize("first", deep_but(range(QUICK_CLUSTER_SEEDS), range(0, CLUSTER_SEEDS, CLUSTER_CHUNK)))
def test_the_limits_of_a_cluster_hold_while_shards_move(first: int) -> None:
    for seed in range(first, first + CLUSTER_CHUNK):
        outcome = run_in_flight(seed, load_s_max=LOAD_S_MAX, is_cluster=True)
        assert not outcome.complaints, str(outcome)
