"""The bytes of items that all pages of a host hold together while they are read and merged."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from foqs.model import limits
from foqs.model.errors import OverloadedError

PAGE_RETRY_MS = 500
"""The retry_after_ms of a call that is refused because other pages take all the memory."""


class PageBudget:
    """Bounds the memory of all pages that operators read at a time. `Inspection` owns it.

    Pages wait for their bytes in the order of their arrival, and hold none meanwhile.
    """

    def __init__(self) -> None:
        self.held_bytes = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    @asynccontextmanager
    async def hold(self, size_bytes: int) -> AsyncIterator[None]:
        """Hold `size_bytes`; a page above the budget must be the only one. Raises OverloadedError for too many waiting
        pages, or after limits.CALL_MS_MAX.
        """
        if len(self._waiting) >= limits.PAGES_WAITING_MAX:
            raise self._overloaded(f"{len(self._waiting)} pages of items wait to be read, which is the limit")
        if self._waiting or not self._fits(size_bytes):
            await self._wait(size_bytes)
        else:
            self.held_bytes += size_bytes
        try:
            yield
        finally:
            self._give_back(size_bytes)

    async def _wait(self, size_bytes: int) -> None:
        its_turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((size_bytes, its_turn))
        try:
            async with asyncio.timeout(limits.CALL_MS_MAX / 1000):
                await its_turn
        except BaseException as error:
            if its_turn.done() and not its_turn.cancelled():
                self._give_back(size_bytes)
            if isinstance(error, TimeoutError):
                raise self._overloaded(f"pages of items were read for others for {limits.CALL_MS_MAX} ms") from None
            raise

    def _fits(self, size_bytes: int) -> bool:
        return not self.held_bytes or self.held_bytes + size_bytes <= limits.PAGES_BYTES_MAX

    def _give_back(self, size_bytes: int) -> None:
        self.held_bytes -= size_bytes
        while self._waiting and (self._waiting[0][1].done() or self._fits(self._waiting[0][0])):
            next_bytes, its_turn = self._waiting.popleft()
            if not its_turn.done():  # Otherwise its call has left.
                self.held_bytes += next_bytes
                its_turn.set_result(None)

    def _overloaded(self, why: str) -> OverloadedError:
        return OverloadedError(f"{why}: nothing was done", retry_after_ms=PAGE_RETRY_MS)
