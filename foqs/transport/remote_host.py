"""Another host of the cluster as this one sees it: the verbs of the contract, done there."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from zlib import crc32

import structlog

from foqs.cluster.homes.home_table import Reported
from foqs.cluster.routing.peer_claims import grants_of, pointers_of, told_pointer
from foqs.cluster.routing.pulls import GivenBack
from foqs.model import limits
from foqs.model.calls import (
    CallContext,
    DeadLettersResult,
    Delivery,
    EnqueueResult,
    ExportPage,
    ExportPlan,
    ExportQuery,
    HostStatus,
    NackFields,
    NewItemFields,
    PositionErrors,
    ShardMap,
    StoredItem,
    StoredItemPage,
    TopicDemand,
    TopicPage,
)
from foqs.model.cluster import OpenedShard
from foqs.model.errors import FoqsError, UnavailableError, error_for_code
from foqs.model.shared_caps import CapAsk, CapGrant
from foqs.model.stocks import Pointer, Topic
from foqs.transport.peer_connection import PeerConnection
from foqs.wire.codec import encode_as, structs

_log = structlog.get_logger(__name__)
_BY_ITSELF = CallContext("")
"""The context of calls that a host makes for itself, and for no caller."""
encode_as(GivenBack, structs.Nack)


class RemoteHost:
    """Implements what foqs.cluster.routing.peer_table.Peer asks, over the wire.

    What comes back are the decoded structs where they have the attributes of the classes of `foqs.model.calls`.
    """

    def __init__(
        self,
        host_id: str,
        connect: Callable[[], Any],
        calls_total: Counter[tuple[str, ...]],
        giving_back: set[asyncio.Task[None]],
    ) -> None:
        """`connect` is a coroutine function that returns an open PeerConnection. Raises UnavailableError.

        `calls_total` counts verbs with their outcomes; `giving_back` keeps the tasks that give late items back.
        """
        self.host_id = host_id
        self._connect = connect
        self._calls_total = calls_total
        self._giving_back = giving_back

    async def _call(
        self,
        context: CallContext,
        method: str,
        request: Any,
        wait_ms: int = 0,
        late: Callable[[Any], object] | None = None,
    ) -> Any:
        outcome = "unknown"
        try:
            connection: PeerConnection = await self._connect()
            lane = crc32(context.caller.encode())
            response = await connection.call(method, request, lane, limits.CALL_MS_MAX + wait_ms, late)
            outcome = "ok"
            return response
        except FoqsError as error:
            if not isinstance(error, UnavailableError):
                outcome = "refused"
            elif error.nothing_done:
                outcome = "not_done"
            raise
        finally:
            self._calls_total[method, outcome] += 1

    async def enqueue(
        self,
        context: CallContext,
        namespace_name: str,
        items: Sequence[NewItemFields],
        bulk: bool,
        job_id: str | None = None,
    ) -> EnqueueResult:
        told = await self._call(context, "enqueue", structs.EnqueueRequest(namespace_name, items, bulk, job_id))
        duplicates = told.duplicates or []
        if len(told.ids) != len(items) or any(not 0 <= position < len(items) for position in duplicates):
            raise UnavailableError(
                f"host {self.host_id} responded for {len(told.ids)} items, and was sent {len(items)}: what became of "
                "them is unknown, enqueue them again if they may be there twice"
            )
        return EnqueueResult(told.ids, _errors(told.errors), duplicates)

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
        request = structs.DequeueRequest(
            namespace_name, topics, lease_ms, wait_ms, topic_prefix, count, says_begun or None
        )
        late = partial(self._came_late, context, namespace_name)
        deliveries: list[Delivery] = (await self._call(context, "dequeue", request, wait_ms, late)).items
        return deliveries

    def _came_late(self, context: CallContext, namespace_name: str, response: Any) -> None:
        """Nobody waits for these items any more: that host may give them to others."""
        if response.items:
            work = self._give_back(context, namespace_name, [GivenBack(item.receipt) for item in response.items])
            task = asyncio.get_running_loop().create_task(work, name=f"give-back-{self.host_id}")
            self._giving_back.add(task)
            task.add_done_callback(self._giving_back.discard)

    async def _give_back(self, context: CallContext, namespace_name: str, nacks: Sequence[GivenBack]) -> None:
        try:
            errors = await self.nack(context, namespace_name, nacks)
        except FoqsError as error:
            errors = dict.fromkeys(range(len(nacks)), error)
        if errors:
            first = next(iter(errors.values()))
            _log.warning("pull_not_given_back", peer=self.host_id, count=len(errors), error=str(first))

    async def ack(
        self, context: CallContext, namespace_name: str, receipts: Sequence[str], repeated: bool = False
    ) -> PositionErrors:
        return await self._batch(context, "ack", structs.AckRequest(namespace_name, receipts, repeated))

    async def nack(self, context: CallContext, namespace_name: str, nacks: Sequence[NackFields]) -> PositionErrors:
        return await self._batch(context, "nack", structs.NackRequest(namespace_name, nacks))

    async def extend_lease(
        self,
        context: CallContext,
        namespace_name: str,
        receipts: Sequence[str],
        lease_ms: int,
        begun: Sequence[str] = (),
    ) -> PositionErrors:
        request = structs.ExtendRequest(namespace_name, receipts, lease_ms, begun or None)
        return await self._batch(context, "extendLease", request)

    async def get_active_topics(
        self,
        context: CallContext,
        namespace_name: str,
        prefix: str,
        limit: int,
        page_token: str,
        partial: bool = False,
    ) -> TopicPage:
        request = structs.ActiveTopicsRequest(namespace_name, prefix, limit, page_token, partial, _shards_of(context))
        page: TopicPage = await self._call(context, "getActiveTopics", request)
        return page

    async def get_shard_map(self, context: CallContext, namespace_name: str | None) -> ShardMap:
        found: ShardMap = await self._call(context, "getShardMap", structs.ShardMapRequest(namespace_name))
        return found

    async def peek_items(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage:
        request = structs.PeekItemsRequest(namespace_name, topic, limit, page_token, _shards_of(context))
        page: StoredItemPage = await self._call(context, "peekItems", request)
        return page

    async def get_item(self, context: CallContext, namespace_name: str, item_id: str) -> StoredItem:
        item: StoredItem = await self._call(context, "getItem", structs.GetItemRequest(namespace_name, item_id))
        return item

    async def delete_items(self, context: CallContext, namespace_name: str, item_ids: Sequence[str]) -> PositionErrors:
        return await self._batch(context, "deleteItems", structs.DeleteItemsRequest(namespace_name, item_ids))

    async def list_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, limit: int, page_token: str
    ) -> StoredItemPage:
        request = structs.ListDeadLettersRequest(namespace_name, topic, limit, page_token, _shards_of(context))
        page: StoredItemPage = await self._call(context, "listDeadLetters", request)
        return page

    async def redrive_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, item_ids: Sequence[str] | None, limit: int
    ) -> DeadLettersResult:
        request = structs.RedriveDeadLettersRequest(namespace_name, topic, item_ids, limit)
        told = await self._call(context, "redriveDeadLetters", request)
        return DeadLettersResult(told.count, _errors(told.errors))

    async def purge_dead_letters(
        self, context: CallContext, namespace_name: str, topic: str, item_ids: Sequence[str] | None, limit: int
    ) -> DeadLettersResult:
        request = structs.PurgeDeadLettersRequest(namespace_name, topic, item_ids, limit)
        told = await self._call(context, "purgeDeadLetters", request)
        return DeadLettersResult(told.count, _errors(told.errors))

    async def plan_export(
        self, context: CallContext, namespace_name: str, splits_per_shard: int, partial: bool = False
    ) -> ExportPlan:
        request = structs.PlanExportRequest(namespace_name, splits_per_shard, _shards_of(context), partial)
        plan: ExportPlan = await self._call(context, "planExport", request)
        return plan

    async def export_items(self, context: CallContext, namespace_name: str, query: ExportQuery) -> ExportPage:
        page: ExportPage = await self._call(context, "exportItems", query)
        return page

    async def remove_shard(self, context: CallContext, shard_id: int) -> None:
        await self._call(context, "removeShard", structs.RemoveShardRequest(shard_id))

    async def get_host_status(self, context: CallContext) -> HostStatus:
        status: HostStatus = await self._call(context, "getHostStatus", structs.HostStatusRequest())
        return status

    async def report(self, stocks: Mapping[Topic, Reported]) -> list[Pointer]:
        """Tell that host, their home, what this one has of topics."""
        told = [
            structs.TopicStock(number, name, *stock, is_wanted) for (number, name), (stock, is_wanted) in stocks.items()
        ]
        return pointers_of((await self._call(_BY_ITSELF, "report", structs.ReportRequest(told))).pointers)

    async def announce(self, opened: Sequence[OpenedShard]) -> None:
        """Tell that host of shards that this one has opened. A build that does not know the field learns nothing."""
        told = [structs.OpenedShard(*shard) for shard in opened]
        await self._call(_BY_ITSELF, "report", structs.ReportRequest([], told))

    async def seek(self, wishes: Mapping[Topic, int]) -> list[Pointer]:
        """Ask that host, their home, who has items of topics."""
        told = [structs.TopicWish(number, name, count) for (number, name), count in wishes.items()]
        return pointers_of((await self._call(_BY_ITSELF, "seek", structs.SeekRequest(told))).pointers)

    async def ask(self, asks: Sequence[CapAsk]) -> list[CapGrant] | None:
        """Ask that host, their home, for tokens of caps. None if it is of a build that has none."""
        told = [structs.CapAsk(*ask.key, *ask[1:]) for ask in asks]
        grants = (await self._call(_BY_ITSELF, "seek", structs.SeekRequest([], told))).grants
        return None if grants is None else grants_of(grants)

    async def hint(self, pointers: Sequence[Pointer]) -> None:
        """Tell that host, which waits for their topics, who has items."""
        await self._call(_BY_ITSELF, "hint", structs.HintRequest([told_pointer(at) for at in pointers]))

    async def _batch(self, context: CallContext, method: str, request: Any) -> PositionErrors:
        return _errors((await self._call(context, method, request)).errors)


def _shards_of(context: CallContext) -> list[int] | None:
    return None if context.shards is None else sorted(context.shards)


def _errors(told: dict[int, Any] | None) -> PositionErrors:
    """Items that are wrong in the same way share one error, as they did there."""
    if not told:
        return {}
    known: dict[tuple[int, str], FoqsError] = {}
    errors: PositionErrors = {}
    for position, error in told.items():
        key = (error.code, error.message)
        if key not in known:
            known[key] = error_for_code(error.code, error.message or "", error.retry_after_ms, error.nothing_done)
        errors[position] = known[key]
    return errors
