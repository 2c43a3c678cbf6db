"""The items of a pack, and the keys of a tombstone, as the bytes of one column, and back."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from struct import Struct
from typing import Final

from foqs.model import limits
from foqs.model.item import Item
from foqs.shard.port import ItemRow

_HEAD: Final = Struct(">iiqqqIBHI")
"""Topic, priority, due_at, enqueued_at, expires_at, lease_ms, at_most_once, bytes of metadata and of payload."""
_pack, _unpack_from = _HEAD.pack, _HEAD.unpack_from
_COUNT: Final = Struct(">I")
assert _HEAD.size + _COUNT.size + 8 <= limits.PACKED_ITEM_BYTES


def pack_items(items: Sequence[Item]) -> bytes:
    """Their count, their keys, where each of them begins, and the items; none is delayed, none was delivered."""
    starts: list[int] = []
    parts: list[bytes] = []
    at = 0
    for item in items:
        metadata, payload = item.metadata, item.payload
        assert payload is not None
        starts.append(at)
        at += _HEAD.size + len(metadata) + len(payload)
        parts.append(
            _pack(
                item.topic.number, item.priority, item.due_at, item.enqueued_at, item.expires_at, item.lease_ms,
                item.at_most_once, len(metadata), len(payload),
            )
        )  # fmt: skip
        parts.append(metadata)
        parts.append(payload)
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
    topic, priority, due_at, enqueued_at, expires_at, lease_ms, at_most_once, metadata_bytes, payload_bytes = (
        _unpack_from(packed, at)
    )
    metadata_at = at + _HEAD.size
    payload_at = metadata_at + metadata_bytes
    return ItemRow(
        key, topic, priority, due_at, topic, priority, enqueued_at, expires_at, lease_ms, at_most_once, 0, 0,
        None, packed[metadata_at:payload_at], packed[payload_at : payload_at + payload_bytes],
    )  # fmt: skip


def pack_keys(keys: Sequence[int]) -> bytes:
    return Struct(f">{len(keys)}Q").pack(*keys)


def unpack_keys(packed: bytes) -> tuple[int, ...]:
    return Struct(f">{len(packed) // 8}Q").unpack(packed)
