"""The slots of a server: so many transactions at a time, and none that holds up the others for long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.model import limits
from foqs.server.slots import ServerSlots


class Clock:
    """Calls what is due when it is told to."""

    def __init__(self) -> None:
        self.due: list[tuple[float, Callable[[], None]]] = []

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Mock:
        entry = (delay_s, callback)
        self.due.append(entry)
        return Mock(cancel=lambda: self.due.remove(entry) if entry in self.due else None)


class Transactions:
    """Each runs until it is told to end."""

    def __init__(self, slots: ServerSlots) -> None:
        self.slots = slots
        self.running: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self.failing = ""
        self.of_many_rows = ""

    def start(self, names: str) -> None:
        for name in names:
            self.ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self.run(name))

    async def run(self, name: str) -> None:
        async with self.slots.slot() as slot:
            self.running.append(name)
            if name in self.of_many_rows:
                slot.release_slot_early()
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
    return Transactions(ServerSlots(cast(Any, clock), 2))


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
    assert delay_s * 1000 == limits.SLOT_MS_MAX
    pass_over()
    await settled()
    assert transactions.running == ["a", "b", "c"]
    await transactions.end("a")
    assert transactions.running == ["b", "c"]
    await transactions.end("bcd")
    assert clock.due == []


async def test_those_of_many_rows_run_beside_the_others_up_to_a_bound(
    transactions: Transactions, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "HEAVY_TRANSACTIONS_MAX", 2)
    transactions.of_many_rows = "abc"
    transactions.start("abcdef")
    await settled()
    assert transactions.running == ["a", "b", "c", "d"]  # c and d have the slots.
    await transactions.end("a")
    assert transactions.running == ["b", "c", "d"]
    await transactions.end("c")
    assert transactions.running == ["b", "d", "e"]
    transactions.tasks["b"].cancel()
    await transactions.end("def")
    assert transactions.slots.heavy_count == 0
    assert clock.due == []


async def test_one_that_took_too_long_already_has_no_slot_to_step_aside_from(
    transactions: Transactions, clock: Clock
) -> None:
    async with transactions.slots.slot() as slot:
        clock.due[0][1]()
        slot.release_slot_early()
        assert transactions.slots.heavy_count == 0
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
