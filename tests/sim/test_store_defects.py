"""The simulation finds every defect that is put into the store of a shard."""

from __future__ import annotations

import pytest

from tests.sim import store_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(store_defects))
def test_a_seed_turns_red_when_a_store(name: str) -> None:
    check_found(store_defects, name)
