"""No item stays ready without an explanation, in the simulation (tests.sim.explained)."""

from __future__ import annotations

import pytest

from tests.sim import explain_defects
from tests.sim.explained import run_explained, run_watched
from tests.sim.planting import Planted, first_red_of, planted
from tests.support.deep import deep_but

SEEDS = 48
CHUNK = 3

_DEFECTS = planted(explain_defects)


@pytest.mark.interpreted
@pytest.mark.parametrize("first", deep_but([0], range(0, SEEDS, CHUNK), range(18, SEEDS, CHUNK)))
def test_an_item_that_is_ready_for_long_has_an_explanation(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_explained(seed)
        assert not outcome.complaints, str(outcome)


@pytest.mark.interpreted
def test_a_seed_always_gives_the_same_run() -> None:
    first, second = run_explained(5), run_explained(5)
    assert (first.steps_count, first.virtual_s, first.counts) == (second.steps_count, second.virtual_s, second.counts)
    assert sum([count for name, count in first.counts.items() if name.startswith("items explained by")]) > 100


@pytest.mark.interpreted
@pytest.mark.parametrize("one", deep_but(_DEFECTS[:1], _DEFECTS), ids=[one.name for one in _DEFECTS])
def test_an_item_is_unexplained_with_a_defect(one: Planted) -> None:
    assert first_red_of(one, run_watched, SEEDS) is not None, f"{SEEDS} seeds do not see it"
