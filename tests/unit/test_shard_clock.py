"""The clocks of a shard: the server's as far as it is proven, and the steady one that never steps."""

from __future__ import annotations

import pytest

from foqs.model.clock import Now
from foqs.shard.writer import keeper
from foqs.shard.writer.keeper import ShardClock

HOUR_MS = 3_600_000


@pytest.fixture
def clock() -> ShardClock:
    """Opened at 100 s of the monotonic clock, in 10 ms, when the server's clock showed 5,000 s."""
    clock = ShardClock()
    clock.start(99.99, 5_000_000, 700_000, 100.0)
    return clock


def shown(now: Now) -> tuple[int, int]:
    return now.server_ms, now.steady_ms


def test_the_steady_clock_goes_on_from_what_the_last_owner_wrote(clock: ShardClock) -> None:
    assert shown(clock.at(100.0)) == (5_000_000, 700_000)
    assert shown(clock.at(101.5)) == (5_001_500, 701_500)


@pytest.mark.parametrize("step_ms", [HOUR_MS, -HOUR_MS, 5_000, -5_000])
def test_a_step_of_the_servers_clock_moves_the_servers_clock_alone(clock: ShardClock, step_ms: int) -> None:
    found_ms = clock.probed(101.0, 5_001_000 + step_ms, 101.001)
    assert abs(found_ms - step_ms) <= 11
    assert clock.steps_count == 1
    now = clock.at(102.0)
    assert now.steady_ms == 702_000
    assert abs(now.server_ms - (5_002_000 + step_ms)) <= 1


def test_a_step_is_told_once(clock: ShardClock) -> None:
    assert clock.probed(101.0, 5_001_000 + HOUR_MS, 101.001)
    assert clock.probed(102.0, 5_002_000 + HOUR_MS, 102.001) == 0
    assert clock.steps_count == 1


@pytest.mark.parametrize("answer_after_ms", [0, 2_500, 5_000])
def test_a_slow_probe_does_not_move_the_clock_ahead_of_the_server(clock: ShardClock, answer_after_ms: int) -> None:
    """The server reads its clock at any moment while the probe is under way."""
    clock.probed(101.0, 5_001_000, 101.0)
    assert clock.probed(110.0, 5_010_000 + answer_after_ms, 115.0) == 0
    assert clock.at(120.0).server_ms == 5_020_000


def test_doubt_of_the_opening_is_no_step(clock: ShardClock) -> None:
    """Its image was old when it was complete: the first probe moves the clock on, which nothing has moved."""
    clock.start(0.0, 5_000_000, 0, 30.0)
    assert clock.probed(31.0, 5_030_000, 31.001) == 0
    assert clock.at(31.001).server_ms >= 5_029_999


def test_little_is_no_step(clock: ShardClock) -> None:
    for number in range(20):
        drifted_ms = (number + 1) * keeper.CLOCK_STEP_MS_MIN // 2
        at_s = 101.0 + number
        assert clock.probed(at_s, 5_000_000 + (number + 1) * 1_000 + drifted_ms, at_s + 0.001) == 0
    assert clock.steps_count == 0


def test_a_moment_of_the_steady_clock_is_told_by_the_servers() -> None:
    assert Now(5_000, 700).on_server(1_000) == 5_300
