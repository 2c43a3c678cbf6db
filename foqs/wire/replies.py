"""The mandatory fields of a peer's replies: a missing one is found here, not taken for a defect of this host.

The list has only fields that hosts use, because a field of a later build must not make a reply of an older one invalid.
"""

from __future__ import annotations

from typing import Any, Final

from foqs.wire.codec import METHODS, Method

_NEEDED: Final[dict[str, tuple[str, ...]]] = {
    "EnqueueResponse": ("ids", "errors"),
    "DequeueResponse": ("items",),
    "Item": ("id", "receipt", "topic", "priority", "payload", "metadata"),
    "BatchResponse": ("errors",),
    "ItemError": ("code",),
    "ActiveTopicsResponse": ("topics", "next_page_token"),
    "TopicStats": (
        "topic", "ready", "delayed", "leased", "dead", "most_urgent_priority", "oldest_ready_at_ms",
    ),
    "RatesResponse": ("topics", "first_slot_ms"),
    "TopicRates": (
        "topic", "enqueued_1min", "delivered_1min", "ended_1min", "failed_1min", "enqueued_15min", "delivered_15min",
        "ended_15min", "failed_15min", "ready",
    ),
    "HistoryResponse": ("rows", "step_minutes", "complete_from_ms"),
    "HistoryRow": (
        "topic", "at_ms", "enqueued", "acked", "nacked", "released", "lease_ended", "dead", "expired", "deleted",
        "at_most_once", "rate_limited", "wait_buckets", "wait_ms_sum", "processing_buckets", "processing_ms_sum",
    ),
    "ShardMap": ("version", "shard_by_slot"),
    "StoredItemsResponse": ("items", "next_page_token"),
    "StoredItem": ("id", "topic", "priority", "deliver_after_ms", "payload", "metadata"),
    "DeadLettersResponse": ("errors",),
    "ListConsumersResponse": ("consumers", "next_page_token"),
    "ConsumerRow": ("name", "topic", "waiting_calls", "held", "held_since_ms", "last_dequeue_at_ms", "hosts"),
    "ReleaseLeasesResponse": ("released", "left_at_most_once"),
    "PlanExportResponse": ("splits", "as_of_ms"),
    "ExportSplit": ("shard_id", "from_key", "to_key"),
    "ExportItemsResponse": ("items", "next_after_key"),
    "HostStatus": ("host", "shards"),
    "ShardStatus": ("shard_id", "state", "epoch"),
    "GreetResponse": ("nonce",),
    "JoinResponse": ("proof",),
    "HelloResponse": ("host_id", "proof", "challenge"),
}  # fmt: skip
"""The mandatory fields of a reply, by struct of the contract. Elements of lists and maps are checked too."""
_NESTED: Final[dict[str, tuple[tuple[str, str], ...]]] = {
    "EnqueueResponse": (("errors", "ItemError"),),
    "DequeueResponse": (("items", "Item"),),
    "BatchResponse": (("errors", "ItemError"),),
    "ActiveTopicsResponse": (("topics", "TopicStats"),),
    "TopicStats": (("rates", "TopicRates"),),
    "RatesResponse": (("topics", "TopicRates"),),
    "HistoryResponse": (("rows", "HistoryRow"),),
    "StoredItemsResponse": (("items", "StoredItem"),),
    "ListConsumersResponse": (("consumers", "ConsumerRow"),),
    "DeadLettersResponse": (("errors", "ItemError"),),
    "PlanExportResponse": (("splits", "ExportSplit"),),
    "ExportItemsResponse": (("items", "StoredItem"),),
    "HostStatus": (("shards", "ShardStatus"),),
}
_RESPONSES: Final[dict[str, str]] = {name: method.result.thrift_spec[0][2].__name__ for name, method in METHODS.items()}


def missing_field(method: Method, response: Any) -> str | None:
    """Return the first mandatory field that a response lacks, as `Item.receipt`; None if it is complete."""
    return _missing_in(_RESPONSES[method.name], response)


def _missing_in(name: str, value: Any) -> str | None:
    for field in _NEEDED.get(name, ()):
        if getattr(value, field) is None:
            return f"{name}.{field}"
    for field, element in _NESTED.get(name, ()):
        many = getattr(value, field)
        if isinstance(many, dict):
            many = many.values()
        elif not isinstance(many, list | tuple):  # An optional struct.
            many = () if many is None else (many,)
        for one in many:
            if (missing := _missing_in(element, one)) is not None:
                return missing
    return None
