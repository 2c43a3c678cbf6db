"""The simulation finds every defect of caps, pauses, and dequeues from any topic."""

from __future__ import annotations

import pytest

from tests.sim import cap_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(cap_defects))
def test_a_seed_turns_red_when(name: str) -> None:
    check_found(cap_defects, name)
