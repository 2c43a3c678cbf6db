"""The differences between tasks and threads, for tasks; `foqs.client.sync.concurrency` is the twin for threads.

The code that uses this module is written once, for asyncio. scripts/generate_sync.py generates its blocking version,
which imports the twin; there the names lack the prefix "Async". Both modules are written by hand, because they contain
the parts that cannot be generated.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from asyncio import Queue, QueueEmpty
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from inspect import isawaitable
from types import TracebackType
from typing import Any, Self, TypeVar

from foqs.client.client_errors import ClientClosedError, check_process
from foqs.client.settling import log
from foqs.client.worker_core import HandlerKindError

__all__ = [
    "AsyncBackground",
    "AsyncHome",
    "AsyncMonitor",
    "Queue",
    "QueueEmpty",
    "finish",
    "guarded",
    "is_cancelled",
    "is_ending",
    "is_fatal",
    "run_copies",
    "run_to_the_end",
    "stop_on_signals",
]

M = TypeVar("M", bound=Callable[..., Any])
Work = Callable[[], Coroutine[Any, Any, None]]


class AsyncHome:
    """Place where a client can be used: the process that created it and the event loop that used it first."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise ClientClosedError in any other place, because its connections wake only tasks of that loop."""
        check_process(self._process_id)
        loop = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is not loop:
            ended = "has been closed" if self._loop.is_closed() else "is another one"
            raise ClientClosedError(
                f"the client belongs to the event loop that used it first, which {ended}: "
                "make a client in each loop, and close it there"
            )

    def check_end(self) -> None:
        """Raise ClientClosedError if the client cannot be closed here: only its own loop can close its connections."""
        self.check()


class AsyncMonitor:
    """State that several tasks share: `with` guards it, `wait_for` waits for a condition on it.

    Between two awaits no other task runs, so the guard does nothing here; for threads it is a lock.
    """

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        return None

    def notify_all(self) -> None:
        """Make all waiting tasks check the state again."""
        self._changed.set()

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait until the predicate holds, up to `timeout` seconds. False on a timeout.

        asyncio.timeout is not used, because it ends with a CancelledError in a cancelled task that cleans up.
        """
        over = asyncio.Event()

        def end() -> None:
            over.set()
            self._changed.set()

        timer = None if timeout is None else asyncio.get_running_loop().call_later(timeout, end)
        try:
            while not predicate():
                if over.is_set():
                    return False
                self._changed.clear()
                await self._changed.wait()
        finally:
            if timer is not None:
                timer.cancel()
        return True


def guarded(method: M) -> M:
    """Hold the monitor of the object during the method; a no-op for tasks."""
    return method


class AsyncBackground:
    """Background work in its own task, until it ends by itself or is cancelled."""

    def __init__(self, work: Work, name: str) -> None:
        self.name = name
        self._work = work
        self._task = asyncio.create_task(self._run(), name=name)

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            log.exception("%s failed", self.name)
            raise

    async def join(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait for the end, up to `timeout` seconds. True if it has ended. Raises the error of the work."""
        await asyncio.wait([self._task], timeout=timeout)
        if not self._task.done():
            return False
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error
        return True

    async def cancel(self) -> None:
        """Cancel the work and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def run_copies(work: Work, count: int, name: str, on_failure: Callable[[BaseException], None]) -> None:
    """Run `count` copies of the work concurrently. If one fails or the caller is cancelled, the others end too.

    `on_failure` is called first, with the first failure, which is then raised.
    """
    copies = [asyncio.create_task(work(), name=name) for _ in range(count)]
    try:
        await asyncio.gather(*copies)
    except BaseException as error:
        on_failure(error)
        raise
    finally:
        for copy in copies:
            copy.cancel()
        await asyncio.gather(*copies, return_exceptions=True)


async def run_to_the_end(work: Work) -> None:
    """Run the work to its end, even if the caller is cancelled meanwhile."""
    await asyncio.shield(asyncio.create_task(work()))


async def finish(result: object) -> None:
    """Await the result of a handler. Raises HandlerKindError if it cannot be awaited."""
    if not isawaitable(result):
        raise HandlerKindError(
            f"the handler returned {type(result).__name__}, which cannot be awaited: "
            "make it `async def`, or give it to foqs.Worker"
        )
    await result


def is_cancelled() -> bool:
    """True if this task itself is cancelled, and not only something that it awaited."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # The loop was closed before the task ended.
        return True
    return task is not None and task.cancelling() > 0


def is_ending() -> bool:
    """True if the interpreter is ending, so that no event loop runs any more."""
    return sys.is_finalizing()


def is_fatal(error: BaseException) -> bool:
    """True if a handler's exception that is not an Exception must end the program."""
    return not isinstance(error, asyncio.CancelledError)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT, on the main thread only, because Python allows no handlers elsewhere.

    The previous handlers are restored, except those of the loop's `add_signal_handler`, which cannot be read.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in previous:
        if loop.remove_signal_handler(number):
            previous[number] = None  # It belonged to the loop, which does not return it, so it cannot be restored.
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
