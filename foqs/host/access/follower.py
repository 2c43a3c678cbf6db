"""Follows the changes of access in the meta database, beside all else that a host reads there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.access.book import AccessBook
from foqs.model import limits


class AccessFollower(Service):
    """Reads the book again every HEARTBEAT_MS, on a thread that nothing else waits for."""

    def __init__(self, book: AccessBook, now_s: Callable[[], float]) -> None:
        """`now_s` is monotonic."""
        super().__init__("access")
        self._book = book
        self._now_s = now_s
        self._lane = Lane(self.name)

    async def refresh(self) -> None:
        """Read all that was committed before this call. Raises UnavailableError."""
        # Each caller has a reading of its own: one that is under way may have begun before the commit.
        await self._lane.run(self._book.read)
        self._book.publish()

    async def _start(self) -> None:
        await self.refresh()
        outage = OutageLog(self._now_s, "access_away", "access_back")
        self._tasks.repeat(lambda: asyncio.sleep(limits.HEARTBEAT_MS / 1000), self._follow, outage=outage)

    async def _follow(self) -> None:
        await self.refresh()
        await self._lane.run(self._book.write_uses)

    async def _stop(self) -> None:
        await self._lane.stop()
