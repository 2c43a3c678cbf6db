"""Requests that all hosts do, each for its own shards, and whose results are merged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from foqs.cluster.ownership.owner_map import OwnerMap
from foqs.cluster.peers.peer_table import Peer
from foqs.cluster.routing.pages import merged_consumer_pages, merged_items, merged_maps, merged_plans, merged_topics
from foqs.cluster.routing.routes import Routes
from foqs.contract.permissions import sees_hosts
from foqs.contract.requests import changed
from foqs.contract.verbs import VERBS, Table
from foqs.host.verbs.page_reads import PageBudget, Slices
from foqs.model import limits
from foqs.model.calls import CallContext, ExportPlan, ShardMap, StoredItemPage, TopicPage
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.event_history import History, HistoryMerge
from foqs.model.holder import ConsumerPage, ReleaseResult, without_hosts
from foqs.model.topic_rates import RatesMerge, RatesPage

ALSO_OF_STANDBYS = frozenset(["listConsumers"])
"""The verbs that hosts without shards do, too: consumers can wait there."""


class MergedCalls:
    """Asks all hosts, and merges their results by their type."""

    def __init__(self, table: Table, routes: Routes, owners: OwnerMap, slices: Slices) -> None:
        """`table` has the methods of this host."""
        self._table = table
        self._routes = routes
        self._owners = owners
        self._slices = slices
        self._pages = PageBudget()
        """The pages of other hosts that are here until they are merged, beside those that this host reads itself."""
        self._merges: dict[Any, Callable[[list[Any], Any], Any]] = {
            TopicPage: lambda found, request: merged_topics(found, request.limit),
            StoredItemPage: lambda found, request: merged_items(found, request.limit),
            ExportPlan: lambda found, _: merged_plans(found),
            ConsumerPage: lambda found, request: merged_consumer_pages(found, request.limit),
            ShardMap: lambda found, _: merged_maps(found, owners.owners.values()),
        }
        self._merges_in_steps: dict[Any, Callable[[list[Any], Any], RatesMerge | HistoryMerge]] = {
            RatesPage: lambda found, request: RatesMerge(found, request.order, request.limit, request.topics or ()),
            History: lambda found, _: HistoryMerge(found),
        }
        """The merges of many rows of numbers, each of which takes several turns of the event loop."""

    async def call(self, verb: str, context: CallContext, request: Any) -> Any:
        """The merged result.

        Raises UnavailableError that names the host or shard that does not respond, unless a `partial` one will do.
        """
        result = VERBS[verb].result
        if result is ReleaseResult:
            return await self._release(verb, context, request)
        missing: list[str] | None = [] if getattr(request, "partial", None) else None
        async with self._held() if result is StoredItemPage else nullcontext():
            found = await self.ask_all(context, verb, request, missing)
            if not found and result is ShardMap:  # Claims of other hosts are not believed any more.
                return await self._table[verb](context, request)
            if result in self._merges_in_steps:
                merged = await self._merged_in_steps(self._merges_in_steps[result](found, request))
            else:
                merged = self._merges[result](found, request)
        if result is ConsumerPage and not sees_hosts(context):
            merged = without_hosts(merged)
        if missing:
            merged.missing += missing
        return merged

    async def _merged_in_steps(self, merge: RatesMerge | HistoryMerge) -> Any:
        steps = merge.steps()
        while await self._slices.run(lambda: next(steps, steps) is None):
            pass
        return merge.page()

    async def _release(self, verb: str, context: CallContext, request: Any) -> ReleaseResult:
        """Do releaseLeases, and count all leases that hosts have ended, also if others must be asked again."""
        done: list[ReleaseResult] = []
        unknown: list[FoqsError] = []

        async def counted(asked: Awaitable[ReleaseResult]) -> ReleaseResult:
            try:
                done.append(await asked)
            except FoqsError as error:
                unknown.extend([] if error.nothing_done else [error])
                raise
            return done[-1]

        method, last = self._table[verb], []
        try:
            if self._owners.is_alone:
                return await method(context, request)  # type: ignore[no-any-return]
            last = await self._routes.by_all(
                context,
                lambda asking: counted(method(asking, request)),
                lambda remote, asking: counted(
                    remote.call(asking, verb, changed(request, shard_ids=sorted(asking.shards or ())))
                ),
            )
        except FoqsError as error:
            released = sum([one.released for one in done])
            if not (released or unknown) or not isinstance(error, UnavailableError):
                raise
            said = "; ".join(dict.fromkeys([error.message, *[one.message for one in unknown]]))
            raise UnavailableError(
                f"{released} leases were ended, and others perhaps not: {said}: call again",
                retry_after_ms=error.retry_after_ms,
            ) from error
        return ReleaseResult(sum([one.released for one in done]), sum([one.left_at_most_once for one in last]))

    def _held(self) -> AbstractAsyncContextManager[None]:
        return self._pages.hold(self._routes.hosts_count * limits.PAGE_BYTES_MAX)

    async def ask_all(self, context: CallContext, verb: str, request: Any, missing: list[str] | None) -> list[Any]:
        """Return the results of all hosts. `missing`, if given, gets the hosts and shards that do not respond."""
        method = self._table[verb]
        also_idle = verb in ALSO_OF_STANDBYS
        if self._owners.is_alone and not also_idle:
            return [await method(context, request)]

        def there(remote: Peer, asking: CallContext) -> Awaitable[Any]:
            shards = asking.shards
            if shards is None or not hasattr(request, "shard_ids"):
                return remote.call(asking, verb, request)
            return remote.call(asking, verb, changed(request, shard_ids=sorted(shards)))

        return await self._routes.by_all(
            context, lambda asking: method(asking, request), there, missing, also_without_shards=also_idle
        )
