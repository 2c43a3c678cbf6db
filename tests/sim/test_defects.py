"""The simulation finds every defect that is put into the engine."""

from __future__ import annotations

import pytest

from foqs.testing.sim.run import run_seed
from tests.sim.defects import DEFECTS

SEEDS_MAX = 200
SEED_FIRST = {"says_that_nothing_was_done_of_a_commit_whose_outcome_is_unknown": 280}
"""Where to begin for what one seed in two hundred shows."""


@pytest.mark.interpreted
@pytest.mark.parametrize("name", DEFECTS)
def test_a_seed_turns_red_when_the_engine(name: str) -> None:
    with DEFECTS[name]():
        first = SEED_FIRST.get(name, 0)
        red = next((seed for seed in range(first, first + SEEDS_MAX) if run_seed(seed).complaints), None)
    assert red is not None, f"{SEEDS_MAX} seeds do not see it"
    assert not run_seed(red).complaints, f"seed {red} is red without the defect, too"
