"""Turns of the event loop for reads that look at much: the queue goes on between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

SLICE_DEBT_MS_MAX = 2
"""How far sliced work may be ahead of its half of the event loop's time."""

T = TypeVar("T")


class Slices:
    """Long looks at memory, in slices of about a millisecond, one at a time on the whole host.

    After what a slice took, nobody has one for as long: all of them together leave half of the loop to the queue, and
    no two of them stand in the same turn of it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._one_at_a_time = asyncio.Lock()
        self._rested_s = 0.0
        """When the loop's time has made up for all slices."""

    async def run(self, work: Callable[[], T]) -> T:
        """Do one slice of work when it is its turn; it must be short by itself."""
        async with self._one_at_a_time:
            rest_s = self._rested_s - self._loop.time()
            if rest_s > SLICE_DEBT_MS_MAX / 1000:
                await asyncio.sleep(rest_s)
            began_s = perf_counter()
            try:
                return work()
            finally:
                took_s = perf_counter() - began_s
                self._rested_s = max(self._rested_s, self._loop.time()) + took_s
                await asyncio.sleep(0)
