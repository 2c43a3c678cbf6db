"""The rules of the contract for the arguments of a call. A check raises the error that its caller gets."""

from __future__ import annotations

import re

from foqs.model import limits
from foqs.model.calls import DeliveryPolicy, ItemContent, NewItemFields
from foqs.model.errors import InvalidArgumentError, TooLargeError, shown
from foqs.model.namespace import NamespaceSettings

_DELIVERIES = frozenset(DeliveryPolicy)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def topic_fault(topic: object) -> InvalidArgumentError | None:
    """Why this is no name of a topic."""
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


def check_range(name: str, value: object, low: int, high: int) -> int:
    if not isinstance(value, int) or not low <= value <= high:
        raise InvalidArgumentError(f"{name} {value!r:.40} is not within {low}..{high}")
    return value


def check_batch(name: str, count: int, most: int) -> None:
    if count > most:
        raise TooLargeError(f"{count} {name} in one call are over the limit of {most}: send several calls")


def check_metadata(metadata: bytes, settings: NamespaceSettings) -> None:
    if len(metadata) > settings.metadata_bytes_max:
        raise TooLargeError(f"metadata of {len(metadata)} bytes is over the limit of {settings.metadata_bytes_max}")


def checked_content(item: NewItemFields, settings: NamespaceSettings) -> ItemContent:
    """What the item will carry, after all of it is checked but the topic and the times that need the clock."""
    payload, metadata = item.payload, item.metadata or b""
    trace_context = item.trace_context.encode() if item.trace_context else b""
    if not isinstance(payload, bytes):
        raise InvalidArgumentError("payload is missing")
    if len(payload) > settings.payload_bytes_max:
        raise TooLargeError(f"payload of {len(payload)} bytes is over the limit of {settings.payload_bytes_max}")
    if metadata:
        check_metadata(metadata, settings)
    if len(trace_context) > limits.TRACE_CONTEXT_BYTES_MAX:
        raise TooLargeError(
            f"trace_context of {len(trace_context)} bytes is over the limit of {limits.TRACE_CONTEXT_BYTES_MAX}"
        )
    check_range("priority", item.priority, -(1 << 31), (1 << 31) - 1)
    if item.delivery is not None and item.delivery not in _DELIVERIES:
        raise InvalidArgumentError(f"delivery {item.delivery!r} is not one of AT_LEAST_ONCE (0), AT_MOST_ONCE (1)")
    if item.dedup_id is not None:
        raise InvalidArgumentError("dedup_id is not supported yet: leave it out")
    if item.ordering_key is not None:
        raise InvalidArgumentError("ordering_key is not supported yet: leave it out")
    if item.lease_ms is not None:
        check_range("lease_ms", item.lease_ms, limits.LEASE_MS_MIN, settings.lease_ms_max)
    if item.ttl_ms is not None:
        check_range("ttl_ms", item.ttl_ms, 1, settings.ttl_ms_max)
    if item.delay_ms is not None:
        check_range("delay_ms", item.delay_ms, 0, settings.delay_ms_max)
        if item.deliver_after_ms is not None:
            raise InvalidArgumentError("deliver_after_ms and delay_ms are both given: give one")
    return ItemContent(payload, metadata, trace_context)


def deliver_after(item: NewItemFields, settings: NamespaceSettings, now_ms: int) -> int:
    """When the item becomes ready: now, unless it says later."""
    if item.deliver_after_ms is not None and item.delay_ms is None:
        check_range("deliver_after_ms", item.deliver_after_ms, 0, now_ms + settings.delay_ms_max)
    return due_at_of(item, now_ms)


def due_at_of(item: NewItemFields, now_ms: int) -> int:
    """The same, of an item whose times were checked."""
    if item.delay_ms is not None:
        return now_ms + item.delay_ms
    return now_ms if item.deliver_after_ms is None else max(now_ms, item.deliver_after_ms)
