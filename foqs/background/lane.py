"""Threads for calls that block."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple, TypeVar

from foqs.model.errors import OverloadedError, UnavailableError

T = TypeVar("T")


class LaneBounds(NamedTuple):
    """The bounds of the calls that a caller waits for."""

    waiting_max: int
    """Calls that can wait while each thread runs one."""
    call_ms_max: int
    """Time limit for a call with its wait, in milliseconds."""
    retry_after_ms: int
    """The retry_after_ms of a call that is refused."""
    target: str
    """The server that the calls wait for, as errors name it."""


class Lane:
    """Threads for blocking calls of one purpose, which thus wait for no call of another purpose.

    The event loop turns while a caller waits. Each thread starts with its first call.
    """

    __slots__ = ("_bounds", "_executor", "_open_count", "_threads_count")

    def __init__(self, name: str, threads_count: int = 1, bounds: LaneBounds | None = None) -> None:
        """`name` is that of the threads; `bounds` are those of `call`."""
        self._executor = ThreadPoolExecutor(threads_count, thread_name_prefix=name)
        self._threads_count = threads_count
        self._bounds = bounds
        self._open_count = 0
        """Calls within bounds that wait or run."""

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `work` after all earlier calls; the future ends with it. Call this on the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    async def call(self, work: Callable[[], T]) -> T:
        """Run `work` within the bounds of the lane.

        Raises OverloadedError at once if too many calls wait, and UnavailableError, with the outcome unknown, if it has
        not ended in time.
        """
        bounds = self._bounds
        assert bounds is not None, "the lane has bounds"
        if self._open_count >= self._threads_count + bounds.waiting_max:
            raise OverloadedError(
                f"{self._open_count} calls wait for {bounds.target}, which is the limit: nothing was done, try again",
                retry_after_ms=bounds.retry_after_ms,
            )
        self._open_count += 1
        # It counts until its thread is free, however soon its caller gives up.
        call = self.run(work)
        call.add_done_callback(self._ended)
        await asyncio.wait([call], timeout=bounds.call_ms_max / 1000)
        if not call.done():
            raise UnavailableError(
                f"{bounds.target} has not answered for {bounds.call_ms_max} ms: whether the call was done is unknown"
            )
        return call.result()

    def end(self, last: Callable[[], object] | None = None) -> None:
        """Let the threads end after all begun calls, and after `last`. Do not wait for them, because they can hang."""
        if last is not None:
            self.run(last)
        self._executor.shutdown(wait=False)

    def join(self) -> None:
        """End the threads, which are idle. Blocks while one is not."""
        self._executor.shutdown(wait=True)

    async def stop(self, *, drop: bool = False) -> None:
        """Return once the threads have ended, which takes as long as a server hangs. Drop calls that wait if `drop`."""
        await asyncio.to_thread(self._executor.shutdown, wait=True, cancel_futures=drop)

    def _ended(self, call: asyncio.Future[T]) -> None:
        self._open_count -= 1
        if not call.cancelled():
            call.exception()  # Its caller has possibly given up, and nobody else asks for it.
