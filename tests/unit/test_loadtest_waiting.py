"""Peers' clients that wait: a sign of an item reaches one of them, whenever it comes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from loadtest.peers.waiting import WaitingRoom
from tests.support.waiting import until

FOR_EVER_S = 600.0


class Store:
    """Topics of its items, at most one of which is given at a time, and what was asked for."""

    def __init__(self) -> None:
        self.items: list[str] = []
        self.asked: list[list[str]] = []
        self.on_ask = lambda: None

    async def find(self, topics: Sequence[str]) -> list[str]:
        self.asked.append(list(topics))
        found = [item for item in self.items if item in topics][:1]
        for item in found:
            self.items.remove(item)
        self.on_ask()
        await asyncio.sleep(0)
        return found

    async def until_asked(self, times: int) -> None:
        await until(lambda: len(self.asked) == times)


async def test_who_waits_for_many_topics_asks_again_for_the_one_with_a_sign() -> None:
    room, store = WaitingRoom(), Store()
    asking = asyncio.create_task(room.ask(store.find, ["a", "b", "c"], 10, 60_000, FOR_EVER_S))
    await store.until_asked(1)
    store.items = ["b"]
    room.wake("b")
    assert await asking == ["b"]
    assert store.asked == [["a", "b", "c"], ["b"]]


async def test_a_sign_that_comes_while_the_answer_is_on_its_way_is_not_lost() -> None:
    room, store = WaitingRoom(), Store()

    def comes_too_late_for_this_answer() -> None:
        if len(store.asked) == 1:
            store.items = ["a"]
            room.wake("a")

    store.on_ask = comes_too_late_for_this_answer
    assert await room.ask(store.find, ["a"], 1, 60_000, FOR_EVER_S) == ["a"]


async def test_of_two_that_wait_each_sign_wakes_one() -> None:
    room, store = WaitingRoom(), Store()
    asking = [asyncio.create_task(room.ask(store.find, ["a", "b"], 10, 60_000, FOR_EVER_S)) for _ in range(2)]
    await store.until_asked(2)
    store.items = ["a"]
    room.wake("a")
    await store.until_asked(3)
    store.items += ["b"]
    room.wake("b")
    assert await asyncio.gather(*asking) == [["a"], ["b"]]


async def test_who_got_all_that_it_asked_for_passes_the_sign_on() -> None:
    room, store = WaitingRoom(), Store()
    asking = [asyncio.create_task(room.ask(store.find, ["a"], 1, 60_000, FOR_EVER_S)) for _ in range(2)]
    await store.until_asked(2)
    store.items = ["a", "a"]
    room.wake("a")
    assert await asyncio.gather(*asking) == [["a"], ["a"]]


async def test_who_waits_long_enough_gets_nothing() -> None:
    room, store = WaitingRoom(), Store()
    assert await room.ask(store.find, ["a"], 1, 0, FOR_EVER_S) == []
    assert await room.wait(["a"], 0.001) == []
