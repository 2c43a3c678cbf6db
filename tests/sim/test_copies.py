"""Simulated lives of clusters in which copies of shards' databases appear (tests.sim.copies)."""

from __future__ import annotations

import pytest

from tests.sim.copies import run_copies
from tests.support.deep import deep_but

pytestmark = [pytest.mark.deep]

SEEDS = 10
CHUNK = 5


@pytest.mark.parametrize("first", deep_but(range(CHUNK), range(0, SEEDS, CHUNK)))
def test_of_the_copies_of_a_shard_one_is_served_at_a_time(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_copies(seed)
        assert not outcome.complaints, str(outcome)


def test_a_seed_always_gives_the_same_run() -> None:
    first, second = [run_copies(3) for _ in range(2)]
    assert (first.steps_count, first.virtual_s, first.counts) == (
        second.steps_count, second.virtual_s, second.counts
    )  # fmt: skip
