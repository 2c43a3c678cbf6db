"""The simulation of one host finds every defect that is put into it."""

from __future__ import annotations

import pytest

from tests.sim.all_defects import all_defects
from tests.sim.planting import SHOWN_BY, Planted, check_found

_DEFECTS = [one for one, is_cluster in all_defects().items() if not is_cluster]


@pytest.mark.deep
@pytest.mark.interpreted
@pytest.mark.parametrize("planted", _DEFECTS, ids=[one.key for one in _DEFECTS])
def test_a_seed_turns_red_with_a_defect(planted: Planted) -> None:
    check_found(planted, is_cluster=False)


def test_each_hint_is_of_a_defect() -> None:
    assert not set(SHOWN_BY) - {one.key for one in all_defects()}
