"""When a shard's next transaction begins: slots, heavy transactions, coalescing, and how much is placed in a row."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.shard import mysql_server
from foqs.shard.mysql_server import CommitScheduler, Permit

LIGHT, HEAVY = 0, mysql_server.HEAVY_TRANSACTION_ROWS
"""Rows of a transaction."""


class Clock:
    """A loop whose clock stands still, and which calls what is due later when it is told to."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.due: list[tuple[float, Callable[[], None]]] = []

    def time(self) -> float:
        return self.now_s

    def call_soon(self, callback: Callable[[], None]) -> asyncio.Handle:
        return asyncio.get_running_loop().call_soon(callback)

    def create_future(self) -> asyncio.Future[None]:
        return asyncio.get_running_loop().create_future()

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Mock:
        entry = (delay_s, callback)
        self.due.append(entry)
        return Mock(cancel=lambda: self.due.remove(entry) if entry in self.due else None)


@asynccontextmanager
async def permitted(permit: Permit, after: int | None = None, *, is_sick: bool = False) -> AsyncIterator[None]:
    """As a writer does."""
    granted = permit.ask(after, is_sick=is_sick)
    try:
        await granted
        yield
    finally:
        permit.end()


class Transactions:
    """Each runs until it is told to end. Those in `sick` are of sick shards, those in `heavy` have many rows."""

    def __init__(self, scheduler: CommitScheduler) -> None:
        self.scheduler = scheduler
        self.running: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.failing = self.heavy = self.sick = ""

    def start(self, names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self.run(name))

    async def run(self, name: str) -> None:
        permit = self.scheduler.join()
        async with permitted(permit, is_sick=name in self.sick):
            self.running.append(name)
            if name in self.heavy:
                permit.leave_slot()
            try:
                await self.ends[name].wait()
                if name in self.failing:
                    raise ValueError(name)
            finally:
                self.running.remove(name)

    async def end(self, names: str) -> None:
        for name in names:
            self.ends[name].set()
            await self.tasks[name]
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def transactions(clock: Clock) -> Transactions:
    return Transactions(CommitScheduler(cast(Any, clock), 2))


async def test_so_many_run_at_a_time_and_the_others_follow_in_their_order(transactions: Transactions) -> None:
    transactions.start("abcde")
    await settled()
    assert transactions.running == ["a", "b"]
    await transactions.end("b")
    assert transactions.running == ["a", "c"]
    await transactions.end("ac")
    assert transactions.running == ["d", "e"]
    await transactions.end("de")


async def test_one_that_takes_long_holds_up_nobody_and_gives_back_one_slot_in_all(
    transactions: Transactions, clock: Clock
) -> None:
    transactions.start("abcd")
    await settled()
    delay_s, pass_over = clock.due[0]
    assert delay_s * 1000 == mysql_server.SLOT_MS_MAX
    pass_over()
    await settled()
    assert transactions.running == ["a", "b", "c"]
    await transactions.end("a")
    assert transactions.running == ["b", "c"]
    await transactions.end("bcd")
    assert clock.due == []


async def test_those_heavy_run_beside_the_others_up_to_a_bound(
    transactions: Transactions, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mysql_server, "HEAVY_TRANSACTIONS_MAX", 2)
    transactions.heavy = "abc"
    transactions.start("abcdef")
    await settled()
    assert transactions.running == ["a", "b", "c", "d"]  # c and d have the slots.
    await transactions.end("a")
    assert transactions.running == ["b", "c", "d"]
    await transactions.end("c")
    assert transactions.running == ["b", "d", "e"]
    transactions.tasks["b"].cancel()
    await transactions.end("def")
    assert transactions.scheduler.heavy_count == 0
    assert clock.due == []


async def test_one_that_took_too_long_already_has_no_slot_to_leave(transactions: Transactions, clock: Clock) -> None:
    permit = transactions.scheduler.join()
    async with permitted(permit):
        clock.due[0][1]()
        permit.leave_slot()
        assert transactions.scheduler.heavy_count == 0
    transactions.start("abc")
    await settled()
    assert transactions.running == ["a", "b"]
    await transactions.end("abc")


async def test_one_that_is_cancelled_or_fails_leaves_its_slot_to_the_others(transactions: Transactions) -> None:
    transactions.start("abcdef")
    await settled()
    for name in "cad":  # One that waits, one that runs, and one that waits.
        transactions.tasks[name].cancel()
    await settled()
    assert transactions.running == ["b", "e"]
    transactions.failing = "b"
    with pytest.raises(ValueError, match="b"):
        await transactions.end("b")
    await settled()
    assert transactions.running == ["e", "f"]
    await transactions.end("e")
    assert transactions.running == ["f"]
    await transactions.end("f")


