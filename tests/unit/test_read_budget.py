"""A transaction reads no more rows than it can in the time that others may wait for it."""

from __future__ import annotations

import pytest

from foqs.core import limits
from foqs.shard.read_budget import ReadBudget
from tests.support.shards import Shards

COUNT = 400
COLD_US, WARM_US = 250, 5
"""For a row, on a disk and in a cache."""


@pytest.fixture
def shards(monkeypatch: pytest.MonkeyPatch) -> Shards:
    """Two topics whose rows nobody has in memory."""
    monkeypatch.setattr(limits, "RESIDENT_BYTES_MAX", 0)
    monkeypatch.setattr(limits, "WARM_UPS_PER_TICK", 0)
    shards = Shards(1)
    for topic in ("a", "b"):
        shards.enqueue(0, topic, count=COUNT)
    shards.run(0)
    shards.take_over()
    return shards


def test_reads_from_a_disk_come_down_to_what_fits_the_time_and_no_lower() -> None:
    budget = ReadBudget()
    stalls_us = []
    for _ in range(20):
        stalls_us.append(budget.rows_max * COLD_US)
        budget.read(budget.rows_max, stalls_us[-1])
    assert budget.rows_max == limits.READ_US_TARGET // COLD_US > limits.READ_ROWS_MIN
    assert stalls_us[5] <= limits.READ_US_TARGET
    budget.read(budget.rows_max, 100 * limits.READ_US_TARGET)
    assert budget.rows_max == limits.READ_ROWS_MIN


def test_one_read_that_is_slow_by_chance_leaves_it_a_quarter_and_fast_ones_bring_it_back() -> None:
    budget = ReadBudget()
    budget.read(1, 1_000_000)
    assert budget.rows_max == limits.READ_ROWS_FIRST // 4
    for _ in range(50):
        budget.read(budget.rows_max, budget.rows_max * WARM_US)
    assert budget.rows_max >= limits.READ_ROWS_FIRST


def test_it_grows_only_by_reads_that_made_use_of_it_and_has_a_bound() -> None:
    budget = ReadBudget()
    budget.read(limits.READ_ROWS_FIRST // 2 - 1, 1)
    budget.read(0, 0)
    assert budget.rows_max == limits.READ_ROWS_FIRST
    for _ in range(200):
        budget.read(budget.rows_max, 1)
    assert budget.rows_max == limits.READ_ROWS_MAX


def test_a_fast_read_now_and_then_does_not_make_the_next_slow_one_long() -> None:
    """Seven topics whose rows share the pages of an eighth's."""
    budget = ReadBudget()
    longest_us = 0
    for number in range(400):
        is_cold = number % 8 == 0
        elapsed_us = budget.rows_max * (COLD_US if is_cold else WARM_US)
        budget.read(budget.rows_max, elapsed_us)
        if number >= 80:
            longest_us = max(longest_us, elapsed_us)
    assert longest_us < 1.5 * limits.READ_US_TARGET


def test_a_transaction_refills_and_fetches_no_more_than_its_budget(shards: Shards) -> None:
    shard = shards.states[0]
    shard.book.read_budget.rows_max = rows_max = 40
    call = shards.dequeue({"a": 100, "b": 100})
    most_refilled = most_fetched = 0
    while not call.items:
        transaction = shards.begin(0)
        assert transaction is not None
        most_refilled = max(most_refilled, sum(refill.limit for refill in transaction.refills if refill.lane))
        most_fetched = max(most_fetched, len(transaction.fetches))
        shards.end(0)
        shard.book.read_budget.rows_max = rows_max
    assert most_refilled == rows_max
    assert 0 < most_fetched <= rows_max


def test_before_its_rows_are_counted_a_shard_reads_a_few_of_each_topic(shards: Shards) -> None:
    shards.states[0].book.counted = False
    shards.dequeue({"a": 100, "b": 100})
    transaction = shards.begin(0)
    assert transaction is not None
    assert [refill.limit for refill in transaction.refills if refill.lane] == [limits.READ_ROWS_MIN] * 2


def test_topics_that_have_few_rows_are_refilled_together(shards: Shards) -> None:
    names = [f"small-{number}" for number in range(20)]
    for name in names:
        shards.enqueue(0, name, count=2)
    shards.run(0)
    shards.take_over()
    shards.states[0].book.read_budget.rows_max = 40
    shards.dequeue(dict.fromkeys(names, 1))
    transaction = shards.begin(0)
    assert transaction is not None
    assert len([refill for refill in transaction.refills if refill.lane]) == len(names)
