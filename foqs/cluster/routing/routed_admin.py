"""The verbs of operators on all shards of the cluster, whichever host they are asked of."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeGuard

from foqs.cluster.routing.host_rounds import HostRounds
from foqs.cluster.routing.pages import merged_items
from foqs.cluster.routing.peer_table import Peer
from foqs.cluster.routing.routes import Routes
from foqs.host.verbs.chosen_dead import choose
from foqs.host.verbs.page_budget import PageBudget
from foqs.model import ids, limits
from foqs.model.admin_calls import AdminCalls
from foqs.model.calls import (
    CallContext,
    ClusterShard,
    ClusterShards,
    DeadLettersResult,
    ExportPage,
    ExportPlan,
    ExportQuery,
    HostStatus,
    PositionErrors,
    StoredItem,
    StoredItemPage,
)
from foqs.model.cluster_calls import ClusterHosts
from foqs.model.errors import FoqsError


class RoutedAdmin:
    """Implements foqs.model.cluster_calls.ClusterCalls: what concerns stored items is done by the hosts that have them.

    Namespaces and jobs are the same on every host, and the status of a host is its own: those verbs are this host's.
    Who serves which shard is for the hosts to say that have them: all of them are asked.
    """

    def __init__(self, local: AdminCalls, routes: Routes, rounds: HostRounds) -> None:
        """`rounds` asks all hosts what they serve."""
        self._local = local
        self._routes = routes
        self._rounds = rounds
        self._pages = PageBudget()
        """The pages of other hosts that are here until they are merged, beside those that this host reads itself."""

    def __getattr__(self, verb: str) -> Any:
        """The verbs that any host does alone."""
        return getattr(self._local, verb)

    async def peek_items(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage:
        local = self._local
        if await self._is_for_this_host(context, namespace_name):
            return await local.peek_items(context, namespace_name, topic, limit, page_token)
        return await self._merged(
            context,
            limit,
            lambda asking: local.peek_items(asking, namespace_name, topic, limit, page_token),
            lambda remote, asking: remote.peek_items(asking, namespace_name, topic, limit, page_token),
        )

    async def list_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage:
        local = self._local
        if await self._is_for_this_host(context, namespace_name):
            return await local.list_dead_letters(context, namespace_name, topic, limit, page_token)
        return await self._merged(
            context,
            limit,
            lambda asking: local.list_dead_letters(asking, namespace_name, topic, limit, page_token),
            lambda remote, asking: remote.list_dead_letters(asking, namespace_name, topic, limit, page_token),
        )

    async def _merged(
        self,
        context: CallContext,
        limit: int,
        here: Callable[[CallContext], Awaitable[StoredItemPage]],
        there: Callable[[Peer, CallContext], Awaitable[StoredItemPage]],
    ) -> StoredItemPage:
        """One page out of those of all hosts, which are here together until then."""
        async with self._pages.hold(self._routes.hosts_count * limits.PAGE_BYTES_MAX):
            return merged_items(await self._routes.by_all(context, here, there), limit)

    async def get_item(self, context: CallContext, namespace_name: str, item_id: str) -> StoredItem:
        local = self._local
        if await self._is_for_this_host(context, namespace_name):
            return await local.get_item(context, namespace_name, item_id)
        found: list[StoredItem] = []

        async def here(_: Sequence[int] | None) -> PositionErrors:
            found.append(await local.get_item(context, namespace_name, item_id))
            return {}

        async def there(remote: Peer, _: Sequence[int]) -> PositionErrors:
            found.append(await remote.get_item(context, namespace_name, item_id))
            return {}

        _raise_first(await self._routes.by_shard([item_id], here, there))
        return found[-1]

    async def delete_items(self, context: CallContext, namespace_name: str, item_ids: Sequence[str]) -> PositionErrors:
        local = self._local
        if await self._is_for_this_host(context, namespace_name):
            return await local.delete_items(context, namespace_name, item_ids)
        return await self._routes.by_shard(
            item_ids,
            lambda some: local.delete_items(context, namespace_name, _at(item_ids, some)),
            lambda remote, some: remote.delete_items(context, namespace_name, _at(item_ids, some)),
        )

    async def redrive_dead_letters(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None = None,
    ) -> DeadLettersResult:
        if await self._is_for_this_host(context, namespace_name):
            return await self._local.redrive_dead_letters(context, namespace_name, topic, item_ids, limit, page_token)
        return await self._on_dead(context, namespace_name, topic, item_ids, limit, page_token, "redrive_dead_letters")

    async def purge_dead_letters(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None = None,
    ) -> DeadLettersResult:
        if await self._is_for_this_host(context, namespace_name):
            return await self._local.purge_dead_letters(context, namespace_name, topic, item_ids, limit, page_token)
        return await self._on_dead(context, namespace_name, topic, item_ids, limit, page_token, "purge_dead_letters")

    async def plan_export(
        self, context: CallContext, namespace_name: str, splits_per_shard: int, partial: bool = False
    ) -> ExportPlan:
        """All splits together; they hold what was stored when the first host made its own."""
        local = self._local
        if await self._is_for_this_host(context, namespace_name):
            return await local.plan_export(context, namespace_name, splits_per_shard, partial)
        missing: list[str] = []
        plans = await self._routes.by_all(
            context,
            lambda asking: local.plan_export(asking, namespace_name, splits_per_shard, partial),
            lambda remote, asking: remote.plan_export(asking, namespace_name, splits_per_shard, partial),
            missing if partial else None,
        )
        missing += [what for plan in plans for what in plan.missing or ()]
        splits = sorted([split for plan in plans for split in plan.splits], key=lambda at: (at.shard_id, at.from_key))
        return ExportPlan(splits, min([plan.as_of_ms for plan in plans], default=0), missing)

    async def export_items(self, context: CallContext, namespace_name: str, query: ExportQuery) -> ExportPage:
        local = self._local
        shard_id = query.split.shard_id
        if await self._is_for_this_host(context, namespace_name) or not _may_be_shard(shard_id):
            return await local.export_items(context, namespace_name, query)
        found: list[ExportPage] = []

        async def here(_: Sequence[int] | None) -> PositionErrors:
            found.append(await local.export_items(context, namespace_name, query))
            return {}

        async def there(remote: Peer, _: Sequence[int]) -> PositionErrors:
            found.append(await remote.export_items(context, namespace_name, query))
            return {}

        _raise_first(await self._routes.by_shard([ids.item_id(shard_id, 0)], here, there))
        return found[-1]

    async def list_shards(self, context: CallContext) -> ClusterShards:
        """All shards, with who serves them as the hosts say now: a host that does not answer is waited for shortly."""
        return ClusterShards(await self._rounds.told((await self._local.list_shards(context)).shards))

    async def add_shard(self, context: CallContext, shard_id: int, place: str, tier: str) -> ClusterShard:
        return (await self._rounds.told([await self._local.add_shard(context, shard_id, place, tier)]))[0]

    async def update_shard(
        self,
        context: CallContext,
        shard_id: int,
        state: int | None,
        pinned_to: str | None,
        tier: str | None,
        last: bool = False,
    ) -> ClusterShard:
        changed = await self._local.update_shard(context, shard_id, state, pinned_to, tier, last)
        return (await self._rounds.told([changed]))[0]

    async def remove_shard(self, context: CallContext, shard_id: int) -> None:
        """The owner does it, which alone can tell that nothing is left in the shard."""
        if context.peer or not _may_be_shard(shard_id):
            await self._local.remove_shard(context, shard_id)
            return

        async def here(_: Sequence[int] | None) -> PositionErrors:
            await self._local.remove_shard(context, shard_id)
            return {}

        async def there(remote: Peer, _: Sequence[int]) -> PositionErrors:
            await remote.remove_shard(context, shard_id)
            return {}

        _raise_first(await self._routes.by_shard([ids.item_id(shard_id, 0)], here, there))

    async def list_hosts(self, context: CallContext) -> ClusterHosts:
        """All hosts that live, as they say now: one that does not answer is waited for shortly, and listed as such."""
        return ClusterHosts(await self._rounds.hosts())

    async def get_host_status(self, context: CallContext) -> HostStatus:
        return await self._local.get_host_status(context)

    async def _is_for_this_host(self, context: CallContext, namespace_name: str) -> bool:
        """Whether a call is this host's alone: it has all shards, another host sent the call on, or that names shards.

        Else the namespace has been looked for in the meta database, if this host did not know it.
        """
        if self._routes.is_alone and not context.peer:
            return True
        if self._routes.is_unknown(namespace_name):
            await self._routes.know(namespace_name)
        return bool(context.peer) or context.shards is not None

    async def _on_dead(
        self,
        context: CallContext,
        namespace_name: str,
        topic: str,
        item_ids: Sequence[str] | None,
        limit: int,
        page_token: str | None,
        verb: str,
    ) -> DeadLettersResult:
        """Dead letters by their ids; without them the oldest of all hosts are looked up first."""
        chosen: list[str] = []
        next_token = ""
        if item_ids is None:
            chosen, next_token = await choose(
                lambda token: self.list_dead_letters(context, namespace_name, topic, limit, token),
                page_token,
                for_redrive=verb == "redrive_dead_letters",
            )
        given = chosen if item_ids is None else item_ids
        act: Callable[[Any, Sequence[str]], Any] = lambda host, some: getattr(host, verb)(  # noqa: E731
            context, namespace_name, topic, some, limit
        )

        async def here(some: Sequence[int] | None) -> PositionErrors:
            result: DeadLettersResult = await act(self._local, _at(given, some))
            return result.errors

        async def there(remote: Peer, some: Sequence[int]) -> PositionErrors:
            result: DeadLettersResult = await act(remote, _at(given, some))
            return result.errors

        errors = await self._routes.by_shard(given, here, there) if given else {}
        return DeadLettersResult(len(given) - len(errors), errors, chosen, next_token)


def _may_be_shard(shard_id: int | None) -> TypeGuard[int]:
    """Whether this may be the id of a shard; the host that is asked refuses what is not."""
    return isinstance(shard_id, int) and 0 <= shard_id <= limits.SHARD_ID_MAX


def _at(values: Sequence[str], positions: Sequence[int] | None) -> Sequence[str]:
    return values if positions is None else [values[position] for position in positions]


def _raise_first(errors: PositionErrors) -> None:
    error: FoqsError
    for error in errors.values():
        raise error
