"""The simulation finds every defect that is put into the moves of slots."""

from __future__ import annotations

import pytest

from tests.sim import slot_move_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(slot_move_defects))
def test_a_seed_turns_red_when_a_shard(name: str) -> None:
    check_found(slot_move_defects, name)
