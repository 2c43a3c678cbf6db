"""The simulation of clusters finds every defect that is put into tiers, in the runs that have some."""

from __future__ import annotations

import pytest

from tests.sim import tier_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(tier_defects))
def test_a_seed_turns_red_when_a_host(name: str) -> None:
    check_found(tier_defects, name, is_cluster=True)
