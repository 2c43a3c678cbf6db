"""The simulation finds every defect that is put into what it simulates."""

from __future__ import annotations

import pytest

from tests.sim.all_defects import all_defects
from tests.sim.planting import SHOWN_BY, Planted, check_found
from tests.support.deep import deep_but

_DEFECTS = all_defects()
_SLOW_KINDS = {
    "depth_defects", "gate_defects", "peer_defects", "policy_defects", "reach_defects", "routing_defects",
    "shared_cap_defects", "short_read_defects", "slot_move_defects",
}  # fmt: skip
"""Kinds whose first defect takes a whole cluster more than ten seconds to show."""
_QUICK = {one.module: one for one in reversed(_DEFECTS) if one.module not in _SLOW_KINDS}.values()
"""The first one of each other kind."""


@pytest.mark.interpreted
@pytest.mark.parametrize("planted", deep_but(_QUICK, _DEFECTS), ids=[one.key for one in _DEFECTS])
def test_a_seed_turns_red_with_a_defect(planted: Planted) -> None:
    check_found(planted, is_cluster=_DEFECTS[planted])


def test_each_hint_is_of_a_defect() -> None:
    assert not set(SHOWN_BY) - {one.key for one in _DEFECTS}
