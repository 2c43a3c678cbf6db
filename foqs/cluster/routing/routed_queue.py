"""The verbs of users on all shards of the cluster, whichever host they are asked of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.routing.pages import merged_topics
from foqs.cluster.routing.pulls import Pulls
from foqs.cluster.routing.routed_enqueue import RoutedEnqueue
from foqs.cluster.routing.routed_nack import RoutedNack
from foqs.cluster.routing.routes import Routes
from foqs.cluster.routing.why_empty import WhyEmpty
from foqs.model.calls import (
    CallContext,
    Delivery,
    NackFields,
    PositionErrors,
    QueueCalls,
    ShardAddress,
    ShardMap,
    TopicDemand,
    TopicPage,
)


class RoutedQueue:
    """Implements foqs.model.calls.QueueCalls: it does what this host's shards can, and asks the owners of the others.

    The front door calls it. While this host is alone it adds nothing but a look.
    """

    def __init__(
        self,
        local: QueueCalls,
        routes: Routes,
        owners: OwnerMap,
        enqueues: RoutedEnqueue,
        nacks: RoutedNack,
        pulls: Pulls,
        why: WhyEmpty,
    ) -> None:
        """`enqueues` and `pulls` are for calls that other hosts may do better, `why` for those that got nothing."""
        self._local = local
        self._routes = routes
        self._owners = owners
        self.enqueue = enqueues.enqueue
        self.why_empty = why.why_empty
        self._nacks = nacks
        self._pulls = pulls

    async def dequeue(
        self,
        context: CallContext,
        namespace_name: str,
        topics: Sequence[TopicDemand],
        lease_ms: int | None,
        wait_ms: int,
        topic_prefix: str | None = None,
        count: int | None = None,
        says_begun: bool = False,
    ) -> list[Delivery]:
        local = self._local.dequeue
        if self._routes.is_alone and not context.peer:
            return await local(context, namespace_name, topics, lease_ms, wait_ms, topic_prefix, count, says_begun)
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        if context.peer or context.shards is not None:
            served = self._pulls.serve
            return await served(context, namespace_name, topics, lease_ms, wait_ms, topic_prefix, count, says_begun)
        pulled = self._pulls.dequeue
        return await pulled(context, namespace_name, topics, lease_ms, wait_ms, topic_prefix, count, says_begun)

    async def ack(
        self, context: CallContext, namespace_name: str, receipts: Sequence[str], repeated: bool = False
    ) -> PositionErrors:
        local = self._local
        if self._routes.is_alone and not context.peer:
            return await local.ack(context, namespace_name, receipts, repeated)
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        if context.peer or context.shards is not None:
            return await local.ack(context, namespace_name, receipts, repeated)
        return await self._routes.by_shard(
            receipts,
            lambda some: local.ack(context, namespace_name, _at(receipts, some), repeated),
            lambda remote, some: remote.ack(context, namespace_name, _at(receipts, some), repeated),
        )

    async def nack(self, context: CallContext, namespace_name: str, nacks: Sequence[NackFields]) -> PositionErrors:
        local = self._local
        if self._routes.is_alone and not context.peer:
            return await local.nack(context, namespace_name, nacks)
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        if context.peer or context.shards is not None:
            return await local.nack(context, namespace_name, nacks)
        return await self._nacks.nack(context, namespace_name, nacks)

    async def extend_lease(
        self,
        context: CallContext,
        namespace_name: str,
        receipts: Sequence[str],
        lease_ms: int,
        begun: Sequence[str] = (),
    ) -> PositionErrors:
        local = self._local
        if self._routes.is_alone and not context.peer:
            return await local.extend_lease(context, namespace_name, receipts, lease_ms, begun)
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        if context.peer or context.shards is not None:
            return await local.extend_lease(context, namespace_name, receipts, lease_ms, begun)
        extended_count = len(receipts)

        def part(some: Sequence[int] | None) -> tuple[Sequence[str], int, Sequence[str]]:
            if some is None:
                return receipts, lease_ms, begun
            extended = [receipts[position] for position in some if position < extended_count]
            return extended, lease_ms, [begun[at - extended_count] for at in some if at >= extended_count]

        return await self._routes.by_shard(
            [*receipts, *begun] if begun else receipts,
            lambda some: local.extend_lease(context, namespace_name, *part(some)),
            lambda remote, some: remote.extend_lease(context, namespace_name, *part(some)),
        )

    async def get_active_topics(
        self,
        context: CallContext,
        namespace_name: str,
        prefix: str,
        limit: int,
        page_token: str,
        partial: bool = False,
    ) -> TopicPage:
        """The topics of all hosts.

        Raises UnavailableError that names the host or shard that does not respond, unless a `partial` page will do.
        """
        local = self._local
        if self._routes.is_alone and not context.peer:
            return await local.get_active_topics(context, namespace_name, prefix, limit, page_token, partial)
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        if context.peer or context.shards is not None:
            return await local.get_active_topics(context, namespace_name, prefix, limit, page_token, partial)
        missing: list[str] = []
        pages = await self._routes.by_all(
            context,
            lambda asking: local.get_active_topics(asking, namespace_name, prefix, limit, page_token, partial),
            lambda remote, asking: remote.get_active_topics(asking, namespace_name, prefix, limit, page_token, partial),
            missing if partial else None,
        )
        page = merged_topics(pages, limit)
        page.missing += missing
        return page

    async def get_shard_map(self, context: CallContext, namespace_name: str | None) -> ShardMap:
        """The map with the addresses of all hosts, and the shortest dedup window of all."""
        local = self._local
        if self._routes.is_alone and not context.peer:
            return await local.get_shard_map(context, namespace_name)
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        if context.peer or context.shards is not None:
            return await local.get_shard_map(context, namespace_name)
        maps = await self._routes.by_all(
            context,
            lambda asking: local.get_shard_map(asking, namespace_name),
            lambda remote, asking: remote.get_shard_map(asking, namespace_name),
        )
        if not maps:  # What other hosts said that they have is not believed any more.
            return await local.get_shard_map(context, namespace_name)
        newest = max(maps, key=lambda found: found.version)
        windows = [found.dedup_window_ms for found in maps if found.dedup_window_ms is not None]
        owners = sorted(self._owners.owners.values())
        addresses = [ShardAddress(owner.shard_id, owner.address) for owner in owners if owner.address]
        return ShardMap(newest.version, newest.shard_by_slot, addresses, newest.key_spread, min(windows, default=None))


T = TypeVar("T")


def _at(values: Sequence[T], positions: Sequence[int] | None) -> Sequence[T]:
    return values if positions is None else [values[position] for position in positions]
