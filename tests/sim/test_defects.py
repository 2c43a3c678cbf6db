"""The simulation finds every defect that is put into the engine."""

from __future__ import annotations

import pytest

from tests.sim import defects, store_defects
from tests.sim.planting import DEFECTS
from tests.sim.run import run_seed

PLANTED_BY = (defects, store_defects)
SEEDS_MAX = 600
"""Most show within a few seeds, and the rarest in about one in two hundred, which differ with every change."""


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", DEFECTS)
def test_a_seed_turns_red_when_the_engine(name: str) -> None:
    with DEFECTS[name]():
        red = next((seed for seed in range(SEEDS_MAX) if run_seed(seed).complaints), None)
    assert red is not None, f"{SEEDS_MAX} seeds do not see it"
    assert not run_seed(red).complaints, f"seed {red} is red without the defect, too"
