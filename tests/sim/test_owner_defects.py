"""The simulation finds every defect that is put into what owns shards."""

from __future__ import annotations

import pytest

from tests.sim import owner_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(owner_defects))
def test_a_seed_turns_red_when_an_owner(name: str) -> None:
    check_found(owner_defects, name)
