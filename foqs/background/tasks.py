"""The tasks of one owner, and the loops that they run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import structlog

from foqs.background.outage_log import OutageLog
from foqs.model import limits
from foqs.model.errors import FoqsError

_log = structlog.get_logger(__name__)
T = TypeVar("T")
Work = Callable[[], Awaitable[None] | None]
"""Work that is done again and again."""


class Tasks:
    """The tasks of one owner, which stops them before it ends. Only here are tasks made that outlive a call.

    A task that fails is logged once, with its name, and ends no other one.
    """

    __slots__ = ("_failed", "_is_stopped", "_name", "_running")

    def __init__(self, name: str, failed: Callable[[FoqsError], None] | None = None) -> None:
        """`name` is that of the tasks without a name of their own.

        `failed` gets the FoqsErrors that end tasks; without it they are defects, as all other errors are.
        """
        self._name = name
        self._failed = failed
        self._running: set[asyncio.Task[Any]] = set()
        self._is_stopped = False

    def __len__(self) -> int:
        """Return the number of tasks that have not ended."""
        return len(self._running)

    def spawn(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run `work` in a task. Log the error that ends it."""
        task = self._begin(work, name)
        task.add_done_callback(self._ended)
        return task

    def lend(self, work: Coroutine[Any, Any, T], name: str = "") -> asyncio.Task[T]:
        """Run `work` in a task whose result and error belong to the caller, who can stop waiting for them."""
        task = self._begin(work, name)
        task.add_done_callback(self._lent_ended)
        return task

    def every(self, period_ms: float, work: Work, name: str = "") -> None:
        """Do `work` over and over, each time after this pause."""
        self.repeat(lambda: asyncio.sleep(period_ms / 1000), work, name)

    def repeat(
        self, pause: Callable[[], Awaitable[object]], work: Work, name: str = "", outage: OutageLog | None = None
    ) -> None:
        """Do `work` over and over, each time after `pause`, also after it has failed.

        FoqsErrors are those of `outage`, if one is given.
        """
        self.spawn(self._repeat(pause, work, name or self._name, outage), name)

    def cancel(self) -> None:
        """Cancel all tasks. Do not wait for their ends."""
        for task in self._running:
            task.cancel()

    async def stop(self) -> None:
        """Cancel all tasks, and return once they have ended. Tasks that are made from now on are cancelled at once."""
        self._is_stopped = True
        while self._running:
            self.cancel()
            await asyncio.wait(list(self._running))

    async def finish(self, ms_max: float) -> None:
        """Wait for the ends of all tasks for this time at most. Cancel the remaining tasks."""
        if self._running:
            _, late = await asyncio.wait(list(self._running), timeout=ms_max / 1000)
            for task in late:
                task.cancel()

    def _begin(self, work: Coroutine[Any, Any, T], name: str) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work, name=name or self._name)
        self._running.add(task)
        if self._is_stopped:
            task.cancel()
        return task

    async def _repeat(
        self, pause: Callable[[], Awaitable[object]], work: Work, name: str, outage: OutageLog | None
    ) -> None:
        while True:
            try:
                await pause()
            except Exception as error:
                self._fail(error, f"pause of {name}")
                await asyncio.sleep(limits.HEARTBEAT_MS / 1000)
            try:
                done = work()
                if done is not None:
                    await done
                if outage is not None:
                    outage.worked()
            except Exception as error:
                if outage is not None and isinstance(error, FoqsError):
                    outage.failed(error)
                else:
                    self._fail(error, name)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error, task.get_name())

    def _lent_ended(self, task: asyncio.Task[Any]) -> None:
        self._running.discard(task)
        if not task.cancelled():
            task.exception()  # The caller can have stopped waiting; then nobody else retrieves it.

    def _fail(self, error: BaseException, name: str) -> None:
        if self._failed is not None and isinstance(error, FoqsError):
            self._failed(error)
        else:
            _log.error("host_defect", work=name, exc_info=error)


def log_defect(work: str) -> None:
    """Log the current exception, after which `work` continues."""
    _log.error("host_defect", work=work, exc_info=True)
