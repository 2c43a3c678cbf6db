"""Turns of the event loop for long reads of memory, so that the queue works between them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import perf_counter
from typing import TypeVar

SLICE_DEBT_MS_MAX = 2
"""The time by which sliced work can exceed its half of the event loop's time, in milliseconds."""

T = TypeVar("T")


class Slices:
    """Runs long reads of memory in slices of about a millisecond, one at a time on the whole host.

    After a slice, no slice runs for as long as that one took. So all slices together leave half of the loop's time to
    the queue, and no two slices run in the same turn of the loop.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._one_at_a_time = asyncio.Lock()
        self._rested_s = 0.0
        """The time at which the queue has had as much of the loop as all slices, in the loop's seconds."""

    async def run(self, work: Callable[[], T]) -> T:
        """Run one slice of work in its turn. The slice must be short by itself."""
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
