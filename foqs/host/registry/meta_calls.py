"""Admin calls on the meta database: a few at a time, some that wait, and none that waits for ever."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from foqs.background.lane import Lane, LaneBounds
from foqs.model import limits
from foqs.storage.meta.meta_store import MetaStore

META_CALL_THREADS = 2
"""Threads for admin calls that work on the meta database."""

T = TypeVar("T")


class MetaCalls:
    """A pool of threads of its own, so that no heartbeat waits behind an admin call."""

    def __init__(self, meta: MetaStore, name: str = "meta-call", threads_count: int = META_CALL_THREADS) -> None:
        self._meta = meta
        self._lane = Lane(
            name,
            threads_count,
            LaneBounds(
                limits.META_CALLS_WAITING_MAX, limits.META_CALL_MS_MAX, limits.META_CALLS_RETRY_MS, "the meta database"
            ),
        )

    async def run(self, work: Callable[[MetaStore], T]) -> T:
        """Run one piece of work on the meta database.

        Raises OverloadedError at once when too many wait, and UnavailableError, with the outcome unknown, when it has
        not ended after limits.META_CALL_MS_MAX.
        """
        return await self._lane.call(lambda: work(self._meta))

    async def stop(self) -> None:
        """Wait for the running calls, as long as the database hangs. Drop the others."""
        await self._lane.stop(drop=True)
