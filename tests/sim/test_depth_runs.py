"""Simulated clusters that keep the limit on the depth of a topic, and its backoff (tests.sim.depth_runs)."""

from __future__ import annotations

import pytest

from tests.sim.depth_runs import run_depths
from tests.support.deep import deep_but

SEEDS = 10
"""`make sim-depths` runs more."""
CHUNK = 2


@pytest.mark.parametrize("first", deep_but(range(CHUNK), range(0, SEEDS, CHUNK), range(3 * CHUNK, SEEDS)))
def test_hosts_keep_the_depth_of_a_topic_and_delay_what_fails(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_depths(seed)
        assert not outcome.complaints, str(outcome)
        assert outcome.counts["items refused for the depth"]
        assert outcome.counts["nacks with a backoff"]
