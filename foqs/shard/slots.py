"""How many transactions of the shards on one server run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from foqs.core import limits


class ServerSlots:
    """A server has but so many cores: where all are busy, more transactions side by side are only smaller ones.

    What waits for a slot collects meanwhile, so that what a transaction costs beside its items is paid less often
    (docs/decisions/0013). Slots are given in the order in which they were asked for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self._loop = loop
        self._count = count
        self._slots = asyncio.Semaphore(count)
        self._shards_count = 0
        self.heard_s = 0.0
        """When the server last answered a shard of this host."""

    def join(self) -> None:
        """One more shard of the server."""
        self._shards_count += 1

    @property
    def shards_per_slot(self) -> int:
        """At least 1."""
        return max(1, self._shards_count // self._count)

    def slot(self) -> Slot:
        return Slot(self._slots, self._loop.call_later)


class Slot:
    """To enter is to wait for a free slot. It is free again at the end, or after limits.SLOT_MS_MAX: then the shard is
    sick, or waits for a lock, and the others shall not wait with it.
    """

    def __init__(self, slots: asyncio.Semaphore, call_later: Callable[..., asyncio.TimerHandle]) -> None:
        self._slots = slots
        self._call_later = call_later
        self._timer: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        self._timer = self._call_later(limits.SLOT_MS_MAX / 1000, self._free)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._free()

    def _free(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._slots.release()
