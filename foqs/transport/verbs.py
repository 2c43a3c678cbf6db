"""Every verb of the contract: from a decoded request to the call behind it, and from its outcome to a frame.

Requests go in as the decoded structs, results come out as they are: the classes of `foqs.model.calls` have the
fields of their wire structs. Nothing that a call raises leaves here but as an answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, NamedTuple
from uuid import uuid4

import structlog

from foqs.model import calls, limits
from foqs.model.calls import AdminCalls, CallContext, PositionErrors, QueueCalls
from foqs.model.errors import FoqsError, InternalError, InvalidArgumentError, TooLargeError
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.wire.codec import Codec, Method, encode_as, structs

_log = structlog.get_logger(__name__)

for _cls, _struct in (
    (calls.Delivery, structs.Item),
    (calls.TopicStats, structs.TopicStats),
    (calls.TopicPage, structs.ActiveTopicsResponse),
    (calls.StoredItem, structs.StoredItem),
    (calls.StoredItemPage, structs.StoredItemsResponse),
    (calls.NamespacePage, structs.ListNamespacesResponse),
    (calls.ShardStatus, structs.ShardStatus),
    (calls.HostStatus, structs.HostStatus),
    (Namespace, structs.Namespace),
    (NamespaceSettings, structs.NamespaceSettings),
):
    encode_as(_cls, _struct)

_item_classes: set[type] = {calls.Delivery}
"""Classes of deliveries that the encoder can read."""

_PAGES: dict[type, str] = {
    calls.TopicPage: "topics",
    calls.StoredItemPage: "items",
    calls.NamespacePage: "namespaces",
    calls.HostStatus: "shards",
}
"""Answers that cost what they hold and not what was asked, with the name of their list."""

OK = "OK"
"""The outcome of a call that was done, beside the names of the error codes."""


class Answered(NamedTuple):
    frame: bytes
    outcome: str
    """For the metrics."""
    looked_at_count: int = 0
    """Of a page: what had to be looked at and put into the frame, for nothing that the call's own frame could tell."""


