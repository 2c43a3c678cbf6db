"""Simulated clusters whose keys share the turns of a topic (tests.sim.fair_runs)."""

from __future__ import annotations

import pytest

from tests.sim.fair_runs import run_fair
from tests.support.deep import deep_but

SEEDS = 10
CHUNK = 2


@pytest.mark.parametrize("first", deep_but(range(CHUNK), range(0, SEEDS, CHUNK), range(3 * CHUNK, SEEDS)))
def test_keys_share_turns_by_priority_and_no_item_is_lost(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_fair(seed)
        assert not outcome.complaints, str(outcome)
        assert outcome.counts["turns of keys"]
