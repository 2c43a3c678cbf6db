"""Group commit of single enqueues among tasks: one task per lane runs the calls while anything waits."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from foqs.client.errors import ClientClosedError
from foqs.client.gathering import Gatherer, Lane, Ticket, deliver
from foqs.client.items import NewItem
from foqs.model.calls import EnqueueResult
from foqs.model.errors import OverloadedError

RunBatch = Callable[[Lane, Sequence[NewItem]], Awaitable[EnqueueResult]]


class TaskGatherer:
    def __init__(self, items_max: int, wait_ms_max: int, run_batch: RunBatch) -> None:
        self._gatherer = Gatherer(items_max)
        self._wait_s_max = wait_ms_max / 1000
        self._run_batch = run_batch
        self._room = asyncio.Condition()
        self._pumps: set[asyncio.Task[None]] = set()

    async def enqueue(self, lane: Lane, item: NewItem) -> str:
        """The id. Raises the item's error, or OverloadedError when its turn did not come in time.

        Cancelled while it waits for its turn, the item is not sent.
        """
        ticket = self._gatherer.ticket(item)
        if not self._gatherer.has_room(ticket):
            await self._wait_for_room(ticket)
        ticket.wakeup = asyncio.get_running_loop().create_future()
        if self._gatherer.add(lane, ticket):
            pump = asyncio.create_task(self._pump(lane), name=f"foqs-enqueue-{lane[0]}")
            self._pumps.add(pump)
            pump.add_done_callback(self._pumps.discard)
        try:
            await asyncio.wait_for(asyncio.shield(ticket.wakeup), self._wait_s_max)
        except TimeoutError:
            if self._gatherer.withdraw(lane, ticket):
                raise OverloadedError("the enqueue's turn did not come in time") from None
            await ticket.wakeup  # a call carries it now, and that call ends
        except asyncio.CancelledError:
            self._gatherer.withdraw(lane, ticket)
            raise
        return ticket.result()

    async def _wait_for_room(self, ticket: Ticket) -> None:
        try:
            async with asyncio.timeout(self._wait_s_max), self._room:
                await self._room.wait_for(lambda: self._gatherer.has_room(ticket))
        except TimeoutError:
            raise OverloadedError("too many enqueues wait in this client") from None

    async def _pump(self, lane: Lane) -> None:
        more = True
        while more:
            batch = self._gatherer.take(lane)
            outcome: EnqueueResult | BaseException
            try:
                outcome = await self._run_batch(lane, [ticket.item for ticket in batch]) if batch else _NOTHING
            except Exception as error:
                outcome = error
            except BaseException as error:
                self._hand_out(batch, error)
                raise
            self._hand_out(batch, outcome)
            more = self._gatherer.finish(lane) is not None
            async with self._room:
                self._room.notify_all()

    @staticmethod
    def _hand_out(batch: Sequence[Ticket], outcome: EnqueueResult | BaseException) -> None:
        deliver(batch, outcome)
        for ticket in batch:
            if not ticket.wakeup.done():
                ticket.wakeup.set_result(None)

    async def close(self) -> None:
        """End the tasks; what they carry has an unknown outcome."""
        pumps = list(self._pumps)
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        self._hand_out(self._gatherer.clear(), ClientClosedError("the client is closed"))


_NOTHING = EnqueueResult(ids=[])
