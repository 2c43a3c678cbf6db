"""The items of a pack, and the keys of a tombstone, as the bytes of one column, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct
from typing import Final

from foqs.model import limits
from foqs.model.item import Item
from foqs.shard.port import ItemRow
from foqs.storage.columns import CONTENT_COLUMNS, GIVEN_COLUMNS, given_integers, packed_row

_HEAD: Final = Struct(">" + "".join([column.code for column in (*GIVEN_COLUMNS, *CONTENT_COLUMNS)]))
"""The integers of an item, and the lengths of its contents, which follow."""
_GIVEN_COUNT: Final = len(GIVEN_COLUMNS)
_pack, _unpack_from = _HEAD.pack, _HEAD.unpack_from
_COUNT: Final = Struct(">I")
assert _HEAD.size + _COUNT.size + 8 <= limits.PACKED_ITEM_BYTES


def pack_items(items: Sequence[Item]) -> bytes:
    """Their count, their keys, where each of them begins, and the items; none is delayed, none was delivered."""
    starts: list[int] = []
    parts: list[bytes] = []
    at = 0
    for item in items:
        content = item.content
        assert content is not None
        starts.append(at)
        at += _HEAD.size + item.size_bytes
        parts.append(_pack(*given_integers(item), *map(len, content)))
        parts += content
    count = len(items)
    index = Struct(f">I{count}Q{count}I").pack(count, *[item.key for item in items], *starts)
    return index + b"".join(parts)


def unpack_items(packed: bytes, keys: Collection[int] | None = None) -> list[ItemRow]:
    """The items as they were packed, or those with these keys."""
    (count,) = _COUNT.unpack_from(packed)
    index = Struct(f">{count}Q{count}I")
    numbers = index.unpack_from(packed, _COUNT.size)
    base = _COUNT.size + index.size
    return [
        _row(numbers[at], packed, base + numbers[count + at])
        for at in range(count)
        if keys is None or numbers[at] in keys
    ]


def _row(key: int, packed: bytes, at: int) -> ItemRow:
    values = _unpack_from(packed, at)
    given = values[:_GIVEN_COUNT]
    end = at + _HEAD.size
    contents: list[bytes] = []
    for length in values[_GIVEN_COUNT:]:
        contents.append(packed[end : end + length])
        end += length
    return packed_row(key, given, contents)


def pack_keys(keys: Sequence[int]) -> bytes:
    return Struct(f">{len(keys)}Q").pack(*keys)


def unpack_keys(packed: bytes) -> tuple[int, ...]:
    return Struct(f">{len(packed) // 8}Q").unpack(packed)
