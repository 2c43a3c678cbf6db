"""Every verb of the contract: from a decoded request to the call behind it, and from its outcome to a frame.

Requests go in as the decoded structs. Results come out as they are: the classes of `foqs.model.calls` have the fields
of their wire structs. Nothing that a call raises leaves here but as a response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast
from uuid import uuid4

import structlog

from foqs.model import calls, limits
from foqs.model.admin_calls import AdminCalls
from foqs.model.calls import CallContext, PositionErrors, QueueCalls
from foqs.model.cluster_calls import ClusterCalls, ClusterHost, ClusterHosts
from foqs.model.errors import (
    FoqsError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    TooLargeError,
)
from foqs.model.jobs import Job, JobPage
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.model.peer_calls import (
    CapGrantTold,
    GreetResult,
    HelloResult,
    JoinResult,
    PeerCalls,
    SeekResult,
    TopicPointer,
)
from foqs.model.policy import TopicPolicyEntry, TopicPolicyPage
from foqs.model.reasons import Reason, WhyCalls
from foqs.wire.codec import HANDSHAKE, Codec, Method, encode_as, structs

SLICE_BYTES_MAX = 256 * limits.KIB
"""Bytes of a page that one turn of the event loop encodes. One more item may be among them."""

_log = structlog.get_logger(__name__)

for _cls, _struct in (
    (calls.Delivery, structs.Item),
    (calls.TopicStats, structs.TopicStats),
    (calls.TopicPage, structs.ActiveTopicsResponse),
    (calls.StoredItem, structs.StoredItem),
    (calls.StoredItemPage, structs.StoredItemsResponse),
    (calls.ExportSplit, structs.ExportSplit),
    (calls.ExportPlan, structs.PlanExportResponse),
    (calls.ExportPage, structs.ExportItemsResponse),
    (calls.NamespacePage, structs.ListNamespacesResponse),
    (calls.ShardStatus, structs.ShardStatus),
    (calls.HostStatus, structs.HostStatus),
    (calls.ShardAddress, structs.ShardAddress),
    (calls.ClusterShard, structs.ClusterShard),
    (calls.ClusterShards, structs.ListShardsResponse),
    (calls.ShardMap, structs.ShardMap),
    (ClusterHost, structs.ClusterHost),
    (ClusterHosts, structs.ListHostsResponse),
    (GreetResult, structs.GreetResponse),
    (JoinResult, structs.JoinResponse),
    (HelloResult, structs.HelloResponse),
    (TopicPointer, structs.TopicPointer),
    (CapGrantTold, structs.CapGrant),
    (Namespace, structs.Namespace),
    (Job, structs.Job),
    (JobPage, structs.ListJobsResponse),
    (NamespaceSettings, structs.NamespaceSettings),
    (TopicPolicyEntry, structs.TopicPolicy),
    (TopicPolicyPage, structs.ListTopicPoliciesResponse),
):
    encode_as(_cls, _struct)
encode_as(Reason, structs.Reason)

_item_classes: set[type] = {calls.Delivery}
"""Classes of deliveries that the encoder can read."""

OF_PEERS = frozenset(
    {
        "enqueue", "dequeue", "ack", "nack", "extendLease", "getActiveTopics", "getShardMap",
        "peekItems", "getItem", "deleteItems", "listDeadLetters", "redriveDeadLetters", "purgeDeadLetters",
        "planExport", "exportItems", "removeShard", "getHostStatus",
        "report", "seek", "hint", *HANDSHAKE,
    }
)  # fmt: skip
"""What a host may ask of another one. Nothing of it makes or changes namespaces, policies, jobs or shards."""
SHARD_IDS_MAX = 65_536
"""Shards that a host may ask another one for: all that there can be."""

OK = "OK"
"""The outcome of a call that was done, beside the names of the error codes."""


class Answered(NamedTuple):
    frame: bytes
    outcome: str
    """The metrics count calls by it."""
    looked_at_count: int = 0
    """How much a page had to look at and put into its frame, which the frame of the call could not tell."""


class _Verb(NamedTuple):
    """How a verb is done: `call` hands a request on, and `respond` makes the response of what that returned."""

    call: Callable[[CallContext, Any], Awaitable[Any]]
    respond: Callable[[Any], Any] | None = None
    """None where the result is the response as it is."""
    list_name: str = ""
    """The name of its list if a response costs what it holds and not what was asked; else it is empty."""


# A lambda makes no coroutine of its own: one call goes through this file in one coroutine.


def _of_queue(queue: QueueCalls) -> dict[str, _Verb]:
    """The verbs of users."""
    return {
        "enqueue": _Verb(
            lambda c, r: queue.enqueue(c, r.namespace_name, r.items, r.bulk, r.job_id),
            lambda result: structs.EnqueueResponse(result.ids, _item_errors(result.errors), result.duplicates),
        ),
        "dequeue": _Verb(
            lambda c, r: (
                queue.dequeue(
                    c, r.namespace_name, r.topics, r.lease_ms, r.wait_ms, r.topic_prefix, r.count, r.says_begun or False
                )
                if not r.want_why
                else dequeue_or_why(queue, c, r)
            ),
            dequeue_response,
        ),
        "ack": _Verb(lambda c, r: queue.ack(c, r.namespace_name, r.receipts, r.repeated or False), _batch_response),
        "nack": _Verb(lambda c, r: queue.nack(c, r.namespace_name, r.nacks), _batch_response),
        "extendLease": _Verb(
            lambda c, r: queue.extend_lease(c, r.namespace_name, r.receipts, r.lease_ms, r.begun or ()), _batch_response
        ),
        "getActiveTopics": _Verb(
            lambda c, r: queue.get_active_topics(
                _of_shards(c, r), r.namespace_name, r.prefix, r.limit, r.page_token, r.partial or False
            ),
            list_name="topics",
        ),
        "getShardMap": _Verb(lambda c, r: queue.get_shard_map(c, r.namespace_name)),
        "endWait": _Verb(_nothing, lambda _: structs.EndWaitResponse()),
    }


def _of_namespaces(admin: AdminCalls) -> dict[str, _Verb]:
    """The verbs of operators for namespaces and for policies of topics."""
    return {
        "createNamespace": _Verb(lambda c, r: admin.create_namespace(c, r.name, r.settings)),
        "updateNamespace": _Verb(lambda c, r: admin.update_namespace(c, r.name, r.settings)),
        "getNamespace": _Verb(lambda c, r: admin.get_namespace(c, r.name)),
        "listNamespaces": _Verb(
            lambda c, r: admin.list_namespaces(c, r.prefix, r.limit, r.page_token), list_name="namespaces"
        ),
        "deleteNamespace": _Verb(
            lambda c, r: admin.delete_namespace(c, r.name), lambda _: structs.DeleteNamespaceResponse()
        ),
        "recoverNamespace": _Verb(lambda c, r: admin.recover_namespace(c, r.number, r.name, r.settings)),
        "setTopicPolicy": _Verb(
            lambda c, r: admin.set_topic_policy(c, r.namespace_name, r.topic, r, r.is_prefix or False)
        ),
        "setTopicPolicies": _Verb(
            lambda c, r: admin.set_topic_policies(c, r.namespace_name, r.changes), _batch_response
        ),
        "getTopicPolicy": _Verb(
            lambda c, r: admin.get_topic_policy(c, r.namespace_name, r.topic, r.is_prefix or False)
        ),
        "listTopicPolicies": _Verb(
            lambda c, r: admin.list_topic_policies(
                c, r.namespace_name, r.prefix, r.limit, r.page_token, r.with_prefixes or False
            ),
            list_name="policies",
        ),
    }


def _of_items(admin: AdminCalls) -> dict[str, _Verb]:
    """The verbs of operators for stored items."""
    return {
        "peekItems": _Verb(
            lambda c, r: admin.peek_items(_of_shards(c, r), r.namespace_name, r.topic, r.limit, r.page_token),
            list_name="items",
        ),
        "getItem": _Verb(lambda c, r: admin.get_item(c, r.namespace_name, r.id)),
        "deleteItems": _Verb(lambda c, r: admin.delete_items(c, r.namespace_name, r.ids), _batch_response),
        "listDeadLetters": _Verb(
            lambda c, r: admin.list_dead_letters(_of_shards(c, r), r.namespace_name, r.topic, r.limit, r.page_token),
            list_name="items",
        ),
        "redriveDeadLetters": _Verb(
            lambda c, r: admin.redrive_dead_letters(c, r.namespace_name, r.topic, r.ids, r.limit, r.page_token),
            _dead_letters_response,
        ),
        "purgeDeadLetters": _Verb(
            lambda c, r: admin.purge_dead_letters(c, r.namespace_name, r.topic, r.ids, r.limit, r.page_token),
            _dead_letters_response,
        ),
    }


def _of_cluster(admin: ClusterCalls) -> dict[str, _Verb]:
    """The verbs of operators for jobs, exports, shards and hosts."""
    return {
        "createJob": _Verb(lambda c, r: admin.create_job(c, r.namespace_name, r.id, r.items_per_second_max, r.detail)),
        "updateJob": _Verb(
            lambda c, r: admin.update_job(
                c, r.namespace_name, r.id, r.state, r.items_per_second_max, r.rows_count, r.detail
            )
        ),
        "getJob": _Verb(lambda c, r: admin.get_job(c, r.namespace_name, r.id)),
        "listJobs": _Verb(lambda c, r: admin.list_jobs(c, r.namespace_name, r.limit, r.page_token), list_name="jobs"),
        "planExport": _Verb(
            lambda c, r: admin.plan_export(_of_shards(c, r), r.namespace_name, r.splits_per_shard, bool(r.partial))
        ),
        "exportItems": _Verb(lambda c, r: admin.export_items(c, r.namespace_name, r), list_name="items"),
        "listShards": _Verb(lambda c, _: admin.list_shards(c), list_name="shards"),
        "addShard": _Verb(lambda c, r: admin.add_shard(c, r.shard_id, r.place, r.tier)),
        "updateShard": _Verb(
            lambda c, r: admin.update_shard(c, r.shard_id, r.state, r.pinned_to, r.tier, r.last or False)
        ),
        "removeShard": _Verb(lambda c, r: admin.remove_shard(c, r.shard_id), lambda _: structs.RemoveShardResponse()),
        "listHosts": _Verb(lambda c, _: admin.list_hosts(c), list_name="hosts"),
        "getHostStatus": _Verb(lambda c, _: admin.get_host_status(c), list_name="shards"),
    }


def _of_peers(peers: PeerCalls) -> dict[str, _Verb]:
    """The verbs of other hosts."""
    return {
        "greet": _Verb(lambda c, r: peers.greet(c, r.version, r.caller_id, r.callee_id, r.nonce)),
        "join": _Verb(lambda c, r: peers.join(c, r.proof)),
        "hello": _Verb(lambda c, r: peers.hello(c, r.host_id, r.challenge)),
        "prove": _Verb(lambda c, r: peers.prove(c, r.host_id, r.challenge, r.proof), lambda _: structs.ProveResponse()),
        "report": _Verb(lambda c, r: peers.report(c, r.stocks or (), r.opened or ()), structs.PointersResponse),
        "seek": _Verb(lambda c, r: peers.seek(c, r.wishes or (), r.asks or ()), _seek_response),
        "hint": _Verb(lambda c, r: peers.hint(c, r.pointers or ()), lambda _: structs.HintResponse()),
    }


async def _nothing(_context: CallContext, _request: Any) -> None:
    """Do nothing: the calls of a connection are its call table's own, which does what was asked."""


