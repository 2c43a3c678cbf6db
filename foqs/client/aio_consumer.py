"""Iterate over a queue: `async for item in client.consume("orders", "paid"): ...; item.ack()`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import Self

from foqs.client.aio import AsyncClient
from foqs.client.aio_settler import AsyncLeasedItem, TaskSettler
from foqs.client.items import Topics
from foqs.client.leases import Hand
from foqs.client.settling import SettleStats
from foqs.model import limits


class AsyncConsumer:
    """Deliveries one by one, taken in batches, with acks sent in the background; otherwise like `Consumer`.

    Use it in an `async with` statement: when the block is left, what is not settled is released and the
    settlements are flushed. `break` alone leaves that to the event loop's clean-up of the iterator.
    """

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        topics: Topics,
        *,
        batch_count: int,
        lease_ms: int,
        wait_ms: int,
        flush_ms_max: int = limits.DRAIN_MS_MAX,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._topics = topics
        self._batch_count = batch_count
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._flush_ms_max = flush_ms_max
        self._hand = Hand[AsyncLeasedItem](lease_ms)
        self._settler = TaskSettler(client, namespace)
        self._ending = False
        self._closed = False

    @property
    def stats(self) -> SettleStats:
        """What became of the items so far."""
        return self._settler.stats

    async def __aiter__(self) -> AsyncIterator[AsyncLeasedItem]:
        self._settler.start()
        try:
            while not self._ending:
                await self._settler.wait_for_room()
                await self._take_batch()
                while not self._ending and (item := await self._next()) is not None:
                    yield item
        finally:
            await self.close()

    async def _take_batch(self) -> None:
        items = await self._client.dequeue(
            self._namespace, self._topics, self._batch_count, lease_ms=self._lease_ms, wait_ms=self._wait_ms
        )
        self._hand.take(self._settler.lease(items, self._lease_ms), self._client.options.clock_ms())

    async def _next(self) -> AsyncLeasedItem | None:
        clock_ms = self._client.options.clock_ms
        if due := self._hand.due(clock_ms()):
            asked_at_ms = clock_ms()
            errors = await self._client.extend(self._namespace, due, self._lease_ms)
            self._settler.lost(self._hand.extended(due, errors, asked_at_ms))
        return self._hand.next()

    def stop(self) -> None:
        """End the iteration before its next item, from any task; the iterating one cleans up."""
        self._ending = True

    async def close(self) -> None:
        """Release what is not settled and flush. Safe to repeat."""
        self._ending = True
        if not self._closed:
            self._closed = True
            for item in self._hand.unsettled():
                item.release()
            await self._settler.close(self._flush_ms_max)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
