"""Quotas where the meta database is far, and where a host has died in the middle of an ask, in virtual time."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from foqs.host.admission.account import REPLAY_PERCENT
from foqs.model import meta_bounds
from foqs.model.errors import UnavailableError
from foqs.model.grants import QUOTA_WINDOW_MS
from foqs.testing.fake_sessions import FakeSessions
from tests.support.quota_world import QuotaWorld

LIMIT = 60_000
MINUTE_S = QUOTA_WINDOW_MS // 1000


def world_at(round_trip_s: float, hosts_count: int, seed: int) -> QuotaWorld:
    world = QuotaWorld(hosts_count, LIMIT, seed)
    world.away_s = round_trip_s / 2
    return world


@pytest.mark.parametrize(
    ("round_trip_s", "hosts_count", "refused_most"),
    [(0.05, 1, 0.0), (0.12, 4, 0.01), (0.2, 1, 0.0), (0.2, 4, 0.02), (0.5, 1, 0.01), (0.5, 4, 0.1)],
)
def test_a_steady_sender_at_nine_tenths_of_the_limit_gets_nearly_all_of_it(
    round_trip_s: float, hosts_count: int, refused_most: float
) -> None:
    """Four hosts at one book have it by turns, of a round trip each."""
    world = world_at(round_trip_s, hosts_count, 1)

    async def story() -> None:
        world.rates = [0.9 * LIMIT / 60 / hosts_count] * hosts_count
        await asyncio.sleep(130)

    world.run(story)
    refused_count = sum(one.count for one in world.refused)
    sent_count = sum(one.count for one in world.let_in) + refused_count
    assert refused_count <= refused_most * sent_count
    assert world.worst_minute() <= LIMIT


@pytest.mark.parametrize(
    ("round_trip_s", "hosts_count", "least"),
    [
        (0.12, 1, 0.93),
        (0.5, 4, 0.82),
        *[
            pytest.param(*case, marks=pytest.mark.deep)
            for case in ((0.05, 4, 0.93), (0.2, 1, 0.93), (0.2, 4, 0.88), (0.5, 1, 0.88))
        ],
    ],
)
def test_at_half_as_much_again_as_the_limit_most_of_it_is_used_and_hardly_more(
    round_trip_s: float, hosts_count: int, least: float
) -> None:
    world = world_at(round_trip_s, hosts_count, 2)
    until_s = 190

    async def story() -> None:
        world.rates = [1.5 * LIMIT / 60 / hosts_count] * hosts_count
        await asyncio.sleep(until_s)

    world.run(story)
    used = world.count_between(MINUTE_S, until_s) / LIMIT / (until_s - MINUTE_S) * MINUTE_S
    assert used >= least
    assert world.worst_minute() <= LIMIT * (100 + REPLAY_PERCENT) / 100


def test_a_host_that_hangs_in_the_middle_of_an_ask_does_not_take_the_quota_from_the_others() -> None:
    """Until its session is ended they let in what they did a minute ago, and then they wait until all have told."""
    world = QuotaWorld(3, LIMIT, 4)
    hung_s, until_s = 70.0, 160.0

    async def story() -> None:
        world.rates = [0.6 * LIMIT / 60 / 3] * 3
        await asyncio.sleep(hung_s)
        session = world.sessions.begin("dead#1")
        while not world.sessions.lock(session, ("quota", 1)):  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        await asyncio.sleep(until_s - hung_s)

    world.run(story)
    refused_count = sum(one.count for one in world.refused)
    assert refused_count <= 0.02 * sum(one.count for one in world.let_in)
    assert world.worst_minute() <= LIMIT * (100 + REPLAY_PERCENT) / 100
    assert [host.refused_count for host in world.hosts] == [0, 0, 0]
    assert any(host.replayed_total for host in world.hosts)


def test_a_book_that_is_locked_for_long_is_told_and_others_are_asked_meanwhile() -> None:
    world = QuotaWorld(1, LIMIT, 4)

    async def story() -> None:
        session = world.sessions.begin("dead#1")
        await world.enqueue(0, 1)
        assert world.sessions.lock(session, ("quota", 1))
        hosted = world.hosts[0]._by_number[1]
        while not world.hosts[0].refused_count:
            world.sessions.note(session)
            await world.enqueue(0, 40)
        assert hosted.is_stuck
        assert not world.hosts[0].is_away, "the meta database is there"
        world.sessions.commit(session)
        while world.hosts[0].refused_count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)

    with capture_logs() as logged:
        world.run(story)
    assert [event["event"] for event in logged].count("quota_book_away") == 1
    assert not world.refused


def test_a_session_of_the_fake_database_ends_when_it_is_silent_or_ended_and_its_host_notices() -> None:
    now_ms = 0
    sessions = FakeSessions(lambda: now_ms)
    one, other = sessions.begin("a#1"), sessions.begin("b#1")
    assert sessions.lock(one, "row")
    assert not sessions.lock(other, "row")
    now_ms = meta_bounds.META_SILENT_MS_MAX
    other = sessions.begin("b#1")
    assert sessions.lock(other, "row")
    with pytest.raises(UnavailableError):
        sessions.note(one)
    assert sessions.end_of("b#1") == 1
    with pytest.raises(UnavailableError):
        sessions.note(other)
    assert not list(sessions.holders())
