"""Iterate over a queue: `async for item in client.consume("orders", "paid"): ...; item.ack()`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import TracebackType
from typing import TYPE_CHECKING, Self

from foqs.client.aio.concurrency import AsyncMonitor
from foqs.client.aio.settler import AsyncLeasedItem, AsyncLeaseKeeper, AsyncSettler
from foqs.client.beginning import was_delivered_before
from foqs.client.consumer_names import consumer_name
from foqs.client.leases import TakenItems
from foqs.client.queue_items import Topics
from foqs.client.settling import SettleStats
from foqs.client.worker_core import Rests, may_go_on
from foqs.model import limits
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.aio.client import AsyncClient


class AsyncConsumer:
    """Deliveries one by one, taken in batches, with acks sent in the background; `AsyncClient.consume` makes it.

    name: by which operators see the consumer, as "NAME@HOSTNAME/PID"; by default the name of the program.
    batch_count (100): items of each topic per batch (a mapping of topics has its own counts), or of the topic_prefix in
        total.
    group: a consumer group of the topics, or of those with the prefix; by default their own items.
    lease or lease_ms (30 s): of every delivery. An item is yielded with at least half of it left, because the rest of a
        batch that waited longer is extended first; items with lost leases are skipped. The lease of a yielded item is
        not extended automatically.
    wait or wait_ms (5 s): longest wait of one call for items; `stop` can take as long to take effect.

    When the loop is left, items that are not settled and items that were taken but not yielded are released, and all
    settlements are flushed. Use an `async with` statement to ensure that, however the loop is left.
    Iterate once; items can be settled anywhere.
    It continues through an outage as workers do. Raises the persistent errors of dequeue, such as
    UnknownNamespaceError.

    An item counts as tried once it is yielded. The consumer reports that to the host: before it yields an item that was
    delivered before, otherwise after a moment if the item is not settled by then. So a crash of the program costs no
    attempt of the items behind.
    """

    def __init__(
        self,
        client: AsyncClient,
        namespace: str,
        topics: Topics,
        *,
        topic_prefix: str | None,
        group: str | None,
        name: str | None,
        batch_count: int,
        lease_ms: int,
        wait_ms: int,
        flush_ms_max: int = limits.DRAIN_MS_MAX,
    ) -> None:
        self._client = client
        self._namespace = namespace
        self._topics = topics
        self._topic_prefix = topic_prefix
        self._group = group
        self._name = consumer_name(name)
        self._batch_count = batch_count
        self._lease_ms = lease_ms
        self._wait_ms = wait_ms
        self._flush_ms_max = flush_ms_max
        self._taken = TakenItems[AsyncLeasedItem](lease_ms)
        self._settler = AsyncSettler(client, namespace)
        self._keeper = AsyncLeaseKeeper(client, namespace, lease_ms, self._name)
        self._rests = Rests()
        self._changed = AsyncMonitor()
        self._has_begun = False
        self._ending = False
        self._closed = False

    @property
    def stats(self) -> SettleStats:
        """Items so far, counted by outcome."""
        return self._settler.stats

    async def __aiter__(self) -> AsyncIterator[AsyncLeasedItem]:
        if self._has_begun:
            raise RuntimeError("the consumer was iterated before, and one is iterated once: make another one")
        self._has_begun = True
        self._settler.start()
        self._keeper.start()
        try:
            while not self._ending:
                await self._settler.wait_for_room()
                await self._take_or_rest()
                while not self._ending and (item := await self._next()) is not None:
                    if await self._begin(item):
                        yield item
        finally:
            await self.close()

    async def _take_or_rest(self) -> None:
        try:
            await self._take_batch()
        except FoqsError as error:
            if not may_go_on(error):
                raise
            rest_ms = self._rests.after_failure(self._namespace, error)
            with self._changed:
                await self._changed.wait_for(lambda: self._ending, rest_ms / 1000)
        else:
            self._rests.after_success()

    async def _begin(self, item: AsyncLeasedItem) -> bool:
        """Report to the host that work on the item begins. False if its lease is lost."""
        if not was_delivered_before(item):
            self._keeper.begin_later(item)
            return True
        await self._keeper.begin(item)
        if item.lease_lost:
            self._settler.lost([item])
        return not item.lease_lost

    async def _take_batch(self) -> None:
        items = await self._client._take(
            self._namespace,
            self._topics,
            self._batch_count,
            self._topic_prefix,
            self._group,
            self._lease_ms,
            self._wait_ms,
            self._name,
        )
        self._taken.take(self._settler.lease(items, self._lease_ms), self._client.options.clock_ms())

    async def _next(self) -> AsyncLeasedItem | None:
        clock_ms = self._client.options.clock_ms
        if due := self._taken.due(clock_ms()):
            asked_at_ms = clock_ms()
            errors = await self._client.extend(
                self._namespace, due, self._lease_ms, consumer=self._name, return_errors=True
            )
            self._settler.lost(self._taken.extended(due, errors, asked_at_ms))
        return self._taken.next()

    def stop(self) -> None:
        """End the iteration before its next item. The iterator cleans up."""
        with self._changed:
            self._ending = True
            self._changed.notify_all()

    async def close(self) -> None:
        """Release the unsettled items and flush. Safe to repeat."""
        self._ending = True
        if not self._closed:
            self._closed = True
            for item in self._taken.unsettled():
                item.release()
            await self._keeper.close()
            await self._settler.close(self._flush_ms_max)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
