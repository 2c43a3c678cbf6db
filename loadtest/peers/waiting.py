"""Calls of one process that wait for items of a topic: one of them is woken for each sign of an item."""

from __future__ import annotations

import asyncio
from collections import deque


class WaitingRoom:
    """For peers that tell of new items, or are asked again after a while: not every waiting call need ask."""

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


def _wake(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)
