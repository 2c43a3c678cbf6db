"""The rules of the contract for the arguments of a call. A check raises the error that its caller gets."""

from __future__ import annotations

import re
from collections.abc import Sequence

from foqs.contract.requests import DequeueRequest, NewItem, TopicDemand
from foqs.model import limits
from foqs.model.calls import DedupUntil, DeliveryPolicy, ItemContent
from foqs.model.errors import InvalidArgumentError, TooLargeError, shown
from foqs.model.holder import consumer_fault, reserved_fault
from foqs.model.namespace import NamespaceSettings
from foqs.model.topic_name import (
    bucketed,
    check_group,
    fair,
    fairness_key_fault,
    hidden,
    ordered,
    ordering_key_fault,
)

_DELIVERIES = frozenset(DeliveryPolicy)
_DEDUP_UNTIL = frozenset(DedupUntil)
_PRIORITY_MIN, _PRIORITY_MAX = -(1 << 31), (1 << 31) - 1
_INT64_MIN = -(1 << 63)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def topic_fault(topic: object) -> InvalidArgumentError | None:
    """Return the error of an invalid topic name, or None."""
    if not isinstance(topic, str) or not topic or _CONTROL.search(topic):
        return InvalidArgumentError(
            f"topic {shown(topic)} must be text of 1 to {limits.TOPIC_BYTES_MAX} bytes without control characters"
        )
    if len(topic) > limits.TOPIC_BYTES_MAX // 4 and len(topic.encode()) > limits.TOPIC_BYTES_MAX:
        return InvalidArgumentError(
            f"topic of {len(topic.encode())} bytes is over the limit of {limits.TOPIC_BYTES_MAX} bytes"
        )
    return None


def check_topic(topic: str | None) -> str:
    if fault := topic_fault(topic):
        raise fault
    assert topic is not None
    return topic


def check_topic_of(
    topic: str | None,
    group: str | None,
    ordering_key: str | None = None,
    key_buckets: int = 0,
    fairness_key: str | None = None,
) -> str:
    """Check the names of a topic, of its group and of its key, and return the hidden name of their topic."""
    name = check_topic(topic)
    if group:
        name = hidden(name, check_group(group, name))
    if fairness_key is not None:
        if fault := _keys_fault(ordering_key, fairness_key, name):
            raise fault
        return fair(name, fairness_key)
    if ordering_key is None:
        return name
    if fault := ordering_key_fault(ordering_key, name):
        raise fault
    return bucketed(name, ordering_key, key_buckets) if key_buckets else ordered(name, ordering_key)


def _keys_fault(ordering_key: object, fairness_key: object, topic: str) -> InvalidArgumentError | None:
    """Return the error of an invalid fairness key, or of one beside an ordering key, or None."""
    if ordering_key is None:
        return fairness_key_fault(fairness_key, topic)
    return InvalidArgumentError(
        f"ordering_key {shown(ordering_key)} and fairness_key {shown(fairness_key)} are both given: the items of an "
        "ordering key have one order and take no turns, give one"
    )


