"""Simulated clusters with a topic whose items age (tests.sim.aging_runs)."""

from __future__ import annotations

import pytest

from tests.sim.aging_runs import run_aging
from tests.support.deep import deep_but

SEEDS = 12
CHUNK = 2


@pytest.mark.parametrize("first", deep_but(range(CHUNK), range(0, SEEDS, CHUNK), range(3 * CHUNK, SEEDS)))
def test_items_that_age_keep_their_places(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_aging(seed)
        assert not outcome.complaints, str(outcome)
        for what in (
            "rows in their places",
            "answers of items that age",
            "dead items that age redriven",
            "most urgent priorities",
        ):
            assert outcome.counts[what], what
