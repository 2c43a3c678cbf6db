"""The simulation finds every defect that is put into the engine."""

from __future__ import annotations

import pytest

from tests.sim import defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(defects))
def test_a_seed_turns_red_when_the_engine(name: str) -> None:
    check_found(defects, name)
