"""The simulation finds every defect that is put into what hosts know of slots."""

from __future__ import annotations

import pytest

from tests.sim import slot_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(slot_defects))
def test_a_seed_turns_red_when_a_host(name: str) -> None:
    check_found(slot_defects, name)
