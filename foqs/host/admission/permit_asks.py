"""The asks of a host to the books of permits in the meta database: docs/decisions/0067-items-in-flight.md."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from foqs.background.lane import Lane
from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.permits import RETRY_MS
from foqs.model.errors import FoqsError
from foqs.storage.meta.meta_permits import WAITED_MAX, MetaPermits

ASKS_MAX = 100
"""Topics of one transaction of the meta database."""
READ_MS = 250
"""Pause between two reads of the books in which shards of other hosts wait."""
FAILED_MS = 500
"""Pause after the meta database has failed to answer."""


class PermitAsks(Service):
    """Asks the books for permits at once when items wait for them, and reads the books in which others wait.

    Without the meta database every shard uses the permits that it has.
    """

    def __init__(self, books: MetaPermits, dispatcher: Dispatcher, now_s: Callable[[], float]) -> None:
        """`now_s` is the time of the event loop."""
        super().__init__("permits")
        self._books = books
        self._dispatcher = dispatcher
        self._now_s = now_s
        self._lane = Lane(self.name)
        self._rung = asyncio.Event()
        self._read_s = now_s()
        self._read_pause_s = 0.0
        self._pause_ms = 0
        self._outage = OutageLog(now_s, "permits_away", "permits_back")
        dispatcher.permits.on_wanted = self._rung.set

    async def _start(self) -> None:
        self._tasks.repeat(self._until_due, self._work, outage=self._outage)

    async def _stop(self) -> None:
        await self._lane.stop()

    async def _until_due(self) -> None:
        permits, settings = self._dispatcher.permits, self._dispatcher.settings
        if self._pause_ms:
            await asyncio.sleep(self._pause_ms / 1000)
            self._pause_ms = 0
        if permits.has_wanted:
            return
        self._rung.clear()
        pause_s = (RETRY_MS if permits.has_short else READ_MS) / 1000
        with suppress(TimeoutError):
            # Without limits it waits for the first one.
            async with asyncio.timeout(pause_s if settings.limits_in_flight else None):
                await self._rung.wait()

    async def _work(self) -> None:
        try:
            await self._ask()
            await self._read()
        except FoqsError:
            self._pause_ms = FAILED_MS
            raise

    async def _ask(self) -> None:
        asks = self._dispatcher.permits.take_asks(ASKS_MAX)
        if not asks:
            return
        try:
            answers = await self._lane.run(lambda: self._books.ask(asks))
        except BaseException:
            self._dispatcher.permits_answered(asks, {})
            raise
        if len(answers) < len(asks):
            self._pause_ms = RETRY_MS  # Other sessions have locked some books.
        self._dispatcher.permits_answered(asks, answers)

    async def _read(self) -> None:
        """Read the books in which shards wait, unless that was done just now."""
        permits, now_s = self._dispatcher.permits, self._now_s()
        pause_ms = RETRY_MS if permits.has_short else READ_MS
        if (
            not self._dispatcher.settings.limits_in_flight
            or now_s - self._read_s < pause_ms / 1000 + self._read_pause_s
        ):
            return
        books, now_ms = await self._lane.run(self._books.waited)
        permits.books_read(books, now_ms)
        # Very many books are read less often.
        self._read_s, self._read_pause_s = now_s, READ_MS / 1000 * len(books) / WAITED_MAX
