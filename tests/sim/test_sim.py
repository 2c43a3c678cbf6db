"""Thousands of short simulated lives of the queue, each with its own faults (tests.sim)."""

from __future__ import annotations

import asyncio

import pytest

from tests.sim.loop import VirtualLoop
from tests.sim.run import run_seed
from tests.support.deep import deep_but

SEEDS = 2_000
CHUNK = 100
QUICK_SEEDS = 100
DEEP_SEEDS = 500
"""All others run in `make test-slow`."""
LOAD_S_MAX = 0.4
"""Long enough for every kind of fault; `make sim` runs longer ones."""

ONCE_BROKEN = [2, 26, 30, 37, 53, 58, 81, 90, 92, 129, 133, 172, 198, 200, 214, 234, 258, 269, 283]
"""Seeds that found something once, in the engine or in the simulation."""
ONCE_BROKEN_SHORT = [423, 872, 1_887, 2_099, 2_290, 19_932]
"""The same of runs of LOAD_S_MAX."""


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK), range(DEEP_SEEDS, SEEDS)))
def test_every_promise_holds_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_seed(seed, load_s_max=LOAD_S_MAX)
        assert not outcome.complaints, str(outcome)


@pytest.mark.deep
@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_what_was_broken_once_holds(seed: int) -> None:
    outcome = run_seed(seed)
    assert not outcome.complaints, str(outcome)


@pytest.mark.parametrize("seed", ONCE_BROKEN_SHORT)
def test_what_was_broken_once_in_a_short_run_holds(seed: int) -> None:
    outcome = run_seed(seed, load_s_max=LOAD_S_MAX)
    assert not outcome.complaints, str(outcome)


def test_sets_of_tasks_have_the_order_in_which_they_were_made() -> None:
    """By their addresses, a seed would be another run in another process."""
    loop = VirtualLoop(lambda _: (0.0, 0.0), lambda: 0.0)
    tasks = [loop.create_task(asyncio.sleep(0), name=str(number)) for number in range(50)]
    assert [task.get_name() for task in set(tasks)] == [str(number) for number in range(50)]
    loop.end_tasks()
    loop.close()


@pytest.mark.parametrize("seeds", deep_but([range(7, 10)], [range(7, 10), range(10, 20)]), ids=str)
def test_a_seed_always_gives_the_same_run(seeds: range) -> None:
    deliveries_count = 0
    for seed in seeds:
        first, second = run_seed(seed), run_seed(seed)
        for what in ("steps_count", "virtual_s", "counts"):
            assert getattr(first, what) == getattr(second, what)
        deliveries_count += first.counts["deliveries"]
    assert deliveries_count > 0