class Verbs:
    """Answers calls. `queue` and `admin` do the work; `codec` is the server's."""

    def __init__(self, queue: QueueCalls, admin: AdminCalls, codec: Codec) -> None:
        self._queue = queue
        self._admin = admin
        self._codec = codec
        self._by_name: dict[str, Callable[[CallContext, Any], Awaitable[Any]]] = {
            "enqueue": self._enqueue,
            "dequeue": self._dequeue,
            "ack": self._ack,
            "nack": self._nack,
            "extendLease": self._extend_lease,
            "getActiveTopics": self._get_active_topics,
            "createNamespace": lambda c, r: admin.create_namespace(c, r.name, r.settings),
            "updateNamespace": lambda c, r: admin.update_namespace(c, r.name, r.settings),
            "getNamespace": lambda c, r: admin.get_namespace(c, r.name),
            "listNamespaces": lambda c, r: admin.list_namespaces(c, r.prefix, r.limit, r.page_token),
            "deleteNamespace": self._delete_namespace,
            "recoverNamespace": lambda c, r: admin.recover_namespace(c, r.number, r.name),
            "peekItems": lambda c, r: admin.peek_items(c, r.namespace_name, r.topic, r.limit, r.page_token),
            "getItem": lambda c, r: admin.get_item(c, r.namespace_name, r.id),
            "deleteItems": self._delete_items,
            "listDeadLetters": lambda c, r: admin.list_dead_letters(
                c, r.namespace_name, r.topic, r.limit, r.page_token
            ),
            "redriveDeadLetters": self._redrive_dead_letters,
            "purgeDeadLetters": self._purge_dead_letters,
            "getHostStatus": lambda c, r: admin.get_host_status(c),
        }

    async def answer(self, context: CallContext, method: Method, request: Any, seqid: int) -> Answered:
        """Do one call.

        Raises nothing but CancelledError, and that only where the task itself is being cancelled.
        """
        try:
            check_required(method, request)
            response = await self._by_name[method.name](context, request)
            looked_at_count = len(getattr(response, _PAGES.get(type(response), ""), ()))
            if isinstance(response, calls.StoredItemPage):
                frame = await self._encode_page(method, response, seqid)
            else:
                frame = self._encode_done(method, response, seqid)
            return Answered(frame, OK, looked_at_count)
        except FoqsError as error:
            return self.failed(method, error, seqid)
        except asyncio.CancelledError as cause:
            if _is_being_cancelled():
                raise
            return self.failed(method, _internal_error(context, method, cause), seqid)
        except Exception as cause:
            return self.failed(method, _internal_error(context, method, cause), seqid)

    def _encode_done(self, method: Method, response: Any, seqid: int) -> bytes:
        """The frame. Raises TooLargeError that does not say that nothing was done."""
        try:
            return self._codec.encode_reply(method, response, seqid)
        except TooLargeError as error:
            raise TooLargeError(error.message, nothing_done=False) from error

    async def _encode_page(self, method: Method, page: calls.StoredItemPage, seqid: int) -> bytes:
        """As `_encode_done`, in slices: it may have a thousand items, and limits.PAGE_BYTES_MAX."""
        parts: list[bytes] = []
        for some in _slices(page.items):
            parts.append(self._codec.encode_elements(structs.StoredItemsResponse(some, None)))
            await asyncio.sleep(0)
        rest = structs.StoredItemsResponse([], page.next_page_token)
        return self._codec.join_reply(method, rest, len(page.items), parts, seqid)

    def failed(self, method: Method, error: FoqsError, seqid: int) -> Answered:
        """The answer with `error`."""
        return Answered(self._codec.encode_error(method, error, seqid), error.code.name)

    async def _enqueue(self, context: CallContext, r: Any) -> Any:
        result = await self._queue.enqueue(context, r.namespace_name, r.items, r.bulk)
        return structs.EnqueueResponse(result.ids, _item_errors(result.errors), [])

    async def _dequeue(self, context: CallContext, r: Any) -> Any:
        deliveries = await self._queue.dequeue(context, r.namespace_name, r.topics, r.lease_ms, r.wait_ms)
        return dequeue_response(deliveries)

    async def _ack(self, context: CallContext, r: Any) -> Any:
        return _batch_response(await self._queue.ack(context, r.namespace_name, r.receipts, r.repeated or False))

    async def _nack(self, context: CallContext, r: Any) -> Any:
        return _batch_response(await self._queue.nack(context, r.namespace_name, r.nacks))

    async def _extend_lease(self, context: CallContext, r: Any) -> Any:
        return _batch_response(await self._queue.extend_lease(context, r.namespace_name, r.receipts, r.lease_ms))

    async def _get_active_topics(self, context: CallContext, r: Any) -> Any:
        return await self._queue.get_active_topics(context, r.namespace_name, r.prefix, r.limit, r.page_token)

    async def _delete_namespace(self, context: CallContext, r: Any) -> Any:
        await self._admin.delete_namespace(context, r.name)
        return structs.DeleteNamespaceResponse()

    async def _delete_items(self, context: CallContext, r: Any) -> Any:
        return _batch_response(await self._admin.delete_items(context, r.namespace_name, r.ids))

    async def _redrive_dead_letters(self, context: CallContext, r: Any) -> Any:
        result = await self._admin.redrive_dead_letters(context, r.namespace_name, r.topic, r.ids, r.limit)
        return structs.DeadLettersResponse(result.count, _item_errors(result.errors))

    async def _purge_dead_letters(self, context: CallContext, r: Any) -> Any:
        result = await self._admin.purge_dead_letters(context, r.namespace_name, r.topic, r.ids, r.limit)
        return structs.DeadLettersResponse(result.count, _item_errors(result.errors))


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
    """The answer with these items: `Delivery`, or anything that has its attributes."""
    if not _item_classes.issuperset(map(type, deliveries)):
        for cls in set(map(type, deliveries)) - _item_classes:
            encode_as(cls, structs.Item)
            _item_classes.add(cls)
    return structs.DequeueResponse(deliveries)


def _batch_response(errors: PositionErrors) -> Any:
    return structs.BatchResponse(_item_errors(errors))


def _item_errors(errors: PositionErrors) -> dict[int, Any]:
    """Items that are wrong in the same way may have one error: it is told once."""
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
        if size_bytes >= limits.SLICE_BYTES_MAX or end - first >= limits.SLICE_ITEMS_MAX or end == len(items):
            yield items[first:end]
            first, size_bytes = end, 0
