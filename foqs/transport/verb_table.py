"""Every verb of the contract: from a decoded request to the call behind it, and from its outcome to a frame.

Requests go in as the decoded structs. Results come out as they are: the classes of `foqs.model.calls` have the fields
of their wire structs. Nothing that a call raises leaves here but as a response.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple

import structlog

from foqs.contract.verbs import VERBS, Call, Whole
from foqs.model import calls, limits
from foqs.model.access import AccessGrant, RefusalRow
from foqs.model.access_calls import AccessCertificate, AccessPrincipal, AccessToken
from foqs.model.audit import AuditRecord
from foqs.model.bulk_work import BulkState, BulkWork
from foqs.model.calls import CallContext, PositionErrors
from foqs.model.cluster_calls import ClusterHost
from foqs.model.delivered import Delivered
from foqs.model.errors import (
    ErrorCode,
    FoqsError,
    InternalError,
    InvalidArgumentError,
    PermissionDeniedError,
    TooLargeError,
    error_for_code,
)
from foqs.model.event_history import HistoryRow
from foqs.model.facts import HostTopic, ItemFacts, ShardFacts
from foqs.model.holder import ConsumerRow
from foqs.model.item_filter import ItemFilter
from foqs.model.namespace import NamespaceSettings
from foqs.model.reasons import Reason, WhyNone
from foqs.model.topic_rates import TopicRates
from foqs.wire.codec import METHODS, Codec, Method, encode_as, structs

SLICE_BYTES_MAX = 256 * limits.KIB
"""Bytes of a page that one turn of the event loop encodes. One more item may be among them."""
SHARD_IDS_MAX = 65_536
"""Shards that a host may ask another one for: all that there can be."""

OK = "OK"
"""The outcome of a call that was done, beside the names of the error codes."""

Check = Callable[[CallContext, str, Any], None]
"""Raises PermissionDeniedError if the caller has no permission for the verb of this name now."""

_WITH_REQUEST_ID = frozenset({ErrorCode.PERMISSION_DENIED, ErrorCode.INTERNAL})

_log = structlog.get_logger(__name__)

for _cls, _struct in (
    (AuditRecord, structs.AuditRecord),
    (calls.Delivery, structs.Item),
    (calls.TopicStats, structs.TopicStats),
    (calls.ExportSplit, structs.ExportSplit),
    (calls.ItemFailure, structs.ItemFailure),
    (BulkState, structs.BulkState),
    (BulkWork, structs.BulkWork),
    (ItemFilter, structs.ItemFilter),
    (AccessGrant, structs.AccessGrant),
    (RefusalRow, structs.RefusedCalls),
    (AccessToken, structs.AccessToken),
    (AccessPrincipal, structs.AccessPrincipal),
    (AccessCertificate, structs.AccessCertificate),
    (calls.ShardStatus, structs.ShardStatus),
    (calls.ShardAddress, structs.ShardAddress),
    (ClusterHost, structs.ClusterHost),
    (ConsumerRow, structs.ConsumerRow),
    (NamespaceSettings, structs.NamespaceSettings),
    (Reason, structs.Reason),
    (TopicRates, structs.TopicRates),
    (HistoryRow, structs.HistoryRow),
    (HostTopic, structs.HostTopic),
    (ShardFacts, structs.ShardFacts),
    (ItemFacts, structs.ItemFacts),
):
    encode_as(_cls, _struct)

_item_classes: set[type] = {calls.Delivery}
"""Classes of deliveries that the encoder can read."""


def request_ids(started_ms: int, kind: str = "") -> Iterator[str]:
    """Number the requests of a process that began at this time: its start in base 36, their kind, and a counter."""
    digits, left = "", max(0, started_ms)
    while left or not digits:
        left, digit = divmod(left, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return (f"{digits}-{kind}{number}" for number in count(1))


class Answered(NamedTuple):
    frame: bytes
    outcome: str
    """The metrics count calls by it."""
    read_count: int = 0
    """How much a page had to look at and put into its frame, which the frame of the call could not tell."""


class Verbs:
    """Does each verb of the contract: from a request to the call behind it, and from its outcome to a frame.

    The call tables of all connections use the one that their server made. It owns nothing.
    """

    def __init__(
        self,
        call: Call,
        is_living_peer: Callable[[str, str], bool],
        codec: Codec,
        request_ids: Iterator[str],
        check: Check | None = None,
    ) -> None:
        """`call` does the work; `codec` is the server's. `check` raises PermissionDeniedError as `call` would."""
        self._call = call
        self._check = check
        self._codec = codec
        self._request_ids = request_ids
        self.is_living_peer = is_living_peer
        """Return True if a host that has proven itself by this secret can still call as a host of the cluster."""

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
                row = _ROWS[method.name]
                if context.peer and not row.is_for_peers:
                    raise PermissionDeniedError(f"{method.name} is not for hosts to ask of each other")
                check_required(method, request)
                if row.names_shards:
                    context = _of_shards(context, request)
                response = None if row.is_own else await self._call(context, method.name, request)
                if row.respond is not None:
                    response = row.respond(response)
                if isinstance(response, calls.StoredItemPage | calls.ExportPage):
                    frame = await self._encode_page(method, response, seqid)
                else:
                    frame = self._encode_done(method, response, seqid)
                answered = Answered(frame, OK, len(getattr(response, row.costs)) if row.costs else 0)
            except FoqsError as error:
                answered = self.failed(method, error, seqid)
            except asyncio.CancelledError as cause:
                if _is_being_cancelled():
                    raise
                answered = self.failed(method, self._internal_error(context, method, cause), seqid)
            except Exception as cause:
                answered = self.failed(method, self._internal_error(context, method, cause), seqid)
            ended(answered)
        except Exception as cause:
            _log.error("call_not_answered", method=method.name, caller=context.caller, exc_info=cause)
            ended(None)

    def _encode_done(self, method: Method, response: Any, seqid: int) -> bytes:
        """The frame. Raises TooLargeError that does not say that nothing was done."""
        try:
            if isinstance(response, Delivered):
                return self._codec.encode_delivered(method, response.parts, len(response), seqid)
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
        """The answer with `error`, which gets the id of a request if it is one to ask operators about."""
        if error.request_id is None and error.code in _WITH_REQUEST_ID:
            error = error_for_code(
                error.code,
                error.message,
                error.retry_after_ms,
                error.nothing_done,
                request_id=next(self._request_ids),
            )
        return Answered(self._codec.encode_error(method, error, seqid), error.code.name)

    def refusal(self, context: CallContext, method: Method, request: Any) -> PermissionDeniedError | None:
        """Return the error with which a call would be refused now, if it would be."""
        if self._check is None:
            return None
        try:
            self._check(context, method.name, request)
        except PermissionDeniedError as error:
            return error
        return None

    def _internal_error(self, context: CallContext, method: Method, cause: BaseException) -> InternalError:
        """Log the cause under an id, and give the caller the id alone."""
        request_id = next(self._request_ids)
        _log.error("call_failed", method=method.name, caller=context.caller, request_id=request_id, exc_info=cause)
        return InternalError("internal error: the host's log has the cause", request_id=request_id)


