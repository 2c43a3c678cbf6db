"""Arrow columns as Thrift fields: the bytes of one field for each row, computed by column and not by row.

A field is its head (one byte of type, two of number) and its value. Numbers are big-endian, and bytes follow their
length. A row has no bytes, and so no field, where its column is null.
"""

from __future__ import annotations

import sys
from array import array
from struct import Struct
from typing import TYPE_CHECKING, Any

from foqs.client.encoded import EncodedItems
from foqs.wire import codec as wire

if TYPE_CHECKING:
    import pyarrow as pa

_I32, _I64, _BYTES = 8, 10, 11
"""The numbers of Thrift's types."""
_HEAD = Struct("!bh")
_INT_CODES = {4: "i", 8: "q"}
END = b"\0"
"""The end of a struct."""


def bytes_field(name: str, values: pa.Array) -> list[Any]:
    """The field of NewItem with these bytes, as parts to join. No value can be null."""
    import pyarrow.compute as pc

    return [_head(_BYTES, name), _big_endian(pc.binary_length(values), 4), values]


def optional_bytes_field(name: str, values: pa.Array) -> list[Any]:
    """The same for values with nulls."""
    return _where_valid(values, lambda: bytes_field(name, values.fill_null(b"")))


def i32_field(name: str, values: pa.Array) -> list[Any]:
    """The field with these 32-bit numbers; null values have no field."""
    return _where_valid(values, lambda: [_head(_I32, name), _big_endian(values, 4)])


def i64_field(name: str, values: pa.Array) -> list[Any]:
    """The field with these 64-bit numbers; null values have no field."""
    return _where_valid(values, lambda: [_head(_I64, name), _big_endian(values, 8)])


def joined(parts: list[Any]) -> pa.Array:
    """The parts of each row, concatenated. A null part is left out."""
    import pyarrow.compute as pc

    return pc.binary_join_element_wise(*parts, constant(b""), null_handling="skip")


def constant(value: bytes) -> Any:
    import pyarrow as pa

    return pa.scalar(value, pa.binary())


def text_head(name: str, text: bytes) -> bytes:
    """A whole text field, for a value that many rows share."""
    return _HEAD.pack(_BYTES, wire.field_number(wire.structs.NewItem, name)) + len(text).to_bytes(4, "big") + text


def i32_head(name: str, value: int) -> bytes:
    """A whole field of a 32-bit number that many rows share."""
    return _HEAD.pack(_I32, wire.field_number(wire.structs.NewItem, name)) + value.to_bytes(4, "big", signed=True)


def items_of(rows: pa.Array) -> EncodedItems:
    """The rows of an Arrow array of bytes, without a copy."""
    if not len(rows):
        return EncodedItems(b"", [0])
    _, ends, data = rows.buffers()
    return EncodedItems(memoryview(data or b""), memoryview(ends).cast("i"), rows.offset, rows.offset + len(rows))


def _head(kind: int, name: str) -> Any:
    return constant(_HEAD.pack(kind, wire.field_number(wire.structs.NewItem, name)))


def _where_valid(values: pa.Array, parts: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    if values.null_count == len(values):
        return []
    made: list[Any] = parts()
    if not values.null_count:
        return made
    return [pc.if_else(values.is_valid(), joined(made), pa.scalar(None, pa.binary()))]


def _big_endian(values: pa.Array, width: int) -> pa.Array:
    """The numbers as bytes. The value of a null does not matter."""
    import pyarrow as pa

    count = len(values)
    numbers = array(_INT_CODES[width])
    numbers.frombytes(memoryview(values.buffers()[1])[values.offset * width : (values.offset + count) * width])
    if sys.byteorder == "little":
        numbers.byteswap()
    ends = array("i", range(0, width * count + 1, width))
    return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(ends), pa.py_buffer(numbers)])
