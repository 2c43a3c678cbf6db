"""Many hosts share one quota: simulated in virtual time, with the code of hosts and of the book as it is."""

from __future__ import annotations

import asyncio

import pytest

from foqs.host.admission.account import REPLAY_PERCENT, WAIT_MS_MAX
from foqs.model.grants import QUOTA_WINDOW_MS
from tests.support.quota_world import QuotaWorld

LIMIT = 60_000
SLOW = pytest.mark.slow
MINUTE_S = QUOTA_WINDOW_MS // 1000


def use(world: QuotaWorld, per_minute: float, from_s: int, until_s: int) -> float:
    """The least of what all minutes let in, of what they could have."""
    return min(world.count_between(at, at + MINUTE_S) for at in range(from_s, until_s - MINUTE_S + 1, 2)) / per_minute


@pytest.mark.parametrize(
    ("hosts_count", "seed"), [(4, 3), pytest.param(10, 1, marks=SLOW), pytest.param(1, 4, marks=SLOW)]
)
def test_at_half_as_much_again_as_the_limit_nearly_all_of_it_is_used_and_never_more(
    hosts_count: int, seed: int
) -> None:
    """The demand goes from host to host every 2 s."""
    world = QuotaWorld(hosts_count, LIMIT, seed)
    until_s = 130
    world.run(lambda: world.shift(1.5 * LIMIT, 2.0, until_s))
    assert world.worst_minute() <= LIMIT
    assert use(world, LIMIT, MINUTE_S, until_s) >= 0.95
    assert all(refusal.waited_s <= WAIT_MS_MAX / 1000 + 0.001 for refusal in world.refused)


def test_just_below_the_limit_nothing_is_refused() -> None:
    world = QuotaWorld(10, LIMIT, 2)
    world.run(lambda: world.shift(0.95 * LIMIT, 2.0, 130))
    assert world.refused == []
    assert world.worst_minute() <= LIMIT


def test_below_the_limit_hosts_wait_for_a_slow_book_and_do_not_take_it_for_away() -> None:
    """Hosts have turns at a book, and a meta database may be busy."""
    world = QuotaWorld(4, LIMIT, 1)
    world.latency_s = 0.2

    async def story() -> None:
        await world.shift(0.75 * LIMIT, 2.0, 60)
        assert [host.replayed_total for host in world.hosts] == [0] * 4

    world.run(story)
    refused_count, let_in_count = sum(one.count for one in world.refused), sum(one.count for one in world.let_in)
    assert refused_count < 0.01 * let_in_count, "the tokens of few calls are dated later than they wait for them"


