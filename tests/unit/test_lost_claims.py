"""When the chaos lets the checker excuse at-most-once items that no consumer got."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from loadtest.chaos import cluster_faults, host_faults, server_faults
from loadtest.chaos.cluster_room import Layout
from loadtest.chaos.fault import Fault
from loadtest.chaos.lost_claims import LOSING_EVENTS, can_be_lost

SMALL = Layout(2, 1)
LOSING: dict[str, Callable[[random.Random], Fault[Any]]] = {
    "the only host killed": host_faults.HostKilled,
    "the only host restarted": host_faults.HostRestarted,
    "one of several killed": partial(cluster_faults.HostKilled, SMALL),
    "one of several restarted": partial(cluster_faults.HostRestarted, SMALL),
    "a guest that leaves": partial(cluster_faults.GuestComes, SMALL),
}
KEEPING: dict[str, Callable[[random.Random], Fault[Any]]] = {
    "the only host stopped": host_faults.HostStopped,
    "one of several stopped": partial(cluster_faults.HostStopped, SMALL),
    "a shard moved": partial(cluster_faults.ShardMoved, SMALL),
    "a server killed": server_faults.ServerKilled,
}


@pytest.mark.parametrize("name", LOSING)
def test_a_host_that_ended_can_have_lost_claims_of_which_it_logged_nothing(name: str) -> None:
    assert can_be_lost([LOSING[name](random.Random(1))], Counter(), Counter())


@pytest.mark.parametrize("name", KEEPING)
def test_a_host_that_lives_has_lost_claims_only_if_it_says_so(name: str) -> None:
    faults = [KEEPING[name](random.Random(1))]
    assert not can_be_lost(faults, Counter(), Counter(session_lost=3))
    for event in LOSING_EVENTS:
        assert can_be_lost(faults, Counter(), Counter([event])), event


def test_what_was_logged_before_the_round_excuses_nothing_in_it() -> None:
    for event in LOSING_EVENTS:
        logged = Counter([event])
        assert not can_be_lost([], logged, logged.copy()), event
        assert can_be_lost([], logged, logged + logged), event


def test_hosts_log_each_of_the_events() -> None:
    sources = "".join(path.read_text() for path in (Path(__file__).parents[2] / "foqs").rglob("*.py"))
    assert all(f'"{event}"' in sources for event in LOSING_EVENTS)
