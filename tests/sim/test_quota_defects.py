"""The simulation finds every defect of quotas."""

from __future__ import annotations

import pytest

from tests.sim import quota_defects
from tests.sim.planting import check_found, names


@pytest.mark.timeout(600)
@pytest.mark.interpreted
@pytest.mark.parametrize("name", names(quota_defects))
def test_a_seed_turns_red_when(name: str) -> None:
    check_found(quota_defects, name)
