"""The breaker of a shard: opens for slow, failing and hanging transactions, closes after a good probe."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from foqs.shard.writer import keeper
from foqs.shard.writer.keeper import Health


@pytest.fixture
def changes() -> list[bool]:
    return []


@pytest.fixture
def health(changes: list[bool]) -> Health:
    return Health("shard-1", lambda healthy, reason: changes.append(healthy))


def run(health: Health, began_s: float, seconds: float, *, failed: bool = False) -> float:
    health.began(began_s)
    health.ended(began_s + seconds, failed=failed)
    return began_s + seconds


def test_it_stays_closed_for_fast_transactions(health: Health, changes: list[bool]) -> None:
    now_s = 0.0
    for _ in range(1_000):
        now_s = run(health, now_s, 0.02)
    assert health.healthy
    assert changes == []


def test_it_opens_when_the_mean_time_is_over_its_limit(health: Health, changes: list[bool]) -> None:
    now_s = 0.0
    for _ in range(keeper.BREAKER_SAMPLES_MIN):
        assert health.healthy
        now_s = run(health, now_s, keeper.BREAKER_MEAN_MS_MAX / 1000 + 0.01)
    assert health.state == "open"
    assert changes == [False]


def test_it_opens_when_too_many_transactions_fail(health: Health) -> None:
    now_s = 0.0
    for number in range(keeper.BREAKER_SAMPLES_MIN):
        now_s = run(health, now_s, 0.001, failed=number > 0)
    assert not health.healthy


def test_it_opens_for_failures_in_a_row_however_many_went_well_before(health: Health) -> None:
    now_s = 0.0
    for _ in range(100):
        now_s = run(health, now_s, 0.01)
    for _ in range(keeper.BREAKER_SAMPLES_MIN):
        assert health.healthy
        now_s = run(health, now_s, 0.01, failed=True)
    assert not health.healthy


def test_failures_older_than_the_window_do_not_count(health: Health) -> None:
    now_s = 0.0
    for _ in range(keeper.BREAKER_SAMPLES_MIN - 1):
        now_s = run(health, now_s, 0.001, failed=True)
    now_s += keeper.BREAKER_WINDOW_MS / 1000
    for number in range(keeper.BREAKER_SAMPLES_MIN):
        now_s = run(health, now_s, 0.001, failed=number == 0)
    assert health.healthy


def test_it_opens_for_a_transaction_that_hangs_before_that_ends(health: Health, changes: list[bool]) -> None:
    health.began(10.0)
    health.watch(9.999 + keeper.BREAKER_STALL_MS / 1000)
    assert health.healthy
    health.watch(10.001 + keeper.BREAKER_STALL_MS / 1000)
    assert changes == [False]
    # What ends late began before the breaker opened: it says nothing of now.
    health.ended(40.0, failed=False)
    assert not health.healthy


def test_it_opens_for_a_transaction_that_began_late_because_its_server_answers_nobody(health: Health) -> None:
    stall_s = keeper.BREAKER_STALL_MS / 1000
    health.began(10.4)
    health.watch(10.399 + stall_s, silent_since_s=10.5)
    assert health.healthy, "a neighbour had an answer since"
    health.watch(9.999 + stall_s, silent_since_s=10.0)
    assert health.healthy
    health.watch(10.001 + stall_s, silent_since_s=10.0)
    assert not health.healthy


def test_a_probe_is_wanted_after_a_pause_and_closes_it_when_answered_in_time(
    health: Health, changes: list[bool]
) -> None:
    health.trip(5.0, "its session is lost")
    assert not health.wants_probe(5.0 + keeper.BREAKER_PROBE_MS / 1000 - 0.001)
    at_s = 5.0 + keeper.BREAKER_PROBE_MS / 1000
    assert health.wants_probe(at_s)
    health.began(at_s)
    assert health.state == "half-open"
    health.ended(at_s + 0.01, failed=False)
    assert health.healthy
    assert changes == [False, True]


@pytest.mark.parametrize(("seconds", "failed"), [(0.001, True), (keeper.BREAKER_MEAN_MS_MAX / 1000 + 0.1, False)])
def test_a_probe_that_fails_or_is_slow_leaves_it_open(health: Health, seconds: float, failed: bool) -> None:
    health.trip(5.0, "its session is lost")
    ended_s = run(health, 6.0, seconds, failed=failed)
    assert health.state == "open"
    assert not health.wants_probe(ended_s)
    assert health.opened_count == 1


def test_what_ends_well_before_a_probe_is_wanted_leaves_it_open(health: Health) -> None:
    """A full disk takes what deletes."""
    health.trip(5.0, "its disk is full")
    run(health, 5.1, 0.001)
    assert health.state == "open"
    assert health.wants_probe(5.0 + keeper.BREAKER_PROBE_MS / 1000)


def test_probes_become_rarer_while_what_comes_after_them_fails_and_not_for_ever(health: Health) -> None:
    def pause_ms(tripped_s: float) -> int:
        health.trip(tripped_s, "its disk is full")
        step_s = keeper.BREAKER_PROBE_MS / 1000
        return next(n for n in range(1, 20) if health.wants_probe(tripped_s + n * step_s)) * keeper.BREAKER_PROBE_MS

    now_s, pauses_ms = 5.0, []
    for _ in range(5):
        pauses_ms.append(pause_ms(now_s))
        now_s = run(health, now_s + pauses_ms[-1] / 1000, 0.001) + 0.1
        assert health.healthy
    first_ms, most_ms = keeper.BREAKER_PROBE_MS, keeper.BREAKER_PROBE_MS * keeper.BREAKER_PROBE_FACTOR_MAX
    assert pauses_ms == [first_ms, 2 * first_ms, most_ms, most_ms, most_ms]
    assert pause_ms(now_s + keeper.BREAKER_WINDOW_MS / 1000) == first_ms


def test_a_shard_that_is_opened_anew_begins_well_and_nobody_is_told(health: Health, changes: list[bool]) -> None:
    for number in range(keeper.BREAKER_SAMPLES_MIN - 1):
        run(health, float(number), 0.001, failed=True)
    health.began(10.0)
    health.reset()
    health.watch(10.0 + keeper.BREAKER_STALL_MS)
    run(health, 100.0, 0.001, failed=True)
    assert health.healthy, "what was before does not count"
    health.trip(200.0, "it is full")
    health.reset()
    assert health.healthy
    assert changes == [False]
    assert health.opened_count == 1


class _Stub:
    """Three names for states, without a rule: in place of pybreaker's breaker."""

    def __init__(self, **_: object) -> None:
        self.current_state = "closed"

    def open(self) -> None:
        self.current_state = "open"

    def half_open(self) -> None:
        self.current_state = "half-open"

    def close(self) -> None:
        self.current_state = "closed"

    def call(self, work: Callable[[], None]) -> None:
        work()


def test_the_rules_of_the_states_are_those_of_pybreaker(monkeypatch: pytest.MonkeyPatch) -> None:
    """With names for states in its place, no breaker opens."""
    monkeypatch.setattr(keeper.pybreaker, "CircuitBreaker", _Stub)
    health = Health("shard-1", lambda healthy, reason: None)
    with suppress(Exception):
        health.trip(1.0, "its session is lost")
    assert health.healthy


def test_a_probe_that_the_breaker_did_not_let_through_is_refused(health: Health, changes: list[bool]) -> None:
    """What ends well while it is open is not heard, and what trips it once more changes nothing."""
    health.trip(5.0, "its session is lost")
    health.trip(5.1, "its disk is full")
    assert (health.reason, health.opened_count, changes) == ("its session is lost", 1, [False])
    run(health, 5.2, 0.001, failed=True)
    assert health.wants_probe(5.0 + keeper.BREAKER_PROBE_MS / 1000), "and begins no new pause"


def test_a_reset_closes_it_without_a_word(health: Health, changes: list[bool]) -> None:
    health.trip(5.0, "its session is lost")
    health.began(6.0)
    health.reset()
    assert (health.state, health.healthy, changes) == ("closed", True, [False])
