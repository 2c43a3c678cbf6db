"""Waiting for the transactions of shards, with a bound."""

from __future__ import annotations

import asyncio
from collections import deque

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.shard.state.events import Completion


class Answer(Completion):
    """A call's completion with a future: `done` ends with it.

    Awaiting `done` raises the failure of the whole call, or UnavailableError after limits.CALL_MS_MAX. A call that has
    passed it to no shard must not await it.
    """

    __slots__ = ("done",)

    def __init__(self, waiting: Waiting) -> None:
        # The fields of a Completion are set here, because this is on the path of every call.
        self.on_done = _end
        self.errors = {}
        self.failure = None
        self.open_count = 0
        self.done: asyncio.Future[None] = waiting.loop.create_future()
        waiting.by_age.append((waiting.loop.time() + limits.CALL_MS_MAX / 1000, self))

    def part_done(self) -> None:
        """End a part of the call that the host does itself."""
        self.open_count -= 1
        if not self.open_count:
            self.on_done(self)


def _end(completion: Completion) -> None:
    assert isinstance(completion, Answer)
    done = completion.done
    if done.done():
        return  # Its caller has left, or has waited too long.
    if completion.failure is None:
        done.set_result(None)
    else:
        done.set_exception(completion.failure)


class Waiting:
    """The answers that a host's calls wait for. One check of the oldest costs less than a timer for each call."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.by_age: deque[tuple[float, Answer]] = deque()
        """The answers with the ends of their waits, in the loop's seconds, the earliest end first."""

    def tick(self) -> None:
        """End the waits that are over."""
        by_age, now_s = self.by_age, self.loop.time()
        while by_age:
            until_s, answer = by_age[0]
            is_over = answer.done.done() or not answer.open_count
            if not is_over and until_s > now_s:
                return
            by_age.popleft()
            if not is_over:
                answer.done.set_exception(
                    UnavailableError(
                        f"the shard has not answered for {limits.CALL_MS_MAX} ms: whether the call was done is unknown"
                    )
                )
