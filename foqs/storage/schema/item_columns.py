"""The table of an item's stored columns, from which statements, prepared inserts, packs and rows derive.

A new field gets a line here, at the end of its group, with a default, and a migration in schema/shard that adds its
column with the same default: `since` is that migration's number.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from pymysql.constants import FIELD_TYPE

from foqs.model import order
from foqs.model.calls import NO_CONTENT, ItemContent
from foqs.model.item import ShardItem
from foqs.shard.port import FetchedRow, ItemRow

UNSIGNED: Final = 0x8000
"""The flag of unsigned integers in the type of a prepared value."""


class Column(NamedTuple):
    name: str
    sql_type: str
    wire_type: int
    """The type of the value in a prepared statement."""
    code: str
    """The `struct` code of an integer in prepared statements and packs, or of the length of bytes in a pack."""
    default: int | bytes | None = None
    """The value for items stored before the column existed, or inserted without it."""
    since: int = 1
    """The migration of schema/shard that added it, which is also the format version of the packs that have it."""

    @property
    def is_nullable(self) -> bool:
        return " NOT NULL" not in self.sql_type


KEY_COLUMNS: Final = (
    Column("id", "bigint unsigned NOT NULL", FIELD_TYPE.LONGLONG | UNSIGNED, "Q"),
    Column("lane", "int NOT NULL", FIELD_TYPE.LONG, "i"),
    Column("urgency", "int NOT NULL", FIELD_TYPE.LONG, "i"),
)
"""The place of a row. A pack omits these columns: its header has the ids, and all its items are ready."""

GIVEN_COLUMNS: Final = (
    Column("due_at", "bigint NOT NULL", FIELD_TYPE.LONGLONG, "q"),
    Column("topic", "int NOT NULL", FIELD_TYPE.LONG, "i"),
    Column("priority", "int NOT NULL", FIELD_TYPE.LONG, "i"),
    Column("enqueued_at", "bigint NOT NULL", FIELD_TYPE.LONGLONG, "q"),
    Column("expires_at", "bigint NOT NULL", FIELD_TYPE.LONGLONG, "q"),
    Column("lease_ms", "int unsigned NOT NULL", FIELD_TYPE.LONG | UNSIGNED, "I"),
    Column("at_most_once", "tinyint NOT NULL", FIELD_TYPE.TINY, "b"),
)
"""Integers that both an insert and a pack contain."""

STATE_COLUMNS: Final = (
    Column("deliveries", "int unsigned NOT NULL DEFAULT 0", FIELD_TYPE.LONG | UNSIGNED, "I", default=0),
    Column("failed_attempts", "int unsigned NOT NULL DEFAULT 0", FIELD_TYPE.LONG | UNSIGNED, "I", default=0),
    Column("death_reason", "varbinary(255) NULL", FIELD_TYPE.BLOB, "B"),
    Column("place", "int NULL", FIELD_TYPE.LONG, "i", since=10),
)
"""Columns that most inserts omit, because deliveries set them, or aging alone; a packed item has the defaults."""

CONTENT_COLUMNS: Final = (
    Column("payload", "mediumblob NOT NULL", FIELD_TYPE.BLOB, "I"),
    Column("metadata", "blob NOT NULL", FIELD_TYPE.BLOB, "H"),
    Column("trace_context", "varbinary(128) NOT NULL DEFAULT ''", FIELD_TYPE.BLOB, "B", default=b"", since=2),
)
"""Bytes, in the order of foqs.model.calls.ItemContent."""

FAILURE_COLUMNS: Final = (
    Column("errors", "varbinary(2048) NOT NULL DEFAULT ''", FIELD_TYPE.BLOB, "H", default=b"", since=11),
)
"""The failures of an item, which the ends of leases write: inserts omit them, and a packed item has none."""

INSERTED_COLUMNS: Final = (*KEY_COLUMNS, *GIVEN_COLUMNS, *CONTENT_COLUMNS)
ITEM_COLUMNS: Final = (*KEY_COLUMNS, *GIVEN_COLUMNS, *STATE_COLUMNS, *CONTENT_COLUMNS, *FAILURE_COLUMNS)
"""Columns in the order of foqs.shard.port.ItemRow, which names the id `key` and has the content as one object."""

_HEAD_COUNT: Final = len(KEY_COLUMNS) + len(GIVEN_COLUMNS) + len(STATE_COLUMNS)
_STATE_DEFAULTS: Final = tuple([column.default for column in STATE_COLUMNS])


def names(columns: Sequence[Column]) -> list[str]:
    return [column.name for column in columns]


def packed_integers(item: ShardItem) -> tuple[int, ...]:
    """Return the values of GIVEN_COLUMNS, and the lengths of the values of CONTENT_COLUMNS."""
    assert item.content is not None
    payload, metadata, trace_context = item.content
    return (
        item.due_at,
        item.topic.number,
        item.priority,
        item.enqueued_at,
        item.expires_at,
        item.lease_ms,
        item.at_most_once,
        len(payload),
        len(metadata),
        len(trace_context),
    )


def inserted_integers(item: ShardItem) -> tuple[int, ...]:
    """Return the values of KEY_COLUMNS and GIVEN_COLUMNS."""
    assert item.bundle is None, "each item of a bundle has a row of its own"
    topic = item.topic.number
    is_delayed = item.due_at > item.enqueued_at
    return (
        item.key,
        0 if is_delayed else topic,
        0 if is_delayed else item.priority,
        item.due_at,
        topic,
        item.priority,
        item.enqueued_at,
        item.expires_at,
        item.lease_ms,
        item.at_most_once,
    )


def placed_row(item: ShardItem) -> ItemRow:
    """Return the row of an inserted item with a place of its own, which a delayed one has when it becomes ready."""
    assert item.content is not None
    key, lane, urgency, *given = inserted_integers(item)
    place = order.urgency_of(item.sort_key)
    *state, _ = _STATE_DEFAULTS
    return ItemRow._make((key, lane, place if lane else urgency, *given, *state, place, item.content, b""))


def stored_row(values: Sequence[Any]) -> ItemRow:
    """Convert the values of ITEM_COLUMNS, as read by a SELECT."""
    content = ItemContent._make(values[_HEAD_COUNT:-1])
    return ItemRow._make((*values[:_HEAD_COUNT], content, values[-1]))


def packed_row(key: int, given: tuple[Any, ...], contents: Sequence[bytes]) -> ItemRow:
    """Build an item of a pack from the values of GIVEN_COLUMNS and CONTENT_COLUMNS."""
    _, topic, priority, *_ = given
    return ItemRow._make((key, topic, priority, *given, *_STATE_DEFAULTS, ItemContent._make(contents), b""))


def fetched_row(integers: Iterable[int], contents: Sequence[bytes | None]) -> FetchedRow:
    """Build a FetchedRow from its integers and the values of CONTENT_COLUMNS, which are all NULL if left out."""
    content = NO_CONTENT if contents[0] is None else ItemContent._make(contents)
    return FetchedRow._make((*integers, content))