class Verbs:
    """Does each verb of the contract: from a request to the call behind it, and from its outcome to a frame.

    The call tables of all connections use the one that their server made. It owns nothing but the table of verbs.
    """

    def __init__(self, queue: QueueCalls, admin: ClusterCalls, peers: PeerCalls, codec: Codec) -> None:
        """`queue` and `admin` do the work, `peers` what other hosts ask; `codec` is the server's."""
        self._codec = codec
        self.is_living_peer = peers.is_living
        """Whether a host that has proven to be one of the cluster may still call as that."""
        self._by_name: dict[str, _Verb] = {
            **_of_queue(queue),
            **_of_namespaces(admin),
            **_of_items(admin),
            **_of_cluster(admin),
            **_of_peers(peers),
        }

    async def serve(
        self,
        context: CallContext,
        method: Method,
        request: Any,
        seqid: int,
        ended: Callable[[Answered | None], object],
    ) -> None:
        """Do one call as a task of its own, and give `ended` its response, but not if the task is cancelled.

        If no response can be made, or `ended` fails to take it, the cause is logged and `ended` gets None.
        """
        try:
            try:
                if context.peer and method.name not in OF_PEERS:
                    raise PermissionDeniedError(f"{method.name} is not for hosts to ask of each other")
                check_required(method, request)
                verb = self._by_name[method.name]
                response = await verb.call(context, request)
                if verb.respond is not None:
                    response = verb.respond(response)
                if isinstance(response, calls.StoredItemPage | calls.ExportPage):
                    frame = await self._encode_page(method, response, seqid)
                else:
                    frame = self._encode_done(method, response, seqid)
                answered = Answered(frame, OK, len(getattr(response, verb.list_name)) if verb.list_name else 0)
            except FoqsError as error:
                answered = self.failed(method, error, seqid)
            except asyncio.CancelledError as cause:
                if _is_being_cancelled():
                    raise
                answered = self.failed(method, _internal_error(context, method, cause), seqid)
            except Exception as cause:
                answered = self.failed(method, _internal_error(context, method, cause), seqid)
            ended(answered)
        except Exception as cause:
            _log.error("call_not_answered", method=method.name, caller=context.caller, exc_info=cause)
            ended(None)

    def _encode_done(self, method: Method, response: Any, seqid: int) -> bytes:
        """The frame. Raises TooLargeError that does not say that nothing was done."""
        try:
            return self._codec.encode_reply(method, response, seqid)
        except TooLargeError as error:
            raise TooLargeError(error.message, nothing_done=False) from error

    async def _encode_page(self, method: Method, page: calls.StoredItemPage | calls.ExportPage, seqid: int) -> bytes:
        """Encode a page in slices: it may have a thousand items and limits.PAGE_BYTES_MAX. Raises TooLargeError."""
        parts: list[bytes] = []
        for some in _slices(page.items):
            parts.append(self._codec.encode_elements(structs.StoredItemsResponse(some, None)))
            await asyncio.sleep(0)
        rest = replace(page, items=[])
        return self._codec.join_reply(method, rest, len(page.items), parts, seqid)

    def failed(self, method: Method, error: FoqsError, seqid: int) -> Answered:
        """The answer with `error`."""
        return Answered(self._codec.encode_error(method, error, seqid), error.code.name)


