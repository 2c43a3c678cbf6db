"""What the clients of one process share: a room for calls that wait for items, and tasks that serve all of them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any, TypeVar

F = TypeVar("F")
P = TypeVar("P", bound="ClientProcess")


class _Call:
    """One that waits, in the line of each of its topics until there is a sign of that one."""

    def __init__(self) -> None:
        self.woken = asyncio.Event()
        self.signs: list[str] = []


class WaitingRoom:
    """For peers that tell of new items, or are asked again after a while: not every waiting call need ask.

    Of the calls that wait for items of a topic, one is woken for each sign of an item. A sign that comes while nobody
    waits is for the next one that would.
    """

    def __init__(self) -> None:
        self._waiting: dict[str, deque[_Call]] = {}
        self._unheard: set[str] = set()

    async def wait(self, topics: Sequence[str], seconds: float) -> list[str]:
        """Until woken, or for so long: the topics that there was a sign of."""
        if unheard := [topic for topic in topics if topic in self._unheard]:
            self._unheard.difference_update(unheard)
            return unheard
        call = _Call()
        for topic in topics:
            self._waiting.setdefault(topic, deque()).append(call)
        handle = asyncio.get_running_loop().call_later(seconds, call.woken.set)
        try:
            await call.woken.wait()
            return call.signs
        finally:
            handle.cancel()
            for topic in set(topics) - set(call.signs):
                self._waiting[topic].remove(call)

    async def ask(
        self,
        find: Callable[[Sequence[str]], Awaitable[list[F]]],
        topics: Sequence[str],
        count: int,
        wait_ms: int,
        poll_s: float,
    ) -> list[F]:
        """What `find` finds of the topics that it is given, at most `count`.

        Asked for all at once and after each `poll_s`, and whenever woken for those that there was a sign of. Empty when
        it found nothing for `wait_ms`.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1_000
        asked = topics
        while True:
            self.forget(asked)
            if found := await find(asked):
                break
            left_s = deadline_s - loop.time()
            if left_s <= 0:
                return found
            asked = await self.wait(topics, min(left_s, poll_s)) or topics
        if len(found) == count:
            for topic in asked:
                self.wake(topic)
        return found

    def forget(self, topics: Sequence[str]) -> None:
        """Signs that nobody has heard: who asks now for all there is of these topics needs none of them."""
        self._unheard.difference_update(topics)

    def wake(self, topic: str) -> None:
        """The one that has waited longest. Whoever finds items calls this again: there may be more."""
        if waiting := self._waiting.get(topic):
            call = waiting.popleft()
            call.signs.append(topic)
            call.woken.set()
        else:
            self._unheard.add(topic)

    def wake_each(self) -> None:
        """One for each topic that was ever waited for: there are items, but not known of which."""
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
