"""Responses to calls whose callers have given up, for tasks; `foqs.client.sync.late` is the twin for threads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from foqs.client.flows import Call, Flow
from foqs.client.giving_back import LATE_CONNECTIONS_MAX, LATE_ON_CLOSE_MS_MAX


class AsyncLateAnswers:
    """Waits for responses without a waiting caller, and gives their items back.

    The pool of a client owns it; the connections report expected and received responses to it. `run` executes a verb;
    the client sets it.
    """

    def __init__(self) -> None:
        self.run: Callable[[Flow[None]], Coroutine[Any, Any, None]] | None = None
        self.expected_count = 0
        """Number of responses that might still arrive."""
        self._lingering_count = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()

    def expect(self) -> None:
        """Count a response whose caller has given up."""
        self.expected_count += 1

    def lost(self, count: int) -> None:
        """Record that `count` of the responses will not arrive."""
        self.expected_count -= count
        self._changed.set()

    def came(self, call: Call, response: Any) -> None:
        """Give back the items of a response; None is the response of a failed call."""
        flow = call.late(response) if call.late is not None and response is not None else None
        if flow is not None and self.run is not None:
            task = asyncio.get_running_loop().create_task(self.run(flow), name="foqs-give-back")
            self._tasks.add(task)
            task.add_done_callback(self._given_back)
        self._changed.set()

    def _given_back(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # The error was logged, or the client is closed.
        self._changed.set()

    def may_linger(self) -> bool:
        """True if another connection is allowed to stay open only for such responses, until `lingers_no_more`."""
        if self._lingering_count >= LATE_CONNECTIONS_MAX:
            return False
        self._lingering_count += 1
        return True

    def lingers_no_more(self) -> None:
        self._lingering_count -= 1

    async def close(self) -> None:
        """Wait until all responses have arrived and their items are given back, for a limited time."""
        all_is_back = asyncio.create_task(self._until_all_is_back(), name="foqs-until-given-back")
        # No asyncio.timeout, because it ends with a CancelledError in a cancelled task, and such a task often closes
        # its client.
        await asyncio.wait([all_is_back], timeout=LATE_ON_CLOSE_MS_MAX / 1000)
        left = [all_is_back, *self._tasks]
        for task in left:
            task.cancel()
        await asyncio.wait(left)

    async def _until_all_is_back(self) -> None:
        while self.expected_count or self._tasks:
            self._changed.clear()
            await self._changed.wait()
