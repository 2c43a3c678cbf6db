"""The asyncio clients: the verbs of `sync` to await, with the same arguments, results and errors."""

from __future__ import annotations

import asyncio
import random as random_module
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from foqs.client import admin_verbs, options, verbs
from foqs.client.aio_gathering import TaskGatherer
from foqs.client.aio_io import AsyncPool, run_flow
from foqs.client.bulk import Bulk
from foqs.client.checks import check_whole
from foqs.client.flows import Flow
from foqs.client.gathering import Lane
from foqs.client.items import Item, NewItem, Receipts, Topics, check_new_item
from foqs.client.options import Options
from foqs.client.retry import Repeat, RetryPolicy
from foqs.model import limits
from foqs.model.calls import (
    DeadLettersResult,
    DeliveryPolicy,
    EnqueueResult,
    HostStatus,
    PositionErrors,
    StoredItem,
    StoredItemPage,
    TopicStats,
)
from foqs.model.errors import FoqsError
from foqs.model.namespace import Namespace

if TYPE_CHECKING:
    from foqs.client.aio_consumer import AsyncConsumer

T = TypeVar("T")


class _AsyncShell:
    """What both asyncio clients share: the connections and the way verbs run on them."""

    def __init__(
        self,
        addresses: str | Sequence[str] = "127.0.0.1:7600",
        *,
        timeout_ms: int = options.TIMEOUT_MS,
        connect_timeout_ms: int = options.CONNECT_TIMEOUT_MS,
        connections_max: int = options.ASYNC_CONNECTIONS_MAX,
        retry: RetryPolicy | None = None,
        batch_items_max: int = limits.BATCH_ITEMS_MAX,
        clock_ms: Callable[[], int] = options.monotonic_ms,
        random: Callable[[], float] = random_module.random,
    ) -> None:
        self.options = Options(
            addresses=addresses,
            timeout_ms=timeout_ms,
            connect_timeout_ms=connect_timeout_ms,
            connections_max=connections_max,
            retry=retry or RetryPolicy(),
            batch_items_max=batch_items_max,
            clock_ms=clock_ms,
            random=random,
        )
        self._terms = self.options.terms()
        self._pool = AsyncPool(self.options, self._terms.book)

    async def _run(self, flow: Flow[T]) -> T:
        return await run_flow(self._pool, flow)

    async def close(self) -> None:
        """Close every connection: calls in flight fail, later ones raise ClientClosedError. Repeatable."""
        await self._pool.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class AsyncClient(_AsyncShell):
    """A client of the queue for one event loop; settings, arguments and errors are those of `Client`.

    Up to 64 calls are in flight on each of at most connections_max connections (default 4). A cancelled
    call may have been done; the items of a cancelled dequeue come back when their lease ends.
    """

    def __init__(self, addresses: str | Sequence[str] = "127.0.0.1:7600", **settings: Any) -> None:
        super().__init__(addresses, **settings)
        wait_ms_max = self.options.retry.deadline_ms + self.options.timeout_ms
        self._gatherer = TaskGatherer(self.options.batch_items_max, wait_ms_max, self._enqueue_batch)

    async def enqueue(
        self,
        namespace: str,
        topic: str,
        payload: bytes,
        *,
        priority: int = 0,
        deliver_after_ms: int | None = None,
        delay_ms: int | None = None,
        ttl_ms: int | None = None,
        lease_ms: int | None = None,
        metadata: bytes | None = None,
        delivery: DeliveryPolicy | None = None,
        trace_context: str | None = None,
        retry_unknown: bool = False,
    ) -> str:
        """Store one item, return its id, see `Client.enqueue`. Enqueues of tasks that meet share a call."""
        item = NewItem(
            topic, payload, priority, deliver_after_ms, delay_ms, ttl_ms, lease_ms, metadata, delivery,
            trace_context=trace_context,
        )  # fmt: skip
        check_new_item(item)
        return await self._gatherer.enqueue((namespace, retry_unknown), item)

    async def enqueue_many(
        self,
        namespace: str,
        items: Iterable[NewItem],
        *,
        retry_unknown: bool = False,
        bulk: bool = False,
        calls_in_flight: int = 1,
        deadline_ms: int | None = None,
    ) -> EnqueueResult:
        """Store many items; ids and errors by position, see `Client.enqueue_many`."""
        check_whole("calls_in_flight", calls_in_flight, 1, limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX)
        terms = self._terms.within(deadline_ms)
        work = Bulk(items, self.options.batch_items_max)
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN

        async def carry() -> None:
            while (taken := work.next()) is not None:
                offset, batch = taken
                try:
                    done = await self._run(verbs.enqueue_limited(terms, namespace, batch, repeat, bulk=bulk))
                    work.done(offset, done)
                except FoqsError as error:
                    work.failed(offset, batch, error)

        if calls_in_flight == 1:
            await carry()
        else:
            carriers = [asyncio.create_task(carry()) for _ in range(calls_in_flight)]
            try:
                await asyncio.gather(*carriers)
            finally:
                for carrier in carriers:
                    carrier.cancel()
                await asyncio.gather(*carriers, return_exceptions=True)
        return work.result()

    async def dequeue(
        self,
        namespace: str,
        topics: Topics,
        count: int = 1,
        *,
        lease_ms: int | None = None,
        wait_ms: int = 0,
    ) -> list[Item]:
        """The most urgent ready items under a lease, see `Client.dequeue`."""
        return await self._run(verbs.dequeue(self._terms, namespace, topics, count, lease_ms, wait_ms))

    async def ack(self, namespace: str, receipts: Receipts) -> PositionErrors:
        """Delete items that are done, see `Client.ack`."""
        return await self._run(verbs.ack(self._terms, namespace, receipts))

    async def nack(
        self,
        namespace: str,
        receipts: verbs.Nacks,
        *,
        delay_ms: int = 0,
        metadata: bytes | None = None,
        dead_letter: bool = False,
    ) -> PositionErrors:
        """Give deliveries back as failed attempts, see `Client.nack`."""
        flow = verbs.nack(self._terms, namespace, receipts, delay_ms, metadata, False, dead_letter)
        return await self._run(flow)

    async def release(self, namespace: str, receipts: Receipts, *, delay_ms: int = 0) -> PositionErrors:
        """Give deliveries back unused, see `Client.release`."""
        return await self._run(verbs.nack(self._terms, namespace, receipts, delay_ms, None, True, False))

    async def extend(self, namespace: str, receipts: Receipts, lease_ms: int) -> PositionErrors:
        """Let leases end lease_ms from now, see `Client.extend`."""
        return await self._run(verbs.extend(self._terms, namespace, receipts, lease_ms))

    async def topics(self, namespace: str, prefix: str = "") -> AsyncIterator[TopicStats]:
        """Every topic that holds an item, page by page."""
        token = ""
        while True:
            page = await self._run(verbs.topic_page(self._terms, namespace, prefix, token))
            for stats in page.topics:
                yield stats
            token = page.next_page_token
            if not token:
                return

    def consume(
        self,
        namespace: str,
        topics: Topics,
        *,
        batch_count: int = 100,
        lease_ms: int = limits.LEASE_MS_DEFAULT,
        wait_ms: int = 5_000,
    ) -> AsyncConsumer:
        """Iterate over deliveries as they come, with acks sent in the background. See `AsyncConsumer`."""
        from foqs.client.aio_consumer import AsyncConsumer

        return AsyncConsumer(self, namespace, topics, batch_count=batch_count, lease_ms=lease_ms, wait_ms=wait_ms)

    async def close(self) -> None:
        """Close every connection: calls in flight fail, later ones raise ClientClosedError. Repeatable."""
        await super().close()
        await self._gatherer.close()

    async def _enqueue_batch(self, lane: Lane, items: Sequence[NewItem]) -> EnqueueResult:
        namespace, retry_unknown = lane
        repeat = Repeat.ALWAYS if retry_unknown else Repeat.UNLESS_UNKNOWN
        return await self._run(verbs.enqueue_limited(self._terms, namespace, items, repeat))


