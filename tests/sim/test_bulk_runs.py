"""Simulated clusters that do bulk jobs (tests.sim.bulk_runs)."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.sim.bulk_runs import run_bulk
from tests.support.deep import deep_but

SEEDS = 60
"""`make sim-bulk` runs more."""
CHUNK = 10


@pytest.mark.parametrize("first", deep_but(range(CHUNK), range(0, SEEDS, CHUNK), range(4 * CHUNK, SEEDS)))
def test_jobs_change_what_matches_and_count_it(first: int) -> None:
    counts: Counter[str] = Counter()
    for seed in range(first, first + CHUNK):
        outcome = run_bulk(seed)
        assert not outcome.complaints, str(outcome)
        counts += outcome.counts
    assert counts["bulk jobs that ended as SUCCEEDED"]
    assert counts["bulk jobs undone"]
