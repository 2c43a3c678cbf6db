"""The simulation finds every defect that is put into what a shard knows of dedup ids."""

from __future__ import annotations

import pytest

from tests.sim import dedup_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(dedup_defects))
def test_a_seed_turns_red_when_dedup(name: str) -> None:
    check_found(dedup_defects, name)
