"""Limits of items in flight hold whatever goes wrong, and every shard has its turns (tests.sim.permits, in_flight)."""

from __future__ import annotations

import pytest

from tests.sim.in_flight import run_in_flight
from tests.sim.permits import PermitHost, PermitRun, run_permits
from tests.support.deep import deep_but

CHUNK = 100
SEEDS = 300
"""`make sim-permits` runs more."""
QUICK_SEEDS = 100
"""All others run in `make test-deep`."""
HOST_SEEDS = 60
HOST_CHUNK = 20
QUICK_HOST_SEEDS = 20
CLUSTER_SEEDS = 10
CLUSTER_CHUNK = 2
QUICK_CLUSTER_SEEDS = 2
LOAD_S_MAX = 0.5


@pytest.mark.parametrize("first", deep_but(range(QUICK_SEEDS), range(0, SEEDS, CHUNK), [2 * CHUNK]))
def test_no_more_leases_run_than_the_limit_and_all_shards_have_turns(first: int) -> None:
    for seed in range(first, first + CHUNK):
        outcome = run_permits(seed)
        assert not outcome.complaints, f"seed {seed}: {outcome.complaints}"


@pytest.mark.parametrize("first", deep_but(range(QUICK_HOST_SEEDS), range(0, HOST_SEEDS, HOST_CHUNK)))
def test_the_limits_of_a_host_hold_whatever_goes_wrong(first: int) -> None:
    for seed in range(first, first + HOST_CHUNK):
        outcome = run_in_flight(seed, load_s_max=LOAD_S_MAX)
        assert not outcome.complaints, str(outcome)


@pytest.mark.parametrize("first", deep_but((), range(40, 160, HOST_CHUNK), range(80, 160)))
def test_the_limits_of_a_host_hold_for_all_fairness_keys_of_a_topic_and_keys_keep_their_places(first: int) -> None:
    for seed in range(first, first + HOST_CHUNK):
        outcome = run_in_flight(seed, load_s_max=LOAD_S_MAX, has_fairness_keys=True)
        assert not outcome.complaints, str(outcome)


@pytest.mark.parametrize(
    "first", deep_but(range(QUICK_CLUSTER_SEEDS), range(0, CLUSTER_SEEDS, CLUSTER_CHUNK), range(6, CLUSTER_SEEDS))
)
def test_the_limits_of_a_cluster_hold_while_shards_move(first: int) -> None:
    for seed in range(first, first + CLUSTER_CHUNK):
        outcome = run_in_flight(seed, load_s_max=LOAD_S_MAX, is_cluster=True)
        assert not outcome.complaints, str(outcome)


def test_a_host_that_renews_an_epoch_uses_no_permits_that_its_book_has_given_to_others() -> None:
    for is_lost in (False, True):
        run, (first, second) = two_hosts(limit=5)
        first.queue.waiting_count = 5
        first.permits.check(first.queue)
        exchange(run, first)
        first.claim(1)
        for _ in range(3):
            first.end_lease(1)
        first.renew(1)
        second.queue.waiting_count = 1
        second.permits.check(second.queue)
        exchange(run, second)
        run.now_ms += 300
        run.look(first)
        run.send(first)
        run.arrive(first)
        # Consumers come before the host knows the answer.
        first.queue.waiting_count = 5
        first.claim(1)
        if is_lost:
            run.answer(first, is_lost=True)
        run.now_ms += 60
        second.queue.waiting_count = 5
        second.permits.check(second.queue)
        exchange(run, second)
        second.claim(2)
        assert not run.problem(), f"is_lost {is_lost}"


def two_hosts(limit: int) -> tuple[PermitRun, list[PermitHost]]:
    """Two hosts with a shard each, which have many ready items."""
    run = PermitRun(0)
    run.leases, run.ready, run.epochs, run.removed = {1: [], 2: []}, {1: 50, 2: 50}, {1: 1, 2: 1}, {}
    run.limit, run.book = limit, b""
    run.hosts = [PermitHost(run), PermitHost(run)]
    for shard_id, host in enumerate(run.hosts, 1):
        host.follow(limit)
        host.open(shard_id, 1, 50, 0)
    return run, run.hosts


def exchange(run: PermitRun, host: PermitHost) -> None:
    run.send(host)
    run.arrive(host)
    run.answer(host)
