"""Coalescing of single enqueues among tasks: one task for each lane runs its calls while enqueues wait."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from foqs.client.client_errors import ClientClosedError
from foqs.client.coalescing import EnqueueQueues, Lane, PendingEnqueue, complete, deadline_of
from foqs.client.flows import Terms
from foqs.client.queue_items import NewItem
from foqs.client.shared_enqueue import CallOutcome

RunBatch = Callable[[Lane, Sequence[NewItem], int | None], Awaitable[CallOutcome]]
"""Makes one attempt for a lane and its items, until the callers' deadline if there is one."""


class AsyncEnqueueCoalescer:
    """Combines the single enqueues of an `AsyncClient` into calls; the client owns and closes it.

    Each lane has its own task for its calls. A caller can therefore be cancelled or reach its deadline without harm to
    the others.
    """

    def __init__(
        self, items_max: int, terms: Terms, run_batch: RunBatch, pause: Callable[[int], Awaitable[None]]
    ) -> None:
        """`pause` waits for the given number of milliseconds, and raises if the client is closed."""
        self._queues = EnqueueQueues(items_max, terms)
        self._run_batch = run_batch
        self._pause = pause
        self._room = asyncio.Condition()
        self._pumps: set[asyncio.Task[None]] = set()

    async def enqueue(self, lane: Lane, item: NewItem, deadline_at_ms: int | None = None) -> str:
        """Return the item's id by `deadline_at_ms` of the clock, if given.

        Raises the item's error; OverloadedError if its turn did not come in time; NotSentError at the deadline, or
        OutcomeUnknownError if a call carries the item by then. An enqueue cancelled before its turn is not sent.
        """
        queues = self._queues
        pending = queues.pending(item, deadline_at_ms)
        while True:
            await self._share_call(lane, pending)
            pause_ms = queues.next_pause_ms(lane, pending)
            if pause_ms is None:
                return pending.result()
            if pause_ms:
                await self._pause(pause_ms)
            lane = queues.again(lane, pending)

    async def _share_call(self, lane: Lane, pending: PendingEnqueue) -> None:
        """Add the item to a call and wait for its outcome."""
        if not self._queues.has_room(pending):
            await self._wait_for_room(pending)
        pending.wakeup = asyncio.get_running_loop().create_future()
        if self._queues.add(lane, pending):
            pump = asyncio.create_task(self._pump(lane), name=f"foqs-enqueue-{lane[0]}")
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
        try:
            await asyncio.wait_for(asyncio.shield(pending.wakeup), self._queues.patience_s(pending))
        except TimeoutError:
            if self._queues.cancel(lane, pending):
                raise pending.not_sent() from None
            if pending.has_deadline and not pending.done:
                raise pending.in_flight_too_long() from None
            await pending.wakeup  # A call carries the item now, and that call ends.
        except asyncio.CancelledError:
            self._queues.cancel(lane, pending)
            raise

    async def _wait_for_room(self, pending: PendingEnqueue) -> None:
        try:
            async with asyncio.timeout(self._queues.patience_s(pending)), self._room:
                await self._room.wait_for(lambda: self._queues.has_room(pending))
        except TimeoutError:
            raise pending.no_room() from None

    async def _pump(self, lane: Lane) -> None:
        more = True
        while more:
            batch = self._queues.take(lane)
            outcome: CallOutcome | BaseException = CallOutcome([])
            try:
                if batch:
                    items = [pending.item for pending in batch]
                    outcome = await self._run_batch(lane, items, deadline_of(batch))
            except Exception as error:
                outcome = error
            except BaseException as error:
                _wake(self._queues.end(lane, error))
                raise
            _wake(self._queues.end(lane, outcome))
            more = self._queues.finish(lane)
            async with self._room:
                self._room.notify_all()

    async def close(self) -> None:
        """End the tasks. Their items have an unknown outcome."""
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        left = self._queues.clear()
        complete(left, ClientClosedError("the client is closed"))
        _wake(left)


def _wake(some: Sequence[PendingEnqueue]) -> None:
    for pending in some:
        if not pending.wakeup.done():
            pending.wakeup.set_result(None)
