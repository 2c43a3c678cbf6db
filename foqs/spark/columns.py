"""The columns of a DataFrame that become fields of items: their names and types."""

from __future__ import annotations

from collections.abc import Sequence

from foqs.model.errors import shown
from foqs.spark.dedup_ids import KEY_COLUMN, KEY_TYPES
from foqs.spark.options import CONTENT, JSON, KEY, NONE, WriteOptions

Columns = Sequence[tuple[str, str]]
"""The name and the type of each column; the types are Spark's names."""

_TEXT = ("binary", "string")
_WHOLE = ("tinyint", "smallint", "int", "bigint")
COLUMNS: dict[str, tuple[tuple[str, ...], str]] = {
    "topic": (("string",), "the item's topic; may be given by the option `topic` instead"),
    "payload": (_TEXT, "the bytes to deliver; text is stored as UTF-8"),
    "dedup_id": (KEY_TYPES, "the row's key, with `dedup=key`: the same key is enqueued once within the window"),
    "priority": (_WHOLE, "smaller is more urgent; 0 where null"),
    "deliver_after": (("timestamp",), "not delivered before this time"),
    "delay_ms": (_WHOLE, "not delivered before this long after the enqueue; instead of deliver_after"),
    "ttl_ms": (_WHOLE, "how long after deliver_after the item is worth delivering"),
    "lease_ms": (_WHOLE, "the lease of its deliveries where a dequeue names none"),
    "delivery": (("string",), "AT_LEAST_ONCE or AT_MOST_ONCE"),
    "metadata": (_TEXT, "bytes that a nack may rewrite"),
    "ordering_key": (("string",), "items of the topic with the same key are delivered one at a time"),
    "fairness_key": (("string",), "the keys of the topic take turns"),
    "trace_context": (("string",), "comes with every delivery, such as a W3C traceparent"),
}
"""The types that a column can have in Spark, and its meaning, by name. Null selects the default of the service."""
_VIEW_TYPES = {
    "topic": "string",
    "payload": "binary",
    "priority": "int",
    "deliver_after": "timestamp",
    "delay_ms": "bigint",
    "ttl_ms": "bigint",
    "lease_ms": "bigint",
    "delivery": "string",
    "metadata": "binary",
    "ordering_key": "string",
    "fairness_key": "string",
    "trace_context": "string",
}
_NESTED = ("struct<", "map<", "array<")


def view_schema(options: WriteOptions) -> str:
    """The schema of `CREATE VIEW ... USING foqs`, into which rows are inserted; the key column is text."""
    columns = [f"{name} {kind}" for name, kind in _VIEW_TYPES.items()]
    if options.dedup not in (CONTENT, NONE):
        columns.append(f"`{options.dedup_id_column or KEY_COLUMN}` string")
    return ", ".join(columns)


def key_column_of(columns: Columns, options: WriteOptions, problems: list[str]) -> str | None:
    """The name of the column that makes the dedup ids, or None. Adds a problem if no kind of dedup is chosen."""
    wanted = options.dedup_id_column or KEY_COLUMN
    found = {name.lower(): (name, kind) for name, kind in columns}.get(wanted.lower())
    if options.dedup in (CONTENT, NONE):
        return None
    if found is not None:
        name, kind = found
        if kind not in KEY_TYPES:
            problems.append(
                f"key column {shown(name)} is of type {kind}, not {' or '.join(KEY_TYPES)}: cast it to string"
            )
        return name
    if options.dedup == KEY or options.dedup_id_column is not None:
        problems.append(f"key column {shown(wanted)} is missing: name it by dedupIdColumn")
    else:
        problems.append(
            "dedup is not chosen: give each row a key in a column dedup_id (or name one by dedupIdColumn), and it is "
            "enqueued once whatever Spark repeats; or set dedup=content for rows without a key, or dedup=none, which "
            "enqueues rows of repeated tasks again"
        )
    return None


def check_columns(columns: Columns, options: WriteOptions, key_column: str | None, problems: list[str]) -> None:
    """Add all problems of the columns to `problems`."""
    found: list[str] = []
    seen: set[str] = set()
    key = key_column and key_column.lower()
    for name, kind in columns:
        lower = name.lower()
        if lower in seen:
            found.append(f"column {shown(name)} is there twice")
        elif lower in COLUMNS and lower != KEY_COLUMN:
            found += _wrong_type(name, kind, options)
        elif lower == key:
            pass  # Its type is checked by key_column_of.
        elif lower == KEY_COLUMN and not options.ignores_extra_columns:
            found.append(f"column {shown(name)} has no meaning with these options: drop it, or set dedup=key")
        elif not (options.ignores_extra_columns or options.payload_format == JSON):
            found.append(f"unknown column {shown(name)}: drop it, or set ignoreExtraColumns")
        seen.add(lower)
    if "payload" not in seen and options.payload_format != JSON:
        found.append("column 'payload' is missing")
    if "topic" not in seen and options.topic is None:
        found.append("column 'topic' is missing, and no option topic is set")
    if found:
        problems += [*found, f"columns there are: {', '.join(COLUMNS)}"]


def json_columns(columns: Columns, options: WriteOptions, problems: list[str]) -> tuple[tuple[str, ...], bool] | None:
    """The columns that make the payload with payloadFormat=json. The flag is True if the one column is the whole
    payload.
    """
    if options.payload_format != JSON:
        return None
    whole = [name for name, _ in columns if name.lower() == "payload"]
    if whole:
        return tuple(whole[:1]), True
    parts = tuple(name for name, _ in columns if name.lower() not in COLUMNS)
    if not parts:
        problems.append(
            "payloadFormat=json makes the payload of columns without a meaning of their own: there are none"
        )
    return parts, False


def _wrong_type(name: str, kind: str, options: WriteOptions) -> list[str]:
    types = COLUMNS[name.lower()][0]
    if name.lower() == "payload" and options.payload_format == JSON:
        if kind.startswith(_NESTED):
            return []
        return [f"column {shown(name)} is of type {kind}: with payloadFormat=json it is a struct, map or array"]
    if kind in types:
        return []
    hint = ": cast it to timestamp" if kind == "timestamp_ntz" else ""
    if name.lower() == "payload" and kind.startswith(_NESTED):
        hint = ": set payloadFormat=json"
    return [f"column {shown(name)} is of type {kind}, not {' or '.join(types)}{hint}"]
