"""The differences between tasks and threads, for tasks; `foqs.client.sync.concurrency` is the twin for threads.

The code above this module is written once, for asyncio; scripts/generate_sync.py makes the blocking one of it, which
then imports the twin, with the same names but for "Async". Both are written by hand: they hold all that cannot be
generated.
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

from foqs.client.errors import ClientClosedError, check_process
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
    """Where a client may be used: in the process that made it, and in the event loop that used it first."""

    def __init__(self) -> None:
        self._process_id = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    def check(self) -> None:
        """Raise ClientClosedError anywhere else: the loop's connections would wake nobody here, or the wrong ones."""
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
        """Raise the same where the client cannot be closed: only its own loop closes its connections."""
        self.check()


class AsyncMonitor:
    """State that several tasks share: `with` guards it, `wait_for` waits until it changes to what is needed.

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
        """Have everybody who waits look at the state again."""
        self._changed.set()

    async def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Return once the predicate holds, or after `timeout` seconds; whether it holds.

        There is no asyncio.timeout, which would end with a CancelledError in a task that was cancelled and cleans up.
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
    """Have a method hold the monitor of its object, which is nothing here."""
    return method


class AsyncBackground:
    """Work that runs beside its owner, in a task of its own, from now until it ends by itself or is cancelled."""

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
        """Wait for the end, at most `timeout` seconds; whether it has ended. Raises what it raised."""
        await asyncio.wait([self._task], timeout=timeout)
        if not self._task.done():
            return False
        if not self._task.cancelled() and (error := self._task.exception()) is not None:
            raise error
        return True

    async def cancel(self) -> None:
        """End it now and wait until it has ended."""
        self._task.cancel()
        await asyncio.wait([self._task])


async def run_copies(work: Work, count: int, name: str, on_failure: Callable[[BaseException], None]) -> None:
    """Run `count` copies of the work at a time. When one fails, or the caller is cancelled, the others end too.

    `on_failure` is told the first failure before anything else is done about it. Raises that failure.
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
    """Run the work; when the caller is cancelled meanwhile, the work still ends."""
    await asyncio.shield(asyncio.create_task(work()))


async def finish(result: object) -> None:
    """Await what a handler returned. Raises HandlerKindError when there is nothing to await."""
    if not isawaitable(result):
        raise HandlerKindError(
            f"the handler returned {type(result).__name__}, which cannot be awaited: "
            "make it `async def`, or give it to foqs.Worker"
        )
    await result


def is_cancelled() -> bool:
    """Whether this task itself is to end, and not only something that it waited for."""
    try:
        task = asyncio.current_task()
    except RuntimeError:  # Its loop was closed without it.
        return True
    return task is not None and task.cancelling() > 0


def is_ending() -> bool:
    """Whether the interpreter ends: then no event loop runs any more."""
    return sys.is_finalizing()


def is_fatal(error: BaseException) -> bool:
    """Whether something that is no Exception, and came out of a handler, is to end the program."""
    return not isinstance(error, asyncio.CancelledError)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, on the main thread; elsewhere Python allows no handlers.

    Afterwards they do what they did before, unless that was set by `add_signal_handler` of the loop, which is lost.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in previous:
        if loop.remove_signal_handler(number):
            previous[number] = None  # It was the loop's, which does not tell it: it cannot be put back.
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number, handler in previous.items():
            loop.remove_signal_handler(number)
            if handler is not None:
                signal.signal(number, handler)