def test_a_burst_of_most_of_the_limit_on_one_host_is_let_in_and_none_beyond() -> None:
    world = QuotaWorld(10, LIMIT)

    async def story() -> None:
        await asyncio.gather(*[world.enqueue(0, 100) for _ in range(920 * LIMIT // 100_000)])
        assert not world.refused
        await asyncio.gather(*[world.enqueue(at % 10, 100) for at in range(90 * LIMIT // 100_000)])

    world.run(story)
    assert 0.92 * LIMIT <= sum(one.count for one in world.let_in) <= LIMIT
    assert world.refused


def test_who_comes_back_after_the_time_that_was_told_is_let_in_on_any_host() -> None:
    world = QuotaWorld(3, LIMIT)

    async def story() -> None:
        for host, count in ((0, LIMIT // 2), (1, LIMIT // 2 - 1_000)):
            await world.enqueue(host, count)
            await asyncio.sleep(5.0)
        for host in range(3):
            await world.enqueue(host, 2_000)
            await asyncio.sleep(0.5)
        assert len(world.refused) == 3
        await asyncio.sleep(world.refused[-1].retry_after_ms / 1000)
        await world.enqueue(1, 2_000)
        assert len(world.refused) == 3
        assert world.loop.time() < MINUTE_S + 15, "and that is not much longer than a minute after the first"

    world.run(story)


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_limit_holds_within_two_seconds(factor: float) -> None:
    """Each host reads it at a time of its own within a second."""
    world = QuotaWorld(4, LIMIT, 5)
    change_s, until_s = 65, 195

    async def change() -> None:
        await asyncio.sleep(change_s)
        world.limit = round(LIMIT * factor)
        for host in range(4):
            await asyncio.sleep(0.25)
            world.limits_seen[host] = world.limit

    async def story() -> None:
        await asyncio.gather(change(), world.shift(1.5 * LIMIT * max(1.0, factor), 2.0, until_s))

    world.run(story)
    assert world.worst_minute(until_s=change_s) <= LIMIT
    assert world.worst_minute() <= max(LIMIT, world.limit)
    if factor < 1:
        # What was let in before is more than the new limit allows: nothing is, until that has become old.
        assert world.count_between(change_s + 2, change_s + 10) == 0
        assert world.worst_minute(from_s=change_s + MINUTE_S + 2) <= world.limit
        assert use(world, world.limit, change_s + MINUTE_S + 5, until_s) >= 0.95
    else:
        assert world.count_between(change_s, change_s + 2) > LIMIT / MINUTE_S * 2 * 1.3
        assert use(world, world.limit, change_s + MINUTE_S + 5, until_s) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize(("load", "hosts_count"), [(0.8, 10), (1.5, 1), pytest.param(1.5, 10, marks=SLOW)])
def test_while_the_meta_database_is_away_hosts_let_in_what_they_did_before(load: float, hosts_count: int) -> None:
    world = QuotaWorld(hosts_count, LIMIT, 6)
    away_s, back_s, until_s = 65, 125, 205

    async def outage() -> None:
        await asyncio.sleep(away_s)
        world.is_away = True
        await asyncio.sleep(back_s - away_s)
        world.is_away = False

    async def story() -> None:
        await asyncio.gather(outage(), world.shift(load * LIMIT, 2.0, until_s))

    world.run(story)
    assert world.worst_minute(until_s=away_s) <= LIMIT
    assert world.worst_minute() <= LIMIT * (100 + REPLAY_PERCENT) / 100
    assert world.worst_minute(from_s=back_s + MINUTE_S + 10) <= LIMIT
    # Who calls now is not who called a minute ago.
    least = 0.9 if hosts_count == 1 else 0.65
    assert use(world, min(load, 1) * LIMIT, away_s, back_s) >= least
    assert use(world, min(load, 1) * LIMIT, back_s + 10, until_s) >= 0.9


def test_a_host_that_was_idle_during_an_outage_does_not_get_what_others_have_used() -> None:
    world = QuotaWorld(2, LIMIT, 7)

    async def story() -> None:
        await asyncio.sleep(0.5)
        await world.enqueue(0, LIMIT)
        await asyncio.sleep(50)
        world.is_away = True
        await world.enqueue(0, LIMIT)
        await asyncio.sleep(world.refused[0].retry_after_ms / 1000)
        await world.enqueue(0, LIMIT)
        await asyncio.sleep(0.6)
        world.is_away = False
        await asyncio.sleep(0.05)
        await world.enqueue(1, LIMIT)
        await asyncio.sleep(10)
        await world.enqueue(1, LIMIT)

    world.run(story)
    assert [one.host for one in world.let_in] == [0, 0]
    assert world.worst_minute() <= LIMIT


def test_a_host_that_dies_leaves_its_tokens_to_others_after_a_minute_at_the_latest() -> None:
    world = QuotaWorld(2, LIMIT, 8)

    async def story() -> None:
        await world.enqueue(0, LIMIT // 2)
        world.cut_off.add(0)
        await world.enqueue(1, LIMIT)
        assert [refusal.host for refusal in world.refused] == [1]
        await asyncio.sleep(world.refused[0].retry_after_ms / 1000)
        await world.enqueue(1, LIMIT)

    world.run(story)
    assert [one.host for one in world.let_in] == [0, 1]
    assert world.let_in[1].at_s < MINUTE_S + 15


@pytest.mark.slow
def test_a_clock_of_the_meta_database_that_is_stepped_back_lets_nobody_in_twice() -> None:
    world = QuotaWorld(4, LIMIT, 9)

    async def step() -> None:
        await asyncio.sleep(70)
        world.clock_step_ms = -3_600_000

    async def story() -> None:
        await asyncio.gather(step(), world.shift(1.5 * LIMIT, 2.0, 200))

    world.run(story)
    assert world.worst_minute() <= LIMIT
    assert use(world, LIMIT, 135, 200) >= 0.9


def test_an_idle_namespace_costs_nothing_and_one_far_below_its_quota_little() -> None:
    world = QuotaWorld(1, LIMIT, 10)

    async def story() -> None:
        world.rates = [LIMIT / 60 / 100]
        await asyncio.sleep(60)
        world.rates = [0.0]
        await asyncio.sleep(25)
        world.asks_before = world.asks_count
        await asyncio.sleep(100)
        assert world.asks_count == world.asks_before

    world.run(story)
    assert world.asks_before <= 60
    assert not world.refused
