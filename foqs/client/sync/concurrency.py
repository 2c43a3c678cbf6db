"""The differences between tasks and threads, for threads; `foqs.client.aio.concurrency` is the twin for tasks.

Like its twin, which explains why, this module is written by hand.
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

from foqs.client.client_errors import check_process
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
    """Place where a client can be used: any thread of the process that created it."""

    def __init__(self) -> None:
        self._process_id = os.getpid()

    def check(self) -> None:
        """Raise ClientClosedError in any other process."""
        check_process(self._process_id)

    def check_end(self) -> None:
        """Do nothing: a fork closes its copies of the sockets without affecting those of its parent."""


class Background:
    """Background work in its own thread, until it ends by itself."""

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
        """Wait for the end, up to `timeout` seconds. True if it has ended. Raises the error of the work."""
        self._thread.join(timeout)
        if self._thread.is_alive():
            return False
        if self._error is not None:
            raise self._error
        return True

    def cancel(self) -> None:
        """Do nothing, because a thread cannot be ended from outside. The process can end before it."""


def run_copies(work: Callable[[], None], count: int, name: str, on_failure: Callable[[BaseException], None]) -> None:
    """Run `count` copies of the work concurrently, each in a thread, and wait for all copies.

    `on_failure` is called with the first failure, of a copy or of this thread (such as Ctrl-C), and must make the other
    copies end. Then that failure is raised. The process can end before the threads.
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
    """Run the work to its end; a thread is never cancelled."""
    work()


def finish(result: object) -> None:
    """Check the result of a handler. Raises HandlerKindError if the handler has not really run."""
    if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
        if inspect.iscoroutine(result) or inspect.isgenerator(result):
            result.close()
        raise HandlerKindError(
            f"the handler returned {type(result).__name__}, which nobody runs here: "
            "make it a plain function, or give it to foqs.AsyncWorker"
        )


def is_cancelled() -> bool:
    """Return False, because a thread is never cancelled."""
    return False


def is_ending() -> bool:
    """True if the interpreter is ending, so that no other thread runs and no wait for one would end."""
    return sys.is_finalizing()


def is_fatal(error: BaseException) -> bool:
    """True if a handler's exception that is not an Exception must end the program.

    A CancelledError comes from something that the handler awaited in its own event loop, so it is not fatal.
    """
    return not isinstance(error, CancelledError)


@contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on SIGTERM and SIGINT, on the main thread only, because Python allows no handlers elsewhere."""
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