def check_required(method: Method, request: Any) -> None:
    """Raise InvalidArgumentError that names what the caller must send and did not, or sent in a wrong type.

    The elements of a list need no check: those of a wrong type never leave the decoder.
    """
    if request is None:
        raise InvalidArgumentError(f"{method.name}: the request is absent or not a struct")
    for name in method.required:
        if getattr(request, name) is None:
            raise InvalidArgumentError(f"{method.name}: {name} is required; it is absent or of a wrong type")


async def dequeue_or_why(queue: QueueCalls, context: CallContext, request: Any) -> Sequence[object]:
    """The deliveries, or the reasons why there are none. What cannot be told of an empty dequeue is no error of it."""
    deliveries = await queue.dequeue(
        context,
        request.namespace_name,
        request.topics,
        request.lease_ms,
        request.wait_ms,
        request.topic_prefix,
        request.count,
        request.says_begun or False,
    )
    if deliveries:
        return deliveries
    try:
        why = cast(WhyCalls, queue).why_empty
        return WhyNone(await why(context, request.namespace_name, request.topics, request.topic_prefix))
    except FoqsError:
        return deliveries


class WhyNone(list[Reason]):
    """The reasons of a dequeue that got nothing."""


def dequeue_response(deliveries: Sequence[object]) -> Any:
    """The answer with these items: `Delivery`, or anything that has its attributes. Or with why there are none."""
    if isinstance(deliveries, WhyNone):
        return structs.DequeueResponse([], list(deliveries))
    if not _item_classes.issuperset(map(type, deliveries)):
        for cls in set(map(type, deliveries)) - _item_classes:
            encode_as(cls, structs.Item)
            _item_classes.add(cls)
    return structs.DequeueResponse(deliveries)


