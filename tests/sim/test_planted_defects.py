"""The simulation finds every defect that is put into what it simulates."""

from __future__ import annotations

import pytest

from tests.sim.all_defects import all_defects
from tests.sim.planting import SHOWN_BY, Planted, check_found

_DEFECTS = all_defects()


@pytest.mark.interpreted
@pytest.mark.parametrize(("planted", "is_cluster"), _DEFECTS.items(), ids=[one.key for one in _DEFECTS])
def test_a_seed_turns_red_with_a_defect(planted: Planted, is_cluster: bool) -> None:
    check_found(planted, is_cluster=is_cluster)


def test_each_hint_is_of_a_defect() -> None:
    assert not set(SHOWN_BY) - {one.key for one in _DEFECTS}
