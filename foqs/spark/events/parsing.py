"""Parses event log files to rows. Pure: bytes in, record batches out; Spark runs it in its tasks."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any

from foqs.model import ids
from foqs.model.event_log import FORMAT, LIFE_COLUMNS, LIVES, ROLLUPS, FileLines

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS_MAX = 50_000
"""Approximate number of rows in one batch. One line can add more."""

LIFE_SCHEMA = (
    "id string, namespace string, topic string, priority int, outcome string, enqueued_at timestamp, "
    "ready_at timestamp, first_delivered_at timestamp, last_delivered_at timestamp, ended_at timestamp, attempts int, "
    "shard int, host string"
)
"""The columns of a life, as Spark has them."""
ROLLUP_SCHEMA = (
    "minute timestamp, namespace string, topic string, priority int, outcome string, count bigint, attempts bigint, "
    "redeliveries bigint, wait array<bigint>, wait_ms_sum bigint, processing array<bigint>, processing_ms_sum bigint, "
    "host string"
)
"""The columns of a roll-up."""
FILE_SCHEMA = "source_file string, lines bigint, torn_lines bigint, is_torn boolean, date string, hour string"
"""The further columns of each row: the file that it came from. The counts are in one otherwise empty row of each
file.
"""
SCHEMAS = {LIVES: LIFE_SCHEMA, ROLLUPS: ROLLUP_SCHEMA}
_TIMES = ("enqueued_at", "ready_at", "first_delivered_at", "last_delivered_at", "ended_at")


def arrow_schema(schema: str) -> pa.Schema:
    """The Arrow types for a Spark schema like those above."""
    import pyarrow as pa

    types = {
        "string": pa.string(),
        "int": pa.int32(),
        "bigint": pa.int64(),
        "boolean": pa.bool_(),
        "timestamp": pa.timestamp("us", tz="UTC"),
        "array<bigint>": pa.list_(pa.int64()),
    }
    return pa.schema([(name, types[kind]) for name, kind in (column.split(" ") for column in schema.split(", "))])


class Columns:
    """Collects the values of rows by column, for a batch."""

    def __init__(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._values: dict[str, list[Any]] = {name: [] for name in schema.names}
        self.count = 0

    def add(self, values: dict[str, list[Any]], count: int) -> None:
        """Add `count` rows. A column with one value has it in all rows, and a missing column is null."""
        for name, column in self._values.items():
            given = values.get(name, [None])
            if len(given) == count:
                column.extend(given)
            else:
                column.extend(repeat(given[0], count))
        self.count += count

    def take(self) -> pa.RecordBatch:
        import pyarrow as pa

        arrays = [pa.array(self._values[field.name], field.type) for field in self._schema]
        self._values = {name: [] for name in self._schema.names}
        self.count = 0
        return pa.RecordBatch.from_arrays(arrays, schema=self._schema)


def batches_of(
    kind: str, schema: pa.Schema, files: Iterator[tuple[str, str, str, bytes]], *, takes_torn: bool
) -> Iterator[pa.RecordBatch]:
    """The rows of files (name, date, hour, content) of this kind, and one row for each file with its counts.

    A line that cannot be parsed is counted. A file whose end is missing is skipped unless `takes_torn`, because it
    possibly still arrives.
    """
    read = _READERS[kind]
    for name, date, hour, content in files:
        if not takes_torn and _is_torn(content):
            yield _file_row(schema, name, date, hour, 0, 0, is_torn=True)
            continue
        columns, lines = Columns(schema), FileLines(io.BytesIO(content))
        lines_count = torn_count = 0
        place = {"source_file": [name], "date": [date], "hour": [hour]}
        for line in lines:
            lines_count += 1
            try:
                values, count = read(line)
            except (ValueError, KeyError, TypeError, OverflowError):
                torn_count += 1
                continue
            columns.add(values | place, count)
            if columns.count >= BATCH_ROWS_MAX:
                yield columns.take()
        if columns.count:
            yield columns.take()
        yield _file_row(schema, name, date, hour, lines_count, torn_count, is_torn=lines.is_torn)


def _is_torn(content: bytes) -> bool:
    lines = FileLines(io.BytesIO(content))
    for _ in lines:
        pass
    return lines.is_torn


def _file_row(
    schema: pa.Schema, name: str, date: str, hour: str, lines: int, torn_lines: int, *, is_torn: bool
) -> pa.RecordBatch:
    columns = Columns(schema)
    columns.add(
        {
            "source_file": [name],
            "lines": [lines],
            "torn_lines": [torn_lines],
            "is_torn": [is_torn],
            "date": [date],
            "hour": [hour],
        },
        1,
    )
    return columns.take()


def _read_life(line: bytes) -> tuple[dict[str, list[Any]], int]:
    """The events of a line. Raises ValueError, KeyError or TypeError for an invalid line."""
    given = json.loads(line)
    _check_format(given)
    count = _whole(given["count"])
    values = {name: _column(given[name], count) for name in LIFE_COLUMNS}
    shard = _whole(given["shard"])
    keys = values.pop("key")
    if len(keys) != count:
        keys = keys * count
    found: dict[str, list[Any]] = {
        "id": [ids.item_id(shard, _whole(key)) for key in keys],
        "priority": [_whole(priority) for priority in values["priority"]],
        "attempts": [_whole(attempts) for attempts in values["attempts"]],
        "shard": [shard],
    }
    for name in _TIMES:
        found[name] = [_time(at_ms) for at_ms in values[f"{name}_ms"]]
    for name in ("namespace", "topic", "outcome", "host"):
        found[name] = [_text(given[name])]
    return found, count


def _read_rollup(line: bytes) -> tuple[dict[str, list[Any]], int]:
    """The row of a line. Raises ValueError, KeyError or TypeError for an invalid line."""
    given = json.loads(line)
    _check_format(given)
    found: dict[str, list[Any]] = {"minute": [_time(given["minute_ms"])]}
    for name in ("count", "attempts", "redeliveries", "wait_ms_sum", "processing_ms_sum"):
        found[name] = [_whole(given[name])]
    for name in ("wait", "processing"):
        found[name] = [[_whole(count) for count in given[name]]]
    for name in ("outcome", "host"):
        found[name] = [_text(given[name])]
    for name in ("namespace", "topic"):
        found[name] = [None if given[name] is None else _text(given[name])]
    found["priority"] = [None if given["priority"] is None else _whole(given["priority"])]
    return found, 1


_READERS: dict[str, Callable[[bytes], tuple[dict[str, list[Any]], int]]] = {LIVES: _read_life, ROLLUPS: _read_rollup}


def _check_format(given: Any) -> None:
    if given["v"] != FORMAT:
        raise ValueError(f"format {given['v']!r} is not {FORMAT}")


def _column(values: Any, count: int) -> list[Any]:
    if not isinstance(values, list) or count < 1 or len(values) not in (1, count):
        raise ValueError("a column is not as long as its line")
    return values


def _whole(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _time(at_ms: Any) -> int | None:
    """Microseconds since 1970."""
    return None if at_ms is None else _whole(at_ms) * 1_000


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is not a text")
    return value
