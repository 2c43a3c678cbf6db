"""A thread for what blocks, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkerThread:
    """Runs one call after the other; whoever waits for one lets the event loop turn."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `work` when all before it has ended; to be called on the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def leave(self) -> None:
        """Let it end when all has ended that was begun; returns at once."""
        self._executor.shutdown(wait=False)

    def end(self) -> None:
        """Return when all has ended that was begun."""
        self._executor.shutdown(wait=True)
