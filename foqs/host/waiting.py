"""Waiting for a shard's transaction, with a bound."""

from __future__ import annotations

import asyncio
from collections import deque

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.shard.state.events import Completion


class Answer:
    """`completion` goes to the shards; `wait` returns once it is settled. It is open until `wait` is called."""

    __slots__ = ("_done", "_waiting", "completion")

    def __init__(self, waiting: Waiting) -> None:
        self._waiting = waiting
        self._done: asyncio.Future[None] = waiting.loop.create_future()
        self.completion = Completion(self._settled)
        self.completion.open_count += 1

    async def wait(self) -> None:
        """Raises the failure of the completion, or UnavailableError past limits.CALL_MS_MAX."""
        settle(self.completion)
        if not self._done.done():
            self._waiting.remember(self._done)
        try:
            await self._done
        finally:
            # Nobody asks any more, and a completion that knew its answer would be a cycle for the garbage collector.
            self.completion.on_done = _nobody_waits

    def _settled(self, completion: Completion) -> None:
        if self._done.done():
            return
        if completion.failure is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(completion.failure)


def settle(completion: Completion) -> None:
    """A part of the call is done that the host does itself."""
    completion.open_count -= 1
    if not completion.open_count:
        completion.on_done(completion)


def _nobody_waits(completion: Completion) -> None:
    return None


class Waiting:
    """The calls of a host that wait for a transaction. One look at the oldest costs less than a timer a call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._by_age: deque[tuple[float, asyncio.Future[None]]] = deque()

    def remember(self, done: asyncio.Future[None]) -> None:
        self._by_age.append((self.loop.time() + limits.CALL_MS_MAX / 1000, done))

    def tick(self) -> None:
        """End the waits that are over."""
        waits, now_s = self._by_age, self.loop.time()
        while waits and (waits[0][1].done() or waits[0][0] <= now_s):
            done = waits.popleft()[1]
            if not done.done():
                done.set_exception(
                    UnavailableError(
                        f"the shard has not answered for {limits.CALL_MS_MAX} ms: whether the call was done is unknown"
                    )
                )
