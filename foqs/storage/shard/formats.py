"""The stored formats: items of a pack, keys of a tombstone, entries of a claim and dedup ids, as bytes and back.

The first byte is the version of the format: the number of the migration of schema/shard that introduced it. A host
opens a shard only if the schema of the shard is exactly that of the host. So the rules for an upgrade are:

- A reader reads every version up to its newest one, and refuses any other one by UnknownFormatError.
- A writer writes its newest version from its first transaction on. Any later owner of the shard has that migration too,
  and reads it.
- A migration must not disturb the host that owned the shard before: it adds columns with defaults, and changes nothing
  else. That host writes the previous version until it ends.
- No version ever changes. tests/golden has the bytes of each.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import accumulate
from struct import Struct
from typing import Any, Final, NamedTuple

from foqs.model import limits
from foqs.model.item import Bundle, ShardItem, keys_of
from foqs.model.seen import DIGEST_BYTES
from foqs.shard.port import ItemRow, OwnershipLostError
from foqs.storage.schema.item_columns import CONTENT_COLUMNS, GIVEN_COLUMNS, packed_integers, packed_row

PACK_VERSIONS: Final = sorted({column.since for column in (*GIVEN_COLUMNS, *CONTENT_COLUMNS)})
TOMBSTONE_VERSIONS: Final = [1]
CLAIM_VERSIONS: Final = [1]
SEEN_VERSIONS: Final = [3, 6, 12]
"""The sixth has the slot of each id at the end of its digest, and the twelfth the number of copies of each item."""


class UnknownFormatError(OwnershipLostError):
    """The message has the version, and ends with the remedy."""

    def __init__(self, version: int, known: Sequence[int]) -> None:
        listed = ", ".join(map(str, known))
        super().__init__(f"has version {version} of its format, and this host reads {listed}: upgrade this host")


class _PackLayout(NamedTuple):
    """The layout of one item of a pack: the integers, then the lengths of the contents, then the contents."""

    head: Struct
    given_count: int
    given_defaults: tuple[Any, ...]
    """The defaults of the columns that were added later."""
    content_defaults: tuple[Any, ...]


def _layout(version: int) -> _PackLayout:
    given = [column for column in GIVEN_COLUMNS if column.since <= version]
    content = [column for column in CONTENT_COLUMNS if column.since <= version]
    head = Struct(">" + "".join([column.code for column in (*given, *content)]))
    given_defaults = [column.default for column in GIVEN_COLUMNS[len(given) :]]
    content_defaults = [column.default for column in CONTENT_COLUMNS[len(content) :]]
    return _PackLayout(head, len(given), tuple(given_defaults), tuple(content_defaults))


_LAYOUTS: Final = {version: _layout(version) for version in PACK_VERSIONS}
_PACK_VERSION: Final = PACK_VERSIONS[-1]
_pack_head = _LAYOUTS[_PACK_VERSION].head.pack
_COUNT: Final = Struct(">BI")
_TOMBSTONE_VERSION: Final = TOMBSTONE_VERSIONS[-1]
_CLAIM_VERSION: Final = CLAIM_VERSIONS[-1].to_bytes(1, "big")
_SEEN_WITH_COPIES: Final = SEEN_VERSIONS[-1]
_SEEN_ALONE: Final = 6
"""The version of a row without copies, which says the same in less."""
SEEN_ENTRY_BYTES: Final = DIGEST_BYTES + 2 + 8
_ENTRY: Final = Struct(">QI")
_pack_entry = _ENTRY.pack
assert _LAYOUTS[_PACK_VERSION].head.size + _COUNT.size + 8 <= limits.PACKED_ITEM_BYTES


def pack_items(items: Sequence[ShardItem]) -> bytes:
    """Encode the version, the count of the items, their keys, and the items, which are not delayed or delivered yet."""
    keys = keys_of(items)
    parts = [Struct(f">BI{len(keys)}Q").pack(_PACK_VERSION, len(keys), *keys)]
    for item in items:
        if item.bundle is None:
            parts.append(_pack_head(*packed_integers(item)))
            parts += item.content  # type: ignore[arg-type]  # packed_integers has checked it.
            continue
        _add_bundle(parts, item, item.bundle)
    return b"".join(parts)


def _add_bundle(parts: list[bytes], item: ShardItem, bundle: Bundle) -> None:
    """Encode the items of a bundle; those with payloads of one size have the same head."""
    given = packed_integers(item)[: -len(CONTENT_COLUMNS)]
    metadata, trace_context = bundle.metadata, bundle.trace_context
    rest = metadata + trace_context
    heads = {
        size: _pack_head(*given, size, len(metadata), len(trace_context)) for size in set(map(len, bundle.payloads))
    }
    for payload in bundle.payloads:
        parts.append(heads[len(payload)])
        parts.append(payload)
        if rest:
            parts.append(rest)


def unpack_items(packed: bytes) -> list[ItemRow]:
    """Decode the items of a pack. Raises UnknownFormatError."""
    layout = _LAYOUTS[_version(packed, PACK_VERSIONS)]
    _, count = _COUNT.unpack_from(packed)
    keys = Struct(f">{count}Q")
    at = _COUNT.size + keys.size
    rows: list[ItemRow] = []
    for key in keys.unpack_from(packed, _COUNT.size):
        row, at = _item_at(packed, at, key, layout)
        rows.append(row)
    return rows


def packed_starts(items: Sequence[ShardItem]) -> array[int]:
    """Return the start of each item in the result of `pack_items`."""
    head_bytes = _LAYOUTS[_PACK_VERSION].head.size
    sizes_bytes: list[int] = []
    for item in items:
        if item.bundle is None:
            sizes_bytes.append(head_bytes + item.size_bytes)
        else:
            other_bytes = head_bytes + len(item.bundle.metadata) + len(item.bundle.trace_context)
            sizes_bytes += [other_bytes + len(payload) for payload in item.bundle.payloads]
    first = _COUNT.size + 8 * len(sizes_bytes)
    return array("I", accumulate(sizes_bytes[:-1], initial=first))


def unpack_item(packed: bytes, start: int, key: int) -> ItemRow:
    """Decode the item at `start` in a pack made by this version of `pack_items`."""
    return _item_at(packed, start, key, _LAYOUTS[_PACK_VERSION])[0]


def _item_at(packed: bytes, at: int, key: int, layout: _PackLayout) -> tuple[ItemRow, int]:
    """Decode an item, and return it with the start of the next one."""
    values = layout.head.unpack_from(packed, at)
    at += layout.head.size
    contents: list[bytes] = []
    for length in values[layout.given_count :]:
        contents.append(packed[at : at + length])
        at += length
    given = (*values[: layout.given_count], *layout.given_defaults)
    return packed_row(key, given, (*contents, *layout.content_defaults)), at


def pack_keys(keys: Sequence[int]) -> bytes:
    """Encode the keys of a tombstone."""
    return Struct(f">B{len(keys)}Q").pack(_TOMBSTONE_VERSION, *keys)


def unpack_keys(packed: bytes) -> tuple[int, ...]:
    """Decode the keys of a tombstone. Raises UnknownFormatError."""
    _version(packed, TOMBSTONE_VERSIONS)
    return Struct(f">{len(packed) // 8}Q").unpack_from(packed, 1)


def pack_entries(keys: Sequence[int], delivery_numbers: Sequence[int]) -> bytes:
    """Encode the entries of a claim: each key with the number of the claimed delivery."""
    return _CLAIM_VERSION + b"".join(map(_pack_entry, keys, delivery_numbers))


def unpack_entries(packed: bytes) -> list[tuple[int, int]]:
    """Return key and delivery number of each entry. Raises UnknownFormatError."""
    _version(packed, CLAIM_VERSIONS)
    return list(_ENTRY.iter_unpack(packed[1:]))


def pack_seen(
    digests: Sequence[bytes], shard_ids: Sequence[int], keys: Sequence[int], copies_counts: Sequence[int] = ()
) -> bytes:
    """Encode dedup ids as a row of the log: the digests, then the shard of each id's item, then its key.

    The numbers of copies behind the first ones come last, if the items have any.
    """
    count, has_copies = len(digests), any(copies_counts)
    version = _SEEN_WITH_COPIES if has_copies else _SEEN_ALONE
    numbers = Struct(f">{count}H{count}Q").pack(*shard_ids, *keys)
    return bytes([version]) + b"".join(digests) + numbers + (bytes(copies_counts) if has_copies else b"")


def unpack_seen(packed: bytes) -> tuple[list[bytes], list[tuple[int, int]], tuple[int, ...]]:
    """Return the digests, with shard and key of each id's item, and the numbers of copies behind these.

    The last tuple is empty for items without copies. Raises UnknownFormatError.
    """
    version = _version(packed, SEEN_VERSIONS)
    count = seen_count(len(packed), version)
    end = 1 + count * DIGEST_BYTES
    numbers = Struct(f">{count}H{count}Q").unpack_from(packed, end)
    digests = [packed[at : at + DIGEST_BYTES] for at in range(1, end, DIGEST_BYTES)]
    copies_counts = packed[1 + count * SEEN_ENTRY_BYTES :] if version >= _SEEN_WITH_COPIES else b""
    return digests, list(zip(numbers[:count], numbers[count:], strict=True)), tuple(copies_counts)


def seen_digests(packed: bytes) -> bytes:
    """Return the digests alone, side by side. Raises UnknownFormatError."""
    version = _version(packed, SEEN_VERSIONS)
    return packed[1 : 1 + seen_count(len(packed), version) * DIGEST_BYTES]


def seen_count(size_bytes: int, version: int) -> int:
    """Return the number of ids in a row whose entries have `size_bytes` and this version as their first byte."""
    return (size_bytes - 1) // (SEEN_ENTRY_BYTES + (version >= _SEEN_WITH_COPIES))


def _version(packed: bytes, known: Sequence[int]) -> int:
    version = packed[0] if packed else 0
    if version not in known:
        raise UnknownFormatError(version, known)
    return version
