"""Stored items as rows of a DataFrame: the columns, and pages as Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from foqs.model.calls import StoredItem
from foqs.model.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    import pyarrow as pa

Value = Callable[[StoredItem], Any]


def _micros(time_ms: int | None) -> int | None:
    return None if time_ms is None else time_ms * 1_000


def _last_error(one: StoredItem) -> str | None:
    return one.errors[0].reason if one.errors else None


READ_COLUMNS: dict[str, tuple[str, str, Value]] = {
    "id": ("string", "the item's id", lambda one: one.id),
    "topic": ("string", "the item's topic", lambda one: one.topic),
    "state": ("string", "ready, delayed, leased or dead, when its page was read", lambda one: one.state.name.lower()),
    "priority": ("int", "smaller is more urgent", lambda one: one.priority),
    "payload": ("binary", "null with `includePayload=false`", lambda one: one.payload),
    "metadata": ("binary", "the bytes that a nack may rewrite", lambda one: one.metadata),
    "deliver_after": ("timestamp", "not delivered before this time", lambda one: _micros(one.deliver_after_ms)),
    "enqueued_at": ("timestamp", "when it was enqueued", lambda one: _micros(one.enqueued_at_ms)),
    "expires_at": ("timestamp", "when its TTL ends", lambda one: _micros(one.expires_at_ms)),
    "failed_attempts": ("int", "deliveries that failed so far", lambda one: one.failed_attempts),
    "delivery": ("string", "AT_LEAST_ONCE or AT_MOST_ONCE", lambda one: one.delivery.name),
    "lease_ms": ("bigint", "the lease that its enqueue asked for, or null", lambda one: one.lease_ms),
    "lease_expires_at": ("timestamp", "of a leased item", lambda one: _micros(one.lease_expires_at_ms)),
    "died_at": ("timestamp", "of a dead letter", lambda one: _micros(one.died_at_ms)),
    "death_reason": ("string", "of a dead letter", lambda one: one.death_reason),
    "trace_context": ("string", "as the enqueue gave it, or null", lambda one: one.trace_context),
    "group": ("string", "the consumer group whose copy it is, or null", lambda one: one.group),
    "ordering_key": ("string", "its ordering key, or null", lambda one: one.ordering_key),
    "fairness_key": ("string", "its fairness key, or null", lambda one: one.fairness_key),
    "last_error": ("string", "the reason of its last failure, or null", _last_error),
}
"""The type in Spark, the meaning and the value of each column of a read, by name."""
READ_SCHEMA = ", ".join(f"{name} {kind}" for name, (kind, _, _) in READ_COLUMNS.items())
"""The default schema of a read."""


def check_read_columns(columns: Iterable[tuple[str, str]]) -> list[str]:
    """Check the (name, Spark type) of each wanted column of a read, and return the names.

    Raises InvalidArgumentError with all problems.
    """
    problems: list[str] = []
    names: list[str] = []
    for name, kind in columns:
        known = READ_COLUMNS.get(name)
        if known is None:
            problems.append(f"unknown column {shown(name)}")
        elif kind != known[0]:
            problems.append(f"column {name} is of type {known[0]}, not {kind}")
        names.append(name)
    if problems:
        raise InvalidArgumentError(f"schema for format foqs: {'; '.join(problems)} (columns: {READ_SCHEMA})")
    return names


def batch_of(items: Sequence[StoredItem], names: Sequence[str], schema: pa.Schema, *, has_payload: bool) -> Any:
    """The items as an Arrow batch of exactly this schema, whose fields are the columns `names`."""
    import pyarrow as pa

    arrays = []
    for name, field in zip(names, schema, strict=True):
        value = READ_COLUMNS[name][2]
        is_left_out = name == "payload" and not has_payload
        values = [None] * len(items) if is_left_out else [value(one) for one in items]
        arrays.append(pa.array(values, type=field.type))
    if not arrays:  # A count needs rows without columns.
        return pa.RecordBatch.from_struct_array(pa.array([{}] * len(items), type=pa.struct([])))
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
