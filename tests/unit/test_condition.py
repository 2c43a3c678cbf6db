"""When a host is live, started and ready."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from foqs.background.service import ServiceState
from foqs.host.metrics.condition import Condition, Pulse
from foqs.model import limits


class Case:
    """A host of two shards, healthy and owned, by its parts."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.state = ServiceState.RUNNING
        self.writers: dict[int, Any] = {
            shard_id: SimpleNamespace(shard=object(), health=SimpleNamespace(healthy=True)) for shard_id in range(2)
        }
        self.pulse = Pulse(lambda: self.now_s)
        shards: Any = SimpleNamespace(writers=self.writers)
        self.condition = Condition(self.pulse, shards, lambda: self.state)


@pytest.fixture
def case() -> Case:
    return Case()


def test_a_loop_that_turned_within_the_bound_is_live_whatever_else_is(case):
    case.state = ServiceState.NEW
    case.now_s += limits.LOOP_SILENCE_MS_MAX / 1000
    assert case.condition.not_live() is None


def test_a_loop_that_has_not_turned_for_longer_is_neither_live_nor_ready(case):
    case.now_s += limits.LOOP_SILENCE_MS_MAX / 1000 + 0.5
    assert case.condition.not_live() == "the event loop has not turned for 5500 ms; allowed are 5000"
    assert case.condition.not_ready() == case.condition.not_live()
    case.pulse.beat(case.now_s)
    assert case.condition.not_live() is None


def test_one_shard_that_is_owned_and_healthy_is_enough_to_be_ready(case):
    case.writers[0].shard = None
    assert case.condition.not_ready() is None
    case.writers[1].health.healthy = False
    assert "none of the 2 shards is healthy here: 1 owned" in case.condition.not_ready()


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (ServiceState.NEW, "the host is starting"),
        (ServiceState.DRAINING, "the host is draining"),
        (ServiceState.STOPPED, "the host has stopped"),
    ],
)
def test_a_host_that_does_not_run_is_not_ready(case, state, reason):
    if state is not ServiceState.NEW:
        assert case.condition.not_ready() is None
    case.state = state
    assert case.condition.not_ready() == reason


def test_a_host_that_has_started_stays_started(case):
    case.state = ServiceState.NEW
    assert case.condition.not_started() == "the host is starting"
    for state in (ServiceState.RUNNING, ServiceState.DRAINING, ServiceState.STOPPED):
        case.state = state
        assert case.condition.not_started() is None
