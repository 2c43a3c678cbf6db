"""The simulation of a cluster finds every defect that is put into it."""

from __future__ import annotations

import pytest

from tests.sim.all_defects import all_defects
from tests.sim.planting import Planted, check_found
from tests.support.deep import deep_but

_DEFECTS = [one for one, is_cluster in all_defects().items() if is_cluster]
_SLOW_KINDS = {
    "depth_defects", "gate_defects", "peer_defects", "reach_defects", "routing_defects", "shared_cap_defects",
}  # fmt: skip
"""Kinds whose first defect takes more than ten seconds to show."""
_QUICK = {one.module: one for one in reversed(_DEFECTS) if one.module not in _SLOW_KINDS}.values()
"""The first one of each other kind."""


@pytest.mark.interpreted
@pytest.mark.parametrize("planted", deep_but(_QUICK, _DEFECTS), ids=[one.key for one in _DEFECTS])
def test_a_seed_turns_red_with_a_defect(planted: Planted) -> None:
    check_found(planted, is_cluster=True)
