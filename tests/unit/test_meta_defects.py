"""One-line defects of quotas and of the watch, each of which a property finds."""

from __future__ import annotations

import pytest

from tests.sim.meta_defects import BY_PROPERTY


@pytest.mark.parametrize("name", BY_PROPERTY)
def test_a_property_finds_the_defect(name: str) -> None:
    defect = BY_PROPERTY[name]
    with defect.plant(), pytest.raises(AssertionError):
        defect.shows()


def test_without_any_defect_slow_rounds_are_seen() -> None:
    """The other properties are tests of their own."""
    BY_PROPERTY["has gaps wherever rounds are slow"].shows()