def check_required(method: Method, request: Any) -> None:
    """Raise InvalidArgumentError that names what the caller must send and did not, or sent in a wrong type.

    The elements of a list need no check: those of a wrong type never leave the decoder.
    """
    if request is None:
        raise InvalidArgumentError(f"{method.name}: the request is absent or not a struct")
    for name in method.required:
        if getattr(request, name) is None:
            raise InvalidArgumentError(f"{method.name}: {name} is required; it is absent or of a wrong type")


def dequeue_response(deliveries: Sequence[object]) -> Any:
    """The answer with these items: `Delivery`, or anything that has its attributes. Or with why there are none."""
    if isinstance(deliveries, Delivered):
        return deliveries
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


def _enqueue_response(result: calls.EnqueueResult) -> Any:
    return structs.EnqueueResponse(result.ids, _item_errors(result.errors), result.duplicates)


def _batch_response(errors: PositionErrors) -> Any:
    return structs.BatchResponse(_item_errors(errors))


def _dead_letters_response(result: calls.DeadLettersResult) -> Any:
    errors = _item_errors(result.errors)
    return structs.DeadLettersResponse(result.count, errors, result.ids or None, result.next_page_token)


def _item_errors(errors: PositionErrors) -> dict[int, Any]:
    """Items that are wrong in the same way may have one error: it is told once."""
    if not errors:
        return {}
    distinct = {id(error): error for error in errors.values()}
    errors_by_id = {
        key: structs.ItemError(int(error.code), error.message, error.retry_after_ms, error.nothing_done)
        for key, error in distinct.items()
    }
    return {position: errors_by_id[id(error)] for position, error in errors.items()}


def _is_being_cancelled() -> bool:
    """Whether the current task is. A frame that knew its own task would be a cycle for the garbage collector."""
    task = asyncio.current_task()
    return task is None or bool(task.cancelling())


def _slices(items: Sequence[calls.StoredItem]) -> Iterator[Sequence[calls.StoredItem]]:
    first = size_bytes = 0
    for end, item in enumerate(items, 1):
        size_bytes += len(item.payload) + len(item.metadata)
        if size_bytes >= SLICE_BYTES_MAX or end - first >= limits.SLICE_ITEMS_MAX or end == len(items):
            yield items[first:end]
            first, size_bytes = end, 0


class _Row(NamedTuple):
    """How the transport serves a verb, from its row in the contract."""

    is_for_peers: bool
    is_own: bool
    """True if the call table of a connection does it."""
    names_shards: bool
    """True if a host may name the shards that the request is about."""
    respond: Callable[[Any], Any] | None
    """Makes the response of a result; None if the result is the response as it is."""
    costs: str


_RESPONSES: dict[Any, Callable[[Any], Any]] = {
    calls.EnqueueResult: _enqueue_response,
    list[calls.Delivery]: dequeue_response,
    calls.PositionErrors: _batch_response,
    calls.DeadLettersResult: _dead_letters_response,
}


def _row_of(name: str) -> _Row:
    verb, response = VERBS[name], METHODS[name].result.thrift_spec[0][2]
    respond = _RESPONSES.get(verb.result)
    if verb.result is None:
        respond = lambda _: response()  # noqa: E731
    elif respond is None and verb.result is not response:
        encode_as(verb.result, response)
    return _Row(
        verb.is_for_peers, verb.route is Whole.OF_CONNECTION, hasattr(verb.request(), "shard_ids"), respond, verb.costs
    )


_ROWS = {name: _row_of(name) for name in VERBS}
