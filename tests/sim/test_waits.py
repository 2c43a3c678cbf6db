"""Waits that are given up and programs that end in their work, in the simulation (tests.sim.waits)."""

from __future__ import annotations

import pytest

from tests.sim import wait_defects
from tests.sim.planting import Planted, first_red_of, planted
from tests.sim.waits import run_waits
from tests.support.deep import deep_but

SEEDS = 16
CHUNK = 8

_DEFECTS = planted(wait_defects)


@pytest.mark.interpreted
@pytest.mark.parametrize("first", deep_but(range(CHUNK), range(0, SEEDS, CHUNK)))
def test_nothing_is_lost_or_counted_for_whoever_gives_up_or_ends(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_waits(seed)
        assert not outcome.complaints, str(outcome)


@pytest.mark.interpreted
def test_a_seed_always_gives_the_same_run() -> None:
    first, second = run_waits(3), run_waits(3)
    assert (first.steps_count, first.virtual_s) == (second.steps_count, second.virtual_s)


@pytest.mark.interpreted
@pytest.mark.parametrize("one", deep_but(_DEFECTS[:1], _DEFECTS), ids=[one.name for one in _DEFECTS])
def test_a_seed_turns_red_with_a_defect(one: Planted) -> None:
    assert first_red_of(one, run_waits, SEEDS) is not None, f"{SEEDS} seeds do not see it"
