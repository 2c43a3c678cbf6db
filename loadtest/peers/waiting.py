"""What the clients of one process share: a room for calls that wait for items, and tasks that serve all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

F = TypeVar("F")
P = TypeVar("P", bound="ClientProcess")


class WaitingRoom:
    """For peers that tell of new items, or are asked again after a while: not every waiting call need ask.

    Of the calls that wait for items of a topic, one is woken for each sign of an item.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    async def wait(self, topic: str, seconds: float) -> None:
        """Until woken, or for so long."""
        woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(topic, deque())
        waiting.append(woken)
        handle = woken.get_loop().call_later(seconds, _wake, woken)
        try:
            await woken
        finally:
            handle.cancel()
            if woken in waiting:
                waiting.remove(woken)

    async def ask(
        self, find: Callable[[], Awaitable[list[F]]], topic: str, count: int, wait_ms: int, poll_s: float
    ) -> list[F]:
        """What `find` finds, at most `count`: asked at once, whenever woken, and after each `poll_s` at the latest.

        Empty when it found nothing for `wait_ms`.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1_000
        while not (found := await find()):
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return found
            await self.wait(topic, min(left_s, poll_s))
        if len(found) == count:
            self.wake(topic)
        return found

    def wake(self, topic: str) -> None:
        """The one that has waited longest. Whoever finds items calls this again: there may be more."""
        waiting = self._waiting.get(topic)
        while waiting:
            woken = waiting.popleft()
            if not woken.done():
                woken.set_result(None)
                return

    def wake_each(self) -> None:
        """One for each topic: there are items, but not known of which."""
        for topic in self._waiting:
            self.wake(topic)


class ClientProcess:
    """Of all clients of a process together. Its tasks begin when they are first needed."""

    def __init__(self) -> None:
        self.room = WaitingRoom()
        self.is_over = False
        self._clients_count = 0
        self._tasks: dict[str, asyncio.Task[Any]] = {}

    def join(self) -> None:
        self._clients_count += 1

    async def leave(self) -> None:
        """The last client ends it."""
        self._clients_count -= 1
        if self._clients_count == 0:
            self.is_over = True
            await self._end()

    def _begin(self, name: str, work: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Unless it has begun."""
        if name not in self._tasks:
            self._tasks[name] = asyncio.create_task(work(), name=name)

    async def _end(self) -> None:
        for task in self._tasks.values():
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)


def joined(process: P | None, begin: Callable[[], P]) -> P:
    """It, or a new one where there is none or its last client has left; with one client more."""
    if process is None or process.is_over:
        process = begin()
    process.join()
    return process


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
