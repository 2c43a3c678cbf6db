"""Time in which the event loop did not turn is no server's silence."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.shard.mysql_server import LOOP_HELD_MS, TurningTime
from foqs.shard.writer import keeper
from foqs.shard.writer.keeper import Health

TICK_S = limits.TICK_MS / 1000
STALL_S = keeper.BREAKER_STALL_MS / 1000


def _tick(turning: TurningTime, health: Health, from_s: float, until_s: float) -> float:
    """As a host does; returns the time of the last tick."""
    while from_s < until_s:
        from_s += TICK_S
        health.watch(turning.tick(from_s))
    return from_s


def _watched() -> tuple[TurningTime, Health, float]:
    turning, health = TurningTime(), Health("shard-1", lambda healthy, reason: None)
    return turning, health, _tick(turning, health, 100.0, 101.0)


def test_a_loop_that_was_held_opens_no_breaker_of_a_server_that_is_well() -> None:
    turning, health, now_s = _watched()
    health.began(turning.at(now_s))
    now_s += 2
    health.watch(turning.tick(now_s))
    health.ended(turning.at(now_s), failed=False)
    assert health.healthy


def test_nor_do_many_transactions_during_each_of_which_it_was_held() -> None:
    turning, health, now_s = _watched()
    for number in range(4 * keeper.BREAKER_SAMPLES_MIN):
        health.began(turning.at(now_s))
        now_s += 2
        if number % 2:  # The answer is taken before the tick, or after it.
            health.watch(turning.tick(now_s))
        health.ended(turning.at(now_s), failed=False)
        now_s = _tick(turning, health, now_s, now_s + 0.05)
    assert health.healthy


def test_a_server_that_is_silent_while_the_loop_turns_opens_its_breaker_in_time() -> None:
    turning, health, now_s = _watched()
    health.began(turning.at(now_s))
    _tick(turning, health, now_s, now_s + STALL_S - 2 * TICK_S)
    assert health.healthy
    _tick(turning, health, now_s + STALL_S - 2 * TICK_S, now_s + STALL_S + 2 * TICK_S)
    assert not health.healthy


def test_a_server_that_was_silent_before_the_loop_was_held_and_after_it_opens_its_breaker() -> None:
    turning, health, now_s = _watched()
    health.began(turning.at(now_s))
    now_s = _tick(turning, health, now_s, now_s + STALL_S / 2)
    now_s += 5
    health.watch(turning.tick(now_s))
    assert health.healthy
    _tick(turning, health, now_s, now_s + STALL_S / 2 + TICK_S)
    assert not health.healthy


def test_ticks_that_are_late_by_little_stop_no_clock() -> None:
    turning = TurningTime()
    turning.tick(10.0)
    for number in range(1, 50):
        now_s = 10 + number * LOOP_HELD_MS / 1000
        assert turning.tick(now_s) == pytest.approx(now_s)


def test_the_clock_never_goes_back() -> None:
    turning = TurningTime()
    shown = [
        turning.tick(5.0),
        turning.at(5.05),
        turning.at(9),
        turning.tick(9.5),
        turning.at(9.51),
        turning.tick(9.55),
    ]
    assert shown == sorted(shown)
