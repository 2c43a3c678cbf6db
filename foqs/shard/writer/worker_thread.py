"""A thread for blocking calls, beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


class WorkerThread:
    """Runs one call after the other; the event loop turns while a caller waits."""

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)

    def run(self, work: Callable[[], T]) -> asyncio.Future[T]:
        """Begin `work` once all earlier calls have ended; call it on the event loop."""
        return asyncio.get_running_loop().run_in_executor(self._executor, work)

    def leave(self) -> None:
        """Let the thread end after all begun calls; return at once."""
        self._executor.shutdown(wait=False)

    def end(self) -> None:
        """Return once all begun calls have ended."""
        self._executor.shutdown(wait=True)
