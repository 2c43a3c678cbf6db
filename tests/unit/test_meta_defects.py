"""One-line defects of quotas and of the watch, each of which a property finds."""

from __future__ import annotations

import pytest

from tests.sim.meta_defects import BY_PROPERTY
from tests.support.deep import deep_but

_SLOW = {"tells replays too old", "tells replays too young"}
"""The property is quick to find how old another defect makes them."""


@pytest.mark.parametrize("name", deep_but(set(BY_PROPERTY) - _SLOW, BY_PROPERTY))
def test_a_property_finds_the_defect(name: str) -> None:
    defect = BY_PROPERTY[name]
    with defect.plant(), pytest.raises(AssertionError):
        defect.shows()


@pytest.mark.parametrize(
    "name",
    ["has gaps wherever rounds are slow", "leaves the locks of the dead", "fails a whole ask for one book"],
)
def test_without_the_defect_it_holds(name: str) -> None:
    """The other properties are tests of their own."""
    BY_PROPERTY[name].shows()
