"""Calls that wait for tokens of a quota: their order and bounds, and what becomes of them when something ends."""

from __future__ import annotations

import asyncio

import pytest

from foqs.host.admission.account import WAIT_MS_MAX
from foqs.model import limits
from foqs.model.errors import OverloadedError, RateLimitedError, UnavailableError
from foqs.model.grants import GrantBook
from tests.support.quota_world import NUMBER, QuotaWorld

LIMIT = 1_000


def test_calls_are_let_in_in_their_order_and_a_large_one_is_not_overtaken() -> None:
    world = QuotaWorld(1, LIMIT)

    async def story() -> None:
        await asyncio.gather(*[world.enqueue(0, count) for count in (400, 1, 500, 2)])

    world.run(story)
    assert [one.count for one in world.let_in] == [400, 1, 500, 2]


def test_a_call_whose_caller_leaves_spends_nothing() -> None:
    world = QuotaWorld(1, LIMIT)

    async def story() -> None:
        gone = asyncio.create_task(world.enqueue(0, 600))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0.2)
        await world.enqueue(0, 1_000)

    world.run(story)
    assert [one.count for one in world.let_in] == [1_000]


def test_more_calls_than_may_wait_are_refused_and_told_the_truth(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "QUOTA_CALLS_WAITING_MAX", 3)
    world = QuotaWorld(1, LIMIT)
    refused: list[Exception] = []

    async def call(count: int) -> None:
        try:
            await world.hosts[0].wait(world.namespace(0), count)
        except (OverloadedError, RateLimitedError) as error:
            refused.append(error)

    async def story() -> None:
        assert world.hosts[0].admit(world.namespace(0), 1) is None
        await asyncio.gather(*[call(200) for _ in range(5)])
        assert [type(error) for error in refused] == [OverloadedError] * 2
        assert all(error.retry_after_ms == WAIT_MS_MAX for error in refused)
        refused.clear()
        # The book says now that the quota is used up.
        await asyncio.gather(*[call(500) for _ in range(5)])
        assert [type(error) for error in refused] == [RateLimitedError] * 5
        assert world.hosts[0].waiting_count == 0

    world.run(story)


def test_a_host_that_drains_gives_back_what_it_has_in_hand() -> None:
    world = QuotaWorld(2, LIMIT)

    async def story() -> None:
        world.call_items = 1
        world.rates = [8.0, 0.0]
        await asyncio.sleep(10)
        world.rates = [0.0, 0.0]

    world.run(story)
    spent = sum([one.count for one in world.let_in])
    assert 0 < spent < LIMIT
    assert GrantBook.unpack(world.books[NUMBER]).count == spent


def test_calls_that_wait_when_the_host_ends_are_told_that_nothing_was_done() -> None:
    world = QuotaWorld(1, LIMIT)
    told: list[UnavailableError] = []

    async def call() -> None:
        assert world.hosts[0].admit(world.namespace(0), 1) is None
        try:
            await world.hosts[0].wait(world.namespace(0), 1)
        except UnavailableError as error:
            told.append(error)

    async def story() -> None:
        waits = asyncio.create_task(call())
        await asyncio.sleep(0)
        await world.hosts[0].stop()
        await waits

    world.run(story)
    assert [error.nothing_done for error in told] == [True]


@pytest.mark.deep
def test_a_lost_book_is_told_what_hosts_have_spent_before_it_grants_again() -> None:
    world = QuotaWorld(4, 60_000, 11)

    async def lose() -> None:
        await asyncio.sleep(70)
        world.books.clear()

    async def story() -> None:
        await asyncio.gather(lose(), world.shift(90_000, 2.0, 150))

    world.run(story)
    assert world.worst_minute(until_s=70) <= 60_000
    assert world.worst_minute() <= 60_000 * 1.05


def test_a_namespace_that_is_gone_is_forgotten_and_so_is_an_idle_one() -> None:
    world = QuotaWorld(1, LIMIT)

    async def story() -> None:
        await world.enqueue(0, 1)
        world.hosts[0].forget({NUMBER})
        assert NUMBER in world.hosts[0]._by_number, "it has let something in within the last minute"
        await asyncio.sleep(75)
        world.hosts[0].forget({NUMBER})
        assert NUMBER not in world.hosts[0]._by_number
        await world.enqueue(0, 1)
        world.hosts[0].forget(set())
        assert NUMBER not in world.hosts[0]._by_number

    world.run(story)
