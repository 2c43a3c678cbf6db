"""`payloadFormat=json`: makes the payload of a row's other columns, or of a column `payload` that is not text.

The text is that of Spark's `to_json` in the time zone UTC: null fields are left out, numbers are as in Java, times are
ISO 8601, bytes are base64. Types that Arrow cannot distinguish, or that `to_json` writes in their internal form, are
refused before (foqs/spark/json_types.py). In the JVM `to_json(struct(...)) AS payload` is faster.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Sequence
from itertools import islice
from json.encoder import encode_basestring
from typing import TYPE_CHECKING, Any

from foqs.model.errors import shown
from foqs.spark import json_numbers, json_times

if TYPE_CHECKING:
    import pyarrow as pa

Texts = Sequence[str | None]
"""Values as JSON, None for null."""


class JsonPayload:
    """Makes the payloads of batches of rows."""

    def __init__(self, columns: Sequence[str], *, is_whole: bool) -> None:
        """`columns` by their names. `is_whole`: the only column is the whole payload, not a field of it."""
        self._columns = columns
        self._is_whole = is_whole

    def payloads(self, batch: pa.RecordBatch, faults: dict[int, str]) -> pa.Array:
        """The payload of each row. Where it cannot be made it is null, and the reason is added to `faults`."""
        import pyarrow as pa

        texts = [_column(name, batch.column(name), faults) for name in self._columns]
        rows = texts[0] if self._is_whole else _objects(self._columns, texts, batch.num_rows)
        for row, text in enumerate(rows):
            if text is None:
                faults.setdefault(row, "payload is null")
        return pa.array([None if text is None else text.encode() for text in rows], pa.binary())


def _column(name: str, column: pa.Array, faults: dict[int, str]) -> Texts:
    """The values of a column as JSON. A value that cannot be converted is null, and its reason is added to `faults`."""
    try:
        return _texts(column)
    except ValueError:  # Text that is not UTF-8, which Spark also accepts.
        return [_value(name, row, column, faults) for row in range(len(column))]


def _value(name: str, row: int, column: pa.Array, faults: dict[int, str]) -> str | None:
    try:
        return _texts(column.slice(row, 1))[0]
    except ValueError as error:
        faults[row] = f"column {shown(name)} cannot be JSON: {error}"
        return None


def _texts(array: pa.Array) -> Texts:
    """The values of an array of any type as JSON."""
    import pyarrow as pa

    kind, types = array.type, pa.types
    if types.is_struct(kind):
        return _structs(array)
    if types.is_map(kind):
        return _maps(array)
    if types.is_list(kind) or types.is_large_list(kind):
        elements = iter(_texts(array.flatten()))
        return [None if count is None else f"[{_listed(elements, count)}]" for count in _lengths(array)]
    if types.is_date(kind):
        return _each(array.cast(pa.int32()), json_times.date_text)
    if types.is_timestamp(kind):
        zone = "Z" if kind.tz is not None else ""
        return _each(array.cast(pa.int64()), lambda time_us: json_times.timestamp_text(time_us, zone))
    if types.is_time(kind):
        return _each(array.cast(pa.int64()), json_times.time_text)
    return _each(array, _scalar(kind))


def _scalar(kind: pa.DataType) -> Callable[[Any], str]:
    """The function that converts a value of this type, which has no parts, to JSON."""
    import pyarrow as pa

    types = pa.types
    if types.is_string(kind) or types.is_large_string(kind):
        return encode_basestring
    if types.is_boolean(kind):
        return lambda value: "true" if value else "false"
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: f'"{b64encode(value).decode()}"'
    if types.is_float32(kind):
        return json_numbers.float_text
    if types.is_floating(kind):
        return json_numbers.double_text
    if types.is_decimal(kind):
        return json_numbers.decimal_text
    return str  # Whole numbers, and nulls without a type.


def _each(array: pa.Array, text: Callable[[Any], str]) -> Texts:
    return [None if value is None else text(value) for value in array.to_pylist()]


def _lengths(array: pa.Array) -> list[int | None]:
    import pyarrow.compute as pc

    lengths: list[int | None] = pc.list_value_length(array).to_pylist()
    return lengths


def _listed(elements: Any, count: int) -> str:
    return ",".join(["null" if text is None else text for text in islice(elements, count)])


def _structs(array: pa.Array) -> Texts:
    names = [field.name for field in array.type]
    objects = _objects(names, [_texts(part) for part in array.flatten()], len(array))
    return [text if is_there else None for text, is_there in zip(objects, array.is_valid().to_pylist(), strict=True)]


def _objects(names: Sequence[str], columns: Sequence[Texts], rows_count: int) -> list[str]:
    """An object for each row, without the null fields."""
    heads = [f"{encode_basestring(name)}:" for name in names]
    rows = zip(*columns, strict=True) if columns else [()] * rows_count
    return [
        "{" + ",".join([head + text for head, text in zip(heads, row, strict=True) if text is not None]) + "}"
        for row in rows
    ]


def _maps(array: pa.Array) -> Texts:
    import pyarrow as pa

    entries = array.cast(pa.list_(pa.struct([("key", array.type.key_type), ("value", array.type.item_type)])))
    keys, values = entries.flatten().flatten()
    pairs = zip(_keys(keys), _texts(values), strict=True)
    return [
        None
        if count is None
        else "{" + ",".join([f"{key}:{'null' if text is None else text}" for key, text in islice(pairs, count)]) + "}"
        for count in _lengths(entries)
    ]


def _keys(array: pa.Array) -> list[str]:
    """The keys of maps: text unchanged, numbers and bools as text."""
    texts = [text or "" for text in _texts(array)]  # A key is never null.
    return [text if text.startswith('"') else f'"{text}"' for text in texts]
