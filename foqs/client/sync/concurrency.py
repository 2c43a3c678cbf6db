"""The differences between tasks and threads, for threads; `foqs.client.aio.concurrency` is the twin for tasks.

This module is written by hand, like that one: see there.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
import threading
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import Empty as QueueEmpty
from queue import SimpleQueue as Queue
from types import FrameType

from foqs.client.errors import check_process
from foqs.client.settling import log
from foqs.client.sync.monitor import Monitor, guarded
from foqs.client.worker_core import HandlerKindError

__all__ = [
    "Background",
    "Home",
    "Monitor",
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


class Home:
    """Where a client may be used: in any thread of the process that made it."""

    def __init__(self) -> None:
        self._process_id = os.getpid()

    def check(self) -> None:
        """Raise ClientClosedError anywhere else."""
        check_process(self._process_id)

    def check_end(self) -> None:
        """Do nothing: a fork closes its copies of the sockets, and leaves those of its parent alone."""


class Background:
    """Work that runs beside its owner, in a thread of its own, from now until it ends by itself."""

    def __init__(self, work: Callable[[], None], name: str) -> None:
        self.name = name
        self._work = work
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._work()
        except BaseException as error:
            log.exception("%s failed", self.name)
            self._error = error

    def join(self, timeout: float | None = None) -> bool:
        """Wait for the end, at most `timeout` seconds; whether it has ended. Raises what it raised."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> None:
        """Leave it to itself: a thread cannot be ended from outside. It does not keep the process from ending."""


def run_copies(work: Callable[[], None], count: int, name: str, on_failure: Callable[[BaseException], None]) -> None:
    """Run `count` copies of the work at a time, each in a thread, and wait for all of them.

    `on_failure` is told the first failure, of a copy or of this thread (such as Ctrl-C), before the others are waited
    for: it has them end. Raises that failure. No thread keeps the process from ending.
    """
    outcomes = Queue[BaseException | None]()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            outcomes.put(error)
        else:
            outcomes.put(None)

    threads = [threading.Thread(target=run, name=f"{name}-{number}", daemon=True) for number in range(count)]
    try:
        for thread in threads:
            thread.start()
        for _ in threads:
            if (failure := outcomes.get()) is not None:
                raise failure
    except BaseException as error:
        on_failure(error)
        for thread in threads:
            if thread.ident is not None:
                thread.join()
        raise


def run_to_the_end(work: Callable[[], None]) -> None:
    """Run the work: nothing cancels a thread."""
    work()


def finish(result: object) -> None:
    """Look at what a handler returned. Raises HandlerKindError when the handler has not really run."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise HandlerKindError(
            f"the handler returned {type(result).__name__}, which nobody runs here: "
            "make it a plain function, or give it to foqs.AsyncWorker"
        )


def is_cancelled() -> bool:
    """A thread never is."""
    return False


def is_ending() -> bool:
    """Whether the interpreter ends: then no other thread runs any more, and nothing may wait for one."""
    return sys.is_finalizing()


def is_fatal(error: BaseException) -> bool:
    """Whether something that is no Exception, and came out of a handler, is to end the program.

    A CancelledError is one of something that the handler waited for, in an event loop of its own.
    """
    return not isinstance(error, CancelledError)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT call `stop`, on the main thread; elsewhere Python allows no handlers."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        stop()

    previous = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
