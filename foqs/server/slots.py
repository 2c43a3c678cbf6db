"""How many transactions of the shards on one server run at the same time."""

from __future__ import annotations

import asyncio
from types import TracebackType

from foqs.model import limits
from foqs.server.turning import TurningTime


class ServerSlots:
    """A server has but so many cores: where all are busy, more transactions side by side are only smaller ones.

    What waits for a slot collects meanwhile, so that what a transaction costs beside its items is paid less often
    (docs/decisions/0013). Slots are given in the order in which they were asked for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, count: int) -> None:
        self.call_later = loop.call_later
        self._loop = loop
        self.turning = TurningTime()
        self.free = asyncio.Semaphore(count)
        self._count = count
        self._shards_count = 0
        self.heavy_count = 0
        """Transactions of many rows, which run without a slot."""
        self.heard_s = 0.0
        """When the server last answered a shard of this host, in turning time."""

    def join(self) -> None:
        """One more shard of the server."""
        self._shards_count += 1

    def turned_s(self) -> float:
        """Now, in the time in which the event loop turned: for what a server is to answer in."""
        return self.turning.at(self._loop.time())

    @property
    def shards_per_slot(self) -> int:
        """At least 1."""
        return max(1, self._shards_count // self._count)

    def slot(self) -> Slot:
        return Slot(self)


class Slot:
    """To enter is to wait for a free slot. It is free again at the end, or after limits.SLOT_MS_MAX: then the shard is
    sick, or waits for a lock, and the others shall not wait with it.
    """

    def __init__(self, slots: ServerSlots) -> None:
        self._slots = slots
        self._timer: asyncio.TimerHandle | None = None
        self._is_heavy = False

    def release_slot_early(self) -> None:
        """Leave the slot to others and run beside them, with a transaction that keeps the server busy for long.

        The host has work of its own with one of many rows, before and after it: one at a time, server and host would
        wait for each other by turns. At most limits.HEAVY_TRANSACTIONS_MAX of a server are beside.
        """
        if self._timer is not None and self._slots.heavy_count < limits.HEAVY_TRANSACTIONS_MAX:
            self._slots.heavy_count += 1
            self._is_heavy = True
            self._free()

    async def __aenter__(self) -> Slot:
        await self._slots.free.acquire()
        self._timer = self._slots.call_later(limits.SLOT_MS_MAX / 1000, self._free)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._slots.heavy_count -= self._is_heavy
        self._free()

    def _free(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
            self._slots.free.release()
