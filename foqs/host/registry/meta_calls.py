"""Admin calls on the meta database: a few at a time, some that wait, and none that waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from foqs.model import limits
from foqs.model.errors import OverloadedError, UnavailableError
from foqs.storage.meta.meta_store import MetaStore

META_CALL_THREADS = 2
"""Threads for admin calls that work on the meta database."""

T = TypeVar("T")


class MetaCalls:
    """A pool of threads of its own, so that no heartbeat waits behind an admin call."""

    def __init__(self, meta: MetaStore) -> None:
        self._meta = meta
        self._threads = ThreadPoolExecutor(META_CALL_THREADS, thread_name_prefix="meta-call")
        self._count = 0

    async def run(self, work: Callable[[MetaStore], T]) -> T:
        """Run one piece of work on the meta database.

        Raises OverloadedError at once when too many wait, and UnavailableError, with the outcome unknown, when it has
        not ended after limits.META_CALL_MS_MAX.
        """
        if self._count >= META_CALL_THREADS + limits.META_CALLS_WAITING_MAX:
            raise OverloadedError(
                f"{self._count} calls wait for the meta database, which is the limit: nothing was done, try again",
                retry_after_ms=limits.META_CALLS_RETRY_MS,
            )
        self._count += 1
        # It counts until its thread is free, however soon its caller gives up.
        call = asyncio.get_running_loop().run_in_executor(self._threads, work, self._meta)
        call.add_done_callback(self._ended)
        await asyncio.wait([call], timeout=limits.META_CALL_MS_MAX / 1000)
        if not call.done():
            raise UnavailableError(
                f"the meta database has not answered for {limits.META_CALL_MS_MAX} ms: whether the call was done is "
                "unknown"
            )
        return call.result()

    def close(self) -> None:
        """Wait for what is under way, and drop the rest. Blocks, as long as the database hangs."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _ended(self, call: asyncio.Future[T]) -> None:
        self._count -= 1
        if not call.cancelled():
            call.exception()  # Its caller may have given up: then nobody else asks for it.
