"""Turns rows of a DataFrame into items: which columns there may be, of what types, and the conversion by Arrow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import repeat
from typing import TYPE_CHECKING, Any

from foqs.client.items import NewItem
from foqs.model.calls import DeliveryPolicy
from foqs.model.errors import InvalidArgumentError, shown

if TYPE_CHECKING:
    import pyarrow as pa

_TEXT = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "topic": (("string",), "the item's topic; may be given by the option `topic` instead"),
    "payload": (_TEXT, "the bytes to deliver; text is stored as UTF-8"),
    "priority": (_WHOLE, "smaller is more urgent; 0 where null"),
    "deliver_after": (("timestamp",), "not delivered before this time"),
    "delay_ms": (_WHOLE, "not delivered before this long after the enqueue; instead of deliver_after"),
    "ttl_ms": (_WHOLE, "how long after deliver_after the item is worth delivering"),
    "lease_ms": (_WHOLE, "the lease of its deliveries where a dequeue names none"),
    "delivery": (("string",), "AT_LEAST_ONCE or AT_MOST_ONCE"),
    "metadata": (_TEXT, "bytes that a nack may rewrite"),
}
"""The types that a column may have in Spark, and its meaning, by name. Null selects the default of the service."""
SCHEMA = (
    "topic string, payload binary, priority int, deliver_after timestamp, delay_ms bigint, ttl_ms bigint, "
    "lease_ms bigint, delivery string, metadata binary"
)
"""The schema of `CREATE VIEW ... USING foqs`, into which rows are inserted."""
_DELIVERIES = {policy.name: policy for policy in DeliveryPolicy}


@dataclass(slots=True)
class Rows:
    """What a batch of rows is to the service: items, and rows that cannot become one with the reason."""

    items: list[NewItem]
    numbers: Sequence[int]
    """The number of each item's row in the batch."""
    refused: list[tuple[int, str]] = field(default_factory=list)
    """The number of each refused row, with the reason."""


def check_columns(columns: Iterable[tuple[str, str]], *, topic_given: bool, ignores_extra: bool) -> None:
    """Check (name, type of Spark) of each column of a DataFrame. Raises InvalidArgumentError with all problems."""
    problems: list[str] = []
    seen: set[str] = set()
    for name, kind in columns:
        known = COLUMNS.get(name.lower())
        if known is None:
            if not ignores_extra:
                problems.append(f"unknown column {shown(name)}: drop it, or set ignoreExtraColumns")
        elif name.lower() in seen:
            problems.append(f"column {shown(name)} is there twice")
        elif kind not in known[0]:
            hint = ": cast it to timestamp" if kind == "timestamp_ntz" else ""
            problems.append(f"column {shown(name)} is of type {kind}, not {' or '.join(known[0])}{hint}")
        seen.add(name.lower())
    if "payload" not in seen:
        problems.append("column 'payload' is missing")
    if "topic" not in seen and not topic_given:
        problems.append("column 'topic' is missing, and no option topic is set")
    if problems:
        offered = ", ".join(COLUMNS)
        raise InvalidArgumentError(f"columns for format foqs: {'; '.join(problems)} (columns there are: {offered})")


def rows_of(batch: pa.RecordBatch, topic: str | None) -> Rows:
    """The items of one Arrow batch; `topic` wins over a column of that name."""
    count = batch.num_rows
    columns = {name.lower(): batch.column(at) for at, name in enumerate(batch.schema.names)}
    refused: dict[int, str] = {}
    values: dict[str, Iterable[Any]] = {}
    for name in COLUMNS:
        column = columns.get(name)
        if name == "topic" and topic is not None:
            values[name] = repeat(topic, count)
        elif column is None:
            values[name] = repeat(0 if name == "priority" else None, count)
        else:
            values[name] = _values(name, column, refused)
    made = map(
        NewItem,
        values["topic"],
        values["payload"],
        values["priority"],
        values["deliver_after"],
        values["delay_ms"],
        values["ttl_ms"],
        values["lease_ms"],
        values["metadata"],
        values["delivery"],
    )
    if not refused:
        return Rows(list(made), range(count))
    kept = [(number, item) for number, item in enumerate(made) if number not in refused]
    return Rows([item for _, item in kept], [number for number, _ in kept], sorted(refused.items()))


def _values(name: str, column: Any, refused: dict[int, str]) -> list[Any]:
    import pyarrow as pa

    if name in ("topic", "payload") and column.null_count:
        for number, is_valid in enumerate(column.is_valid().to_pylist()):
            if not is_valid:
                refused.setdefault(number, f"{name} is null")
    if name in ("payload", "metadata") and not _is_binary(column.type):
        column = column.cast(pa.large_binary() if pa.types.is_large_string(column.type) else pa.binary())
    elif name == "deliver_after":
        column = column.cast(pa.timestamp("ms", tz=column.type.tz), safe=False).cast(pa.int64())
    elif name == "priority" and column.null_count:
        column = column.fill_null(0)
    values: list[Any] = column.to_pylist()
    return _deliveries(values, refused) if name == "delivery" else values


def _is_binary(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


def _deliveries(texts: list[str | None], refused: dict[int, str]) -> list[DeliveryPolicy | None]:
    policies: list[DeliveryPolicy | None] = []
    for number, text in enumerate(texts):
        policy = None if text is None else _DELIVERIES.get(text.upper())
        if text is not None and policy is None:
            refused.setdefault(number, f"delivery {shown(text)} is not one of {', '.join(_DELIVERIES)}")
        policies.append(policy)
    return policies