async def test_one_of_a_sick_shard_neither_waits_for_a_slot_nor_takes_one(transactions: Transactions) -> None:
    transactions.sick, transactions.heavy = "cd", "d"
    transactions.start("acbd")
    await settled()
    assert sorted(transactions.running) == ["a", "b", "c", "d"]
    assert transactions.scheduler.heavy_count == 0
    await transactions.end("acbd")


async def test_the_next_one_is_told_how_long_it_waited_for_its_slot_alone(clock: Clock) -> None:
    scheduler = CommitScheduler(cast(Any, clock), 1)
    waited_s = []

    async def run() -> None:
        permit = scheduler.join()
        async with permitted(permit, LIGHT):
            waited_s.append(permit.waited_s)

    async with permitted(scheduler.join()):
        waiting = asyncio.create_task(run())
        await settled()
        clock.now_s += 0.03
    await waiting
    assert waited_s == [pytest.approx(0.03)]


@pytest.mark.parametrize(
    ("after", "enough_after", "turns"),
    [
        (None, None, 0),
        (LIGHT, None, mysql_server.COALESCE_TURNS_MAX),
        (HEAVY, None, mysql_server.COALESCE_TURNS_MAX + 1),
        (LIGHT, 0, 0),
        (LIGHT, 2, 3),
        (HEAVY, 0, 2),
    ],
)
async def test_after_a_transaction_the_loop_turns_a_few_times_unless_enough_calls_wait(
    clock: Clock, after: int | None, enough_after: int | None, turns: int
) -> None:
    """`enough_after` so many turns, or never."""
    permit = CommitScheduler(cast(Any, clock), 1).join()
    turned = 0

    def turn() -> None:
        nonlocal turned
        turned += 1
        asyncio.get_running_loop().call_soon(turn)
        if turned == enough_after:
            permit.stop_coalescing()

    asyncio.get_running_loop().call_soon(turn)
    granted = permit.ask(after, is_sick=False)
    if enough_after == 0:
        permit.stop_coalescing()
    await granted
    assert turned == turns
    assert not permit.is_coalescing
    permit.end()


async def test_a_shard_for_which_enough_calls_wait_begins_as_soon_as_it_has_its_slot(clock: Clock) -> None:
    scheduler = CommitScheduler(cast(Any, clock), 1)
    neighbour, permit = scheduler.join(), scheduler.join()
    await neighbour.ask(None, is_sick=False)
    granted = permit.ask(LIGHT, is_sick=False)
    permit.stop_coalescing()
    await settled()
    assert not granted.done()
    neighbour.end()
    assert granted.done()
    permit.end()


async def test_the_turns_of_the_loop_end_when_they_take_long(clock: Clock) -> None:
    permit = CommitScheduler(cast(Any, clock), 1).join()
    granted = permit.ask(LIGHT, is_sick=False)
    for _ in range(2):
        clock.now_s += mysql_server.COALESCE_MS_MAX / 2_500
        await asyncio.sleep(0)
        assert not granted.done()
    clock.now_s += mysql_server.COALESCE_MS_MAX / 2_500
    await asyncio.sleep(0)
    assert granted.done()
    permit.end()


async def test_one_that_is_cancelled_while_it_coalesces_leaves_its_slot(clock: Clock) -> None:
    scheduler = CommitScheduler(cast(Any, clock), 1)

    async def run() -> None:
        async with permitted(scheduler.join(), LIGHT):
            raise AssertionError("it was cancelled")

    task = asyncio.create_task(run())
    await asyncio.sleep(0)
    assert scheduler.free_slots_count == 0
    task.cancel()
    await asyncio.wait([task])
    assert scheduler.free_slots_count == 1
    assert clock.due == []


@pytest.mark.parametrize(
    ("shards_count", "transactions_max", "runs"), [(0, 1, 1), (1, 1, 1), (4, 1, 4), (4, 2, 2), (2, 4, 1), (256, 1, 8)]
)
def test_as_many_shards_take_items_at_a_time_as_have_slots_to_write_them(
    clock: Clock, shards_count: int, transactions_max: int, runs: int
) -> None:
    scheduler = CommitScheduler(cast(Any, clock), transactions_max)
    for _ in range(shards_count):
        scheduler.join()
    assert scheduler.placement_run_items == runs * mysql_server.PLACEMENT_RUN_ITEMS
    for _ in range(shards_count):
        scheduler.leave()
    assert scheduler.placement_run_items == mysql_server.PLACEMENT_RUN_ITEMS
