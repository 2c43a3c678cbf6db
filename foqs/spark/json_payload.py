"""`payloadFormat=json`: the payload is made of a row's other columns, or of a column `payload` that is no text.

The rules are those of Spark's `to_json`: fields that are null are left out, times are ISO 8601 in UTC, bytes base64.
Decimals are text, since many readers would round a number. `to_json(struct(...)) AS payload` in the JVM is faster.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import TYPE_CHECKING, Any

from foqs.model.errors import shown

if TYPE_CHECKING:
    import pyarrow as pa

Convert = Callable[[Any], Any]


class JsonPayload:
    """Makes the payloads of batches of rows."""

    def __init__(self, columns: Sequence[str], *, is_whole: bool) -> None:
        """`columns` by their names; `is_whole`: the only one is the payload itself, and not a field of it."""
        self._columns = columns
        self._is_whole = is_whole

    def payloads(self, batch: pa.RecordBatch, faults: dict[int, str]) -> pa.Array:
        """The payload of each row, null where it cannot be made; then the reason is entered."""
        import pyarrow as pa

        values = [_values(name, batch.column(name), faults) for name in self._columns]
        rows: Any = values[0] if self._is_whole else map(self._object, zip(*values, strict=True))
        return pa.array([self._text(row, value, faults) for row, value in enumerate(rows)], pa.binary())

    def _object(self, values: tuple[Any, ...]) -> dict[str, Any]:
        return {name: value for name, value in zip(self._columns, values, strict=True) if value is not None}

    def _text(self, row: int, value: Any, faults: dict[int, str]) -> bytes | None:
        if value is None:
            faults.setdefault(row, "payload is null")
            return None
        try:
            return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        except ValueError as error:
            faults[row] = f"payload cannot be JSON: {error}"
            return None


def _values(name: str, column: pa.Array, faults: dict[int, str]) -> list[Any]:
    """The values of a column as JSON has them; null where there is none, which is entered."""
    convert = _plain(column.type)
    try:
        return [convert(value) for value in column.to_pylist()]
    except (ValueError, OverflowError):  # Spark's times go far beyond those of Python, which end with the year 9999.
        return [_value(name, row, column, convert, faults) for row in range(len(column))]


def _value(name: str, row: int, column: pa.Array, convert: Convert, faults: dict[int, str]) -> Any:
    try:
        return convert(column[row].as_py())
    except (ValueError, OverflowError) as error:
        faults[row] = f"column {shown(name)} cannot be JSON: {error}"
        return None


def _plain(kind: pa.DataType) -> Convert:
    """The conversion of a value of this type, as Arrow gives it, to what JSON has; null stays null."""
    made = _plain_of(kind)
    return lambda value: None if value is None else made(value)


def _plain_of(kind: pa.DataType) -> Convert:
    import pyarrow as pa

    types = pa.types
    if types.is_struct(kind):
        fields = [(part.name, _plain(part.type)) for part in kind]
        return lambda value: {name: v for name, convert in fields if (v := convert(value[name])) is not None}
    if types.is_map(kind):
        key, item = _plain(kind.key_type), _plain(kind.item_type)
        return lambda pairs: {_key(key(k)): item(v) for k, v in pairs}
    if types.is_list(kind) or types.is_large_list(kind):
        element = _plain(kind.value_type)
        return lambda values: [element(value) for value in values]
    if types.is_binary(kind) or types.is_large_binary(kind):
        return lambda value: b64encode(value).decode()
    if types.is_timestamp(kind):
        has_zone = kind.tz is not None
        return lambda time: _iso(time.astimezone(UTC) if has_zone else time, has_zone)
    if types.is_boolean(kind) or types.is_integer(kind) or types.is_floating(kind) or _is_text(kind):
        return lambda value: value
    return str  # Dates, decimals, intervals.


def _is_text(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _iso(time: Any, has_zone: bool) -> str:
    text: str = time.replace(tzinfo=None).isoformat(timespec="milliseconds")
    return text + "Z" if has_zone else text


def _key(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
