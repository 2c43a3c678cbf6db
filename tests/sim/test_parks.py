"""Clusters whose shards are parked and unparked, with the faults of all other runs (tests.sim)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.run import run_seed
from tests.support.deep import deep_but

SEEDS, CHUNK, QUICK_SEEDS = 60, 4, 4


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK)))
def test_parked_shards_keep_all_promises_and_nobody_has_one_that_was_left(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed, is_cluster=True, has_parks=True)
        assert not outcome.complaints, str(outcome)
        counts += outcome.counts
    assert counts["shards parked"] > CHUNK
    assert counts["shards parked and left"]
