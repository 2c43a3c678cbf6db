"""The six verbs of the contract on the shards of this host, without Thrift types."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.core.calls import Delivery, EnqueueResult, Nack, NewItem, PositionErrors, TopicDemand, TopicPage
from foqs.host.dequeues import Dequeues
from foqs.host.enqueues import Enqueues
from foqs.host.leases import Leases
from foqs.host.namespaces import Namespaces
from foqs.host.topics import Topics


class Queue:
    """Implements foqs.core.calls.QueueCalls."""

    def __init__(
        self, namespaces: Namespaces, enqueues: Enqueues, dequeues: Dequeues, leases: Leases, topics: Topics
    ) -> None:
        self._namespaces = namespaces
        self._enqueues = enqueues
        self._dequeues = dequeues
        self._leases = leases
        self._topics = topics

    async def enqueue(self, namespace_name: str, items: Sequence[NewItem], bulk: bool) -> EnqueueResult:
        return await self._enqueues.enqueue(self._namespaces.get(namespace_name), items)

    async def dequeue(
        self, namespace_name: str, topics: Sequence[TopicDemand], lease_ms: int | None, wait_ms: int
    ) -> list[Delivery]:
        return await self._dequeues.dequeue(self._namespaces.get(namespace_name), topics, lease_ms, wait_ms)

    async def ack(self, namespace_name: str, receipts: Sequence[str]) -> PositionErrors:
        return await self._leases.ack(self._namespaces.get(namespace_name), receipts)

    async def nack(self, namespace_name: str, nacks: Sequence[Nack]) -> PositionErrors:
        return await self._leases.nack(self._namespaces.get(namespace_name), nacks)

    async def extend_lease(self, namespace_name: str, receipts: Sequence[str], lease_ms: int) -> PositionErrors:
        return await self._leases.extend(self._namespaces.get(namespace_name), receipts, lease_ms)

    async def get_active_topics(self, namespace_name: str, prefix: str, limit: int, page_token: str) -> TopicPage:
        return await self._topics.page(self._namespaces.get(namespace_name), prefix, limit, page_token)
