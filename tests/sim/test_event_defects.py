"""The simulation finds every defect of the event log."""

from __future__ import annotations

import pytest

from tests.sim import event_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(event_defects))
def test_a_seed_turns_red_when(name: str) -> None:
    check_found(event_defects, name)
