"""When a shard's next transaction begins: one scheduler for all shards that this host has on one MySQL server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

SLOT_MS_MAX = 50
"""A transaction that takes longer gives its slot away: its shard is sick or waits for a lock, or its server is slow."""
HEAVY_TRANSACTION_ROWS = 64
"""A transaction that reads or writes at least so many rows is heavy."""
HEAVY_TRANSACTIONS_MAX = 4
"""So many heavy transactions run without a slot at the same time; one more keeps its slot."""
COALESCE_TURNS_MAX = 8
"""So many turns of the event loop lie between two transactions of a shard: callers that were answered come back."""
COALESCE_MS_MAX = 5
"""Those turns end after this time, however few they were."""
COALESCE_CALLS = 32
"""Where so many calls wait nobody is waited for: what a transaction costs beside its items is little to each."""
PLACEMENT_RUN_ITEMS = 2_000
"""So many enqueued items in a row go to one shard, times the shards that share a slot."""
PLACEMENT_RUN_ITEMS_MAX = 16_000


class CommitScheduler:
    """Decides when each shard of one MySQL server begins its next transaction.

    The writer of a shard asks for a permit before it puts a transaction together, and keeps it until the transaction
    has ended. What comes while the shard waits is in that transaction. These are the rules:

    1. A shard waits for a slot. The server has `transactions_max` of them, which go round in the order of asking.
       A sick shard takes no slot and waits for none: it tries in vain, and its neighbours shall not wait for that.
    2. A shard whose last transaction has just ended coalesces, within its slot: it lets the event loop turn, so that
       the callers that were answered come back. That ends after COALESCE_TURNS_MAX turns or COALESCE_MS_MAX, and as
       soon as COALESCE_CALLS calls wait. A shard that was idle begins at once.
    3. A slot is free again when its transaction ends, or SLOT_MS_MAX after it was taken.
    4. A heavy transaction leaves its slot as soon as it begins, unless HEAVY_TRANSACTIONS_MAX others have done so.
    5. Enqueued items go to a shard in runs of `placement_run_items`, so that as many shards take items at a time as
       have a slot to write them.

    The reasons and the figures are in docs/decisions/0013-commit-scheduler.md.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, transactions_max: int) -> None:
        self.loop = loop
        self.slots = asyncio.Semaphore(transactions_max)
        """Those that are free."""
        self.heavy_count = 0
        """Heavy transactions that run without a slot now."""
        self._transactions_max = transactions_max
        self._shards_count = 0

    def join(self) -> None:
        """One more shard of the server will ask for permits."""
        self._shards_count += 1

    @property
    def placement_run_items(self) -> int:
        """How many enqueued items in a row a shard of this server takes, when it is its turn.

        What is enqueued together is delivered and acked together, so the run decides how many shards have something
        to write at the same time, and a transaction of few items costs each of them more.
        """
        shards_per_slot = max(1, self._shards_count // self._transactions_max)
        return min(PLACEMENT_RUN_ITEMS * shards_per_slot, PLACEMENT_RUN_ITEMS_MAX)

    @asynccontextmanager
    async def permit(
        self, last_rows_count: int | None, waiting_calls_count: Callable[[], int], *, is_sick: bool
    ) -> AsyncIterator[Permit]:
        """Wait until a shard may put its next transaction together, which the body does and then runs it.

        `last_rows_count` is of the shard's transaction that has just ended; it is None when the shard was idle.
        `waiting_calls_count` tells how many calls wait for the next one.
        """
        if last_rows_count is not None and last_rows_count >= HEAVY_TRANSACTION_ROWS:
            await asyncio.sleep(0)  # To end a heavy one and to begin the next are long enough each.
        permit = Permit(self)
        if not is_sick:
            await permit.take_slot()
        try:
            if last_rows_count is not None:
                await self._coalesce(waiting_calls_count)
            yield permit
        finally:
            permit.end()

    async def _coalesce(self, waiting_calls_count: Callable[[], int]) -> None:
        """Wait as PostgreSQL's commit_delay does, which counts the other sessions that are active."""
        until_s = self.loop.time() + COALESCE_MS_MAX / 1000
        for _ in range(COALESCE_TURNS_MAX):
            if waiting_calls_count() >= COALESCE_CALLS or self.loop.time() >= until_s:
                return
            await asyncio.sleep(0)


class Permit:
    """One shard may put a transaction together and run it. Made by its scheduler, which says when it has a slot."""

    __slots__ = ("_is_beside", "_scheduler", "_slot_timer", "waited_s")

    def __init__(self, scheduler: CommitScheduler) -> None:
        self.waited_s = 0.0
        """How long the shard waited for its slot."""
        self._scheduler = scheduler
        self._slot_timer: asyncio.TimerHandle | None = None
        """Ends the time for which the slot is held; None without a slot."""
        self._is_beside = False

    async def take_slot(self) -> None:
        loop = self._scheduler.loop
        asked_s = loop.time()
        await self._scheduler.slots.acquire()
        self.waited_s = loop.time() - asked_s
        self._slot_timer = loop.call_later(SLOT_MS_MAX / 1000, self._release_slot)

    def begin(self, rows_count: int) -> None:
        """A transaction of so many rows is put together and will be run now: a heavy one leaves its slot to others.

        The host has work of its own with each of many rows, before and after it: with one such transaction at a time
        server and host would wait for each other by turns.
        """
        scheduler = self._scheduler
        is_heavy = rows_count >= HEAVY_TRANSACTION_ROWS
        if self._slot_timer is not None and is_heavy and scheduler.heavy_count < HEAVY_TRANSACTIONS_MAX:
            scheduler.heavy_count += 1
            self._is_beside = True
            self._release_slot()

    def end(self) -> None:
        """The transaction has ended, or there was none."""
        self._scheduler.heavy_count -= self._is_beside
        self._is_beside = False
        self._release_slot()

    def _release_slot(self) -> None:
        timer, self._slot_timer = self._slot_timer, None
        if timer is not None:
            timer.cancel()
            self._scheduler.slots.release()