class AsyncAdminClient(_AsyncShell):
    """A client of service FoqsAdmin for one event loop; arguments and errors as with `AdminClient`."""

    async def create_namespace(self, name: str, **settings: Any) -> Namespace:
        """Create a namespace; the settings are the fields of NamespaceSettings."""
        return await self._run(admin_verbs.create_namespace(self._terms, name, settings))

    async def update_namespace(self, name: str, **settings: Any) -> Namespace:
        """Change the given settings, leave the others."""
        return await self._run(admin_verbs.update_namespace(self._terms, name, settings))

    async def get_namespace(self, name: str) -> Namespace:
        """The namespace (its `number` is 0: it does not travel)."""
        return await self._run(admin_verbs.get_namespace(self._terms, name))

    async def list_namespaces(self, prefix: str = "") -> AsyncIterator[Namespace]:
        """Every namespace whose name starts so, page by page."""
        token = ""
        while True:
            page = await self._run(admin_verbs.namespace_page(self._terms, prefix, token))
            for namespace in page.namespaces:
                yield namespace
            token = page.next_page_token
            if not token:
                return

    async def delete_namespace(self, name: str) -> None:
        """Delete an empty namespace."""
        await self._run(admin_verbs.delete_namespace(self._terms, name))

    async def recover_namespace(self, number: int, name: str | None = None) -> Namespace:
        """Bring back a namespace whose items shards hold and the meta database has lost, by the number in the log.

        With its old name, or `name`, and default settings. Raises NotFoundError when no shard of this host knows it.
        """
        return await self._run(admin_verbs.recover_namespace(self._terms, number, name))

    async def peek_items(self, namespace: str, topic: str, limit: int = 100, page_token: str = "") -> StoredItemPage:
        """One page of a topic's ready items, most urgent first. Leases nothing."""
        return await self._run(admin_verbs.peek_items(self._terms, namespace, topic, limit, page_token))

    async def get_item(self, namespace: str, id: str) -> StoredItem:
        """One item in whatever state."""
        return await self._run(admin_verbs.get_item(self._terms, namespace, id))

    async def delete_items(self, namespace: str, ids: str | Iterable[str]) -> PositionErrors:
        """Delete items in whatever state; errors by position."""
        return await self._run(admin_verbs.delete_items(self._terms, namespace, ids))

    async def list_dead_letters(
        self, namespace: str, topic: str, limit: int = 100, page_token: str = ""
    ) -> StoredItemPage:
        """One page of a topic's dead letters, oldest first."""
        return await self._run(admin_verbs.list_dead_letters(self._terms, namespace, topic, limit, page_token))

    async def redrive_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Make dead letters ready again: the given ones, or up to `limit` of the oldest."""
        return await self._run(admin_verbs.redrive_dead_letters(self._terms, namespace, topic, ids, limit))

    async def purge_dead_letters(
        self, namespace: str, topic: str, ids: Iterable[str] | None = None, limit: int = 1_000
    ) -> DeadLettersResult:
        """Delete dead letters: the given ones, or up to `limit` of the oldest."""
        return await self._run(admin_verbs.purge_dead_letters(self._terms, namespace, topic, ids, limit))

    async def host_status(self) -> HostStatus:
        """The host that answers, and its shards."""
        return await self._run(admin_verbs.host_status(self._terms))
