"""The simulation of clusters finds every defect that is put into caps that hosts share."""

from __future__ import annotations

import pytest

from tests.sim import shared_cap_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(shared_cap_defects))
def test_a_seed_turns_red_when_a_host(name: str) -> None:
    check_found(shared_cap_defects, name, is_cluster=True)