def _of_shards(context: CallContext, request: Any) -> CallContext:
    """The context of a call that may name the shards that it is about, which hosts alone do."""
    if request.shard_ids is None:
        return context
    if not context.peer:
        raise InvalidArgumentError("shard_ids is set, which only hosts of this cluster may do: leave it out")
    if len(request.shard_ids) > SHARD_IDS_MAX:
        raise InvalidArgumentError(f"shard_ids has {len(request.shard_ids)} elements, at most {SHARD_IDS_MAX} may be")
    return replace(context, shards=frozenset(request.shard_ids))


def _batch_response(errors: PositionErrors) -> Any:
    return structs.BatchResponse(_item_errors(errors))


def _seek_response(found: SeekResult) -> Any:
    return structs.PointersResponse(found.pointers, found.grants)


def _dead_letters_response(result: calls.DeadLettersResult) -> Any:
    errors = _item_errors(result.errors)
    return structs.DeadLettersResponse(result.count, errors, result.ids or None, result.next_page_token)


def _item_errors(errors: PositionErrors) -> dict[int, Any]:
    """Items that are wrong in the same way may have one error: it is told once."""
    if not errors:
        return {}
    distinct = {id(error): error for error in errors.values()}
    told = {
        key: structs.ItemError(int(error.code), error.message, error.retry_after_ms, error.nothing_done)
        for key, error in distinct.items()
    }
    return {position: told[id(error)] for position, error in errors.items()}


def _is_being_cancelled() -> bool:
    """Whether the current task is. A frame that knew its own task would be a cycle for the garbage collector."""
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())


def _internal_error(context: CallContext, method: Method, cause: BaseException) -> InternalError:
    """Log the cause under an id, and give the caller the id alone."""
    error_id = uuid4().hex[:12]
    _log.error("call_failed", method=method.name, caller=context.caller, error_id=error_id, exc_info=cause)
    return InternalError(f"internal error {error_id}: the host's log has the cause")


def _slices(items: Sequence[calls.StoredItem]) -> Iterator[Sequence[calls.StoredItem]]:
    first = size_bytes = 0
    for end, item in enumerate(items, 1):
        size_bytes += len(item.payload) + len(item.metadata)
        if size_bytes >= SLICE_BYTES_MAX or end - first >= limits.SLICE_ITEMS_MAX or end == len(items):
            yield items[first:end]
            first, size_bytes = end, 0
