"""The rate of a job: never more than it gives in any time, nearly all of it where there is demand, and fair turns."""

from __future__ import annotations

import random
from collections import Counter
from itertools import pairwise

import pytest

from foqs.host.admission.job_rate import JobRate
from foqs.model import limits

Admitted = list[tuple[float, int]]


def most_in_excess(admitted: Admitted, rate: float) -> float:
    """The most items, over all windows, beyond what the rate gives in the window."""
    most = 0.0
    for first, (start_ms, _) in enumerate(admitted):
        count = 0
        for at_ms, items in admitted[first:]:
            count += items
            most = max(most, count - rate * (at_ms - start_ms) / 1000)
    return most


def test_no_window_has_more_than_the_rate_gives_in_it_and_in_the_burst_and_one_call() -> None:
    for seed in range(200):
        _admits_no_more_than_allowed(seed)


def _admits_no_more_than_allowed(seed: int) -> None:
    chance = random.Random(seed)
    items_per_second = chance.choice([1, 7, 100, 5_000, 100_000])
    rate = JobRate(items_per_second, 0.0)
    call_max = chance.choice([1, 10, 1_000])
    now_ms, admitted = 0.0, Admitted()
    for _ in range(300):
        now_ms += chance.choice([0.0, 0.1, 1.0, chance.random() * 3_000])
        count = chance.randint(1, call_max)
        if not rate.admit(count, now_ms):
            if chance.random() < 0.2:
                rate.refund(count)
            else:
                admitted.append((now_ms, count))
    allowed = items_per_second * limits.JOB_BURST_MS / 1000 + call_max
    assert most_in_excess(admitted, items_per_second) <= allowed + 1e-6, f"seed {seed}"


@pytest.mark.parametrize("callers_count", [1, 3, 16])
@pytest.mark.parametrize(("items_per_second", "call_items"), [(100, 1), (2_000, 100), (50_000, 1_000), (300, 1_000)])
def test_callers_who_come_back_when_they_are_told_get_the_rate_and_equal_shares(
    callers_count: int, items_per_second: int, call_items: int
) -> None:
    rate = JobRate(items_per_second, 0.0)
    chance = random.Random(callers_count)
    until_ms = max(60_000.0, 100 * callers_count * call_items * 1000 / items_per_second)
    next_ms = [0.0] * callers_count
    done: Counter[int] = Counter()
    refused_count = 0
    while (now_ms := min(next_ms)) < until_ms:
        caller = next_ms.index(now_ms)
        wait_ms = rate.admit(call_items, now_ms)
        if wait_ms:
            refused_count += 1
            next_ms[caller] = now_ms + wait_ms + chance.random() * 0.5  # The way to the client and back.
        else:
            done[caller] += call_items
            next_ms[caller] = now_ms + 0.3
    assert sum(done.values()) >= 0.95 * items_per_second * until_ms / 1000
    # Where the turns of all do not fit into the bound, they meet, and chance decides.
    all_have_turns = callers_count * call_items * 1000 / items_per_second <= limits.JOB_TURNS_MS_MAX
    assert min(done.values()) >= (0.9 if all_have_turns else 0.5) * max(done.values())
    if all_have_turns:
        assert refused_count <= 1.5 * sum(done.values()) / call_items, "a call is mostly refused once"


def test_a_refused_call_is_admitted_exactly_when_it_was_told_and_not_before() -> None:
    rate = JobRate(1_000, 0.0)
    assert rate.admit(1_000, 0.0) == 0
    wait_ms = rate.admit(10, 0.0)
    assert wait_ms == 1_000 - limits.JOB_BURST_MS
    assert JobRate.admit(rate, 10, wait_ms - 1) > 0
    assert rate.admit(10, wait_ms) == 0


def test_refused_calls_get_turns_one_behind_the_other() -> None:
    rate = JobRate(1_000, 0.0)
    rate.admit(1_000, 0.0)
    waits = [rate.admit(100, 0.0) for _ in range(4)]
    assert [later - sooner for sooner, later in pairwise(waits)] == [100, 100, 100]


def test_callers_who_never_come_back_take_no_more_than_some_seconds() -> None:
    rate = JobRate(1_000, 0.0)
    rate.admit(1_000, 0.0)
    assert max(rate.admit(1_000, 0.0) for _ in range(1_000)) <= 1_000 + limits.JOB_TURNS_MS_MAX


def test_a_changed_rate_holds_for_what_is_owed_already() -> None:
    rate = JobRate(10, 0.0)
    rate.admit(1_000, 0.0)
    assert rate.admit(1, 0.0) > 90_000
    rate.change(100_000, 1.0)
    assert rate.admit(1, 1.0) == 0
    rate.change(10, 1.0)
    assert rate.admit(1, 1.0) > 90_000
    rate.change(0, 1.0)
    assert [rate.admit(1_000_000, 1.0) for _ in range(3)] == [0, 0, 0]
    rate.change(10, 1.0)
    assert rate.admit(1, 1.0) == 0


def test_nothing_is_admitted_before_a_host_may_begin() -> None:
    rate = JobRate(1_000, 3_000.0)
    assert rate.admit(1, 0.0) == 3_000 - limits.JOB_BURST_MS
