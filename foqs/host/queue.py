"""The six verbs of the contract on the shards of this host, without Thrift types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.host.dequeues import Dequeues
from foqs.host.enqueues import Enqueues
from foqs.host.leases import Leases
from foqs.host.namespaces import Namespaces
from foqs.host.shards import Shards
from foqs.host.topics import Topics
from foqs.model.calls import (
    CallContext,
    Delivery,
    EnqueueResult,
    NackFields,
    NewItemFields,
    PositionErrors,
    TopicDemand,
    TopicPage,
)
from foqs.model.errors import RateLimitedError, UnknownNamespaceError
from foqs.model.item import ItemEvent
from foqs.model.namespace import Namespace


class Queue:
    """Implements foqs.model.calls.QueueCalls."""

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        enqueues: Enqueues,
        dequeues: Dequeues,
        leases: Leases,
        topics: Topics,
        happened: Callable[[int, ItemEvent, int], None],
    ) -> None:
        """`happened` counts, by namespace, what became of items."""
        self._namespaces = namespaces
        self._shards = shards
        self._enqueues = enqueues
        self._dequeues = dequeues
        self._leases = leases
        self._topics = topics
        self._happened = happened

    def _namespace(self, name: str) -> Namespace:
        """Raises UnknownNamespaceError; a host that serves nothing leaves it to others, who may know a new one."""
        try:
            return self._namespaces.get(name)
        except UnknownNamespaceError:
            self._shards.check_owns_any()
            raise

    async def enqueue(
        self, context: CallContext, namespace_name: str, items: Sequence[NewItemFields], bulk: bool
    ) -> EnqueueResult:
        namespace = self._namespace(namespace_name)
        try:
            result = await self._enqueues.enqueue(namespace, items)
        except RateLimitedError:
            self._happened(namespace.number, ItemEvent.RATE_LIMITED, len(items))
            raise
        self._happened(namespace.number, ItemEvent.ENQUEUED, len(items) - len(result.errors))
        return result

    async def dequeue(
        self,
        context: CallContext,
        namespace_name: str,
        topics: Sequence[TopicDemand],
        lease_ms: int | None,
        wait_ms: int,
    ) -> list[Delivery]:
        namespace = self._namespace(namespace_name)
        deliveries = await self._dequeues.dequeue(namespace, topics, lease_ms, wait_ms, context.deadline_s)
        self._happened(namespace.number, ItemEvent.DELIVERED, len(deliveries))
        return deliveries

    async def ack(
        self, context: CallContext, namespace_name: str, receipts: Sequence[str], repeated: bool = False
    ) -> PositionErrors:
        namespace = self._namespace(namespace_name)
        errors = await self._leases.ack(namespace, receipts, repeated)
        self._happened(namespace.number, ItemEvent.ACKED, len(receipts) - len(errors))
        return errors

    async def nack(self, context: CallContext, namespace_name: str, nacks: Sequence[NackFields]) -> PositionErrors:
        namespace = self._namespace(namespace_name)
        errors = await self._leases.nack(namespace, nacks)
        self._happened(namespace.number, ItemEvent.NACKED, len(nacks) - len(errors))
        return errors

    async def extend_lease(
        self, context: CallContext, namespace_name: str, receipts: Sequence[str], lease_ms: int
    ) -> PositionErrors:
        namespace = self._namespace(namespace_name)
        errors = await self._leases.extend(namespace, receipts, lease_ms)
        self._happened(namespace.number, ItemEvent.EXTENDED, len(receipts) - len(errors))
        return errors

    async def get_active_topics(
        self, context: CallContext, namespace_name: str, prefix: str, limit: int, page_token: str
    ) -> TopicPage:
        return await self._topics.page(self._namespace(namespace_name), prefix, limit, page_token)