def check_range(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or not low <= value <= high:
        raise out_of_range(name, value, low, high)
    return value


def out_of_range(name: str, value: object, low: int, high: int) -> InvalidArgumentError:
    return InvalidArgumentError(f"{name} {value!r:.40} is not within {low}..{high}")


def check_consumer(name: object, *, is_shown: bool = False) -> str | None:
    """Check the name that a consumer gives itself, or by `is_shown` one of a list, and return it; None without one."""
    if name is None:
        return None
    if fault := consumer_fault(name):
        raise fault
    assert isinstance(name, str)
    if not is_shown and (fault := reserved_fault(name)):
        raise fault
    return name


def check_batch(name: str, count: int, most: int) -> None:
    if count > most:
        raise too_many(name, count, most)


def too_many(name: str, count: int, most: int) -> TooLargeError:
    return TooLargeError(f"{count} {name} in one call are over the limit of {most}: send several calls")


def too_much_metadata(metadata: bytes, settings: NamespaceSettings) -> TooLargeError:
    return TooLargeError(f"metadata of {len(metadata)} bytes is over the limit of {settings.metadata_bytes_max}")


def check_item(item: NewItem, settings: NamespaceSettings, now_ms: int) -> tuple[ItemContent, int]:
    """Check all fields of an enqueued item except its topic.

    Returns the item's content, and the time at which it becomes ready: now, or the later time that it gives.
    """
    # One function, without calls for valid fields, because it runs for every item.
    payload, metadata, priority = item.payload, item.metadata or b"", item.priority
    if not isinstance(payload, bytes):
        raise InvalidArgumentError("payload is missing")
    if len(payload) > settings.payload_bytes_max:
        raise TooLargeError(f"payload of {len(payload)} bytes is over the limit of {settings.payload_bytes_max}")
    if len(metadata) > settings.metadata_bytes_max:
        raise too_much_metadata(metadata, settings)
    if not isinstance(priority, int) or not _PRIORITY_MIN <= priority <= _PRIORITY_MAX:
        raise out_of_range("priority", priority, _PRIORITY_MIN, _PRIORITY_MAX)
    if item.delivery is not None and item.delivery not in _DELIVERIES:
        raise InvalidArgumentError(f"delivery {item.delivery!r} is not one of AT_LEAST_ONCE (0), AT_MOST_ONCE (1)")
    if item.dedup_id is not None:
        check_dedup_id(item.dedup_id)
    if item.dedup_until is not None:
        _check_dedup_until(item)
    if item.fairness_key is not None:
        # A valid one has become a part of the topic.
        raise _keys_fault(item.ordering_key, item.fairness_key, item.topic or "") or InvalidArgumentError(
            "fairness_key is not valid"
        )
    if item.ordering_key is not None:
        raise ordering_key_fault(item.ordering_key, item.topic or "") or InvalidArgumentError(
            "ordering_key is not valid"
        )
    if item.lease_ms is not None:
        check_range("lease_ms", item.lease_ms, limits.LEASE_MS_MIN, settings.lease_ms_max)
    if item.ttl_ms is not None:
        check_range("ttl_ms", item.ttl_ms, 1, settings.ttl_ms_max)
    due_at, deliver_after_ms = now_ms, item.deliver_after_ms
    if item.delay_ms is not None:
        due_at += check_range("delay_ms", item.delay_ms, 0, settings.delay_ms_max)
        if deliver_after_ms is not None:
            raise InvalidArgumentError("deliver_after_ms and delay_ms are both given: give one")
    elif deliver_after_ms is not None:
        # A past time means now, also one before 1970.
        latest_ms = now_ms + settings.delay_ms_max
        due_at = max(due_at, check_range("deliver_after_ms", deliver_after_ms, _INT64_MIN, latest_ms))
    if not item.trace_context:
        return ItemContent(payload, metadata), due_at
    return ItemContent(payload, metadata, _checked_trace_context(item.trace_context)), due_at


def _check_dedup_until(item: NewItem) -> None:
    if item.dedup_until not in _DEDUP_UNTIL:
        raise InvalidArgumentError(f"dedup_until {item.dedup_until!r} is not one of WINDOW (0), ACKED (1)")
    if item.dedup_id is None:
        raise InvalidArgumentError("dedup_until is given without a dedup_id: give the item one")


def check_dedup_id(dedup_id: object) -> None:
    if not isinstance(dedup_id, str) or not dedup_id:
        raise InvalidArgumentError(f"dedup_id {shown(dedup_id)} must be text of 1 to {limits.DEDUP_ID_BYTES_MAX} bytes")
    if len(dedup_id) > limits.DEDUP_ID_BYTES_MAX // 4 and len(dedup_id.encode()) > limits.DEDUP_ID_BYTES_MAX:
        raise InvalidArgumentError(
            f"dedup_id of {len(dedup_id.encode())} bytes is over the limit of {limits.DEDUP_ID_BYTES_MAX} bytes"
        )


def _checked_trace_context(text: str) -> bytes:
    trace_context = text.encode()
    if len(trace_context) > limits.TRACE_CONTEXT_BYTES_MAX:
        raise TooLargeError(
            f"trace_context of {len(trace_context)} bytes is over the limit of {limits.TRACE_CONTEXT_BYTES_MAX}"
        )
    return trace_context


def check_demands(request: DequeueRequest) -> tuple[dict[str, int], int | None]:
    """Check the demands of a dequeue: items of each topic, by its hidden name, or, with a prefix, of any topics."""
    if request.topic_prefix is not None:
        if request.group:
            check_group(request.group, "")
        return {}, _any_count(request.topics, request.topic_prefix, request.count)
    wants = _wants(request.topics)
    if request.count is not None:
        raise InvalidArgumentError("count is for topic_prefix: give each topic its own count")
    if request.group is not None:
        raise InvalidArgumentError("group is for topic_prefix: give each topic its own group")
    return wants, None


def _any_count(topics: Sequence[TopicDemand], topic_prefix: str, count: int | None) -> int:
    """Return the number of items that a call for any topic wants."""
    if topics:
        raise InvalidArgumentError(f"topics names {len(topics)}, and topic_prefix is set: leave one of them out")
    if len(topic_prefix.encode(errors="replace")) > limits.TOPIC_BYTES_MAX:
        raise InvalidArgumentError(
            f"topic_prefix {shown(topic_prefix)} is longer than {limits.TOPIC_BYTES_MAX} bytes, so no topic has it"
        )
    return check_range("count", count, 1, limits.BATCH_ITEMS_MAX)


def _wants(topics: Sequence[TopicDemand]) -> dict[str, int]:
    if not topics:
        raise InvalidArgumentError("topics is empty: name at least one")
    check_batch("topics", len(topics), limits.DEQUEUE_TOPICS_MAX)
    wants: dict[str, int] = {}
    for demand in topics:
        name = check_topic_of(demand.topic, demand.group)
        count = check_range("count", demand.count, 1, limits.BATCH_ITEMS_MAX)
        wants[name] = min(wants.get(name, 0) + count, limits.BATCH_ITEMS_MAX)
    return wants


def why(reason: str) -> str:
    """Return the reason of a pause as a suffix for an error text; empty if none was given."""
    return f": {reason}" if reason else ""
