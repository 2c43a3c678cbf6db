"""Item ids and receipts: strings that carry the shard, the primary key and the delivery number.

The shard in the id routes a call without a look-up (after FOQS); the delivery number in the receipt distinguishes a
stale holder from the present one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from foqs.model.errors import InvalidArgumentError, shown

SEQUENCE_BITS = 40
"""A primary key is epoch << SEQUENCE_BITS | sequence: it grows, and no two owners ever assign the same one."""

_HEX = r"(0|[1-9a-f][0-9a-f]{{0,{}}})"
_COPIES = re.compile(r"([^+]+)\+([1-9a-f]|10)")
"""An item has up to 16 copies behind the first one."""
_TEXT = re.compile(rf"{_HEX.format(3)}-([1-9a-f][0-9a-f]{{0,15}})(?::([1-9a-f][0-9a-f]{{0,7}}))?")


# Format strings are slower, above all in compiled code.
def item_id(shard_id: int, key: int) -> str:
    return "%x-%x" % (shard_id, key)  # noqa: UP031


def item_ids(shard_id: int, keys: Iterable[int]) -> list[str]:
    return ["%x-%x" % (shard_id, key) for key in keys]  # noqa: UP031


def receipts(shard_id: int, keys: Iterable[int], deliveries: Iterable[int]) -> list[str]:
    """Return the receipts of items, each with the number of its delivery."""
    return ["%x-%x:%x" % (shard_id, key, number) for key, number in zip(keys, deliveries, strict=True)]  # noqa: UP031


def with_copies(item_id: str, copies_count: int) -> str:
    """Return the id of an item that has this many copies behind the first one, which `item_id` names."""
    return "%s+%x" % (item_id, copies_count)  # noqa: UP031


def without_copies(text: object) -> tuple[object, int]:
    """Return the id of the first copy, and the number of copies behind it; 0 for any text that names one item."""
    match = _COPIES.fullmatch(text) if isinstance(text, str) and "+" in text else None
    return (text, 0) if match is None else (match[1], int(match[2], 16))


def is_bare(text: object) -> bool:
    """Return True for the id of an item, which names no delivery."""
    return isinstance(text, str) and ":" not in text and _TEXT.fullmatch(text) is not None


def parse(text: object) -> tuple[int, int, int]:
    """Return the shard id, primary key and delivery number of a receipt; the delivery number of a bare id is 0.

    Raises InvalidArgumentError for any text that this module did not write.
    """
    # The pattern matches only the one spelling that this module writes; int() alone accepts others.
    match = _TEXT.fullmatch(text) if isinstance(text, str) else None
    if match is None:
        raise InvalidArgumentError(f"{shown(text)} is neither an item id nor a receipt of this service")
    shard_id, key, delivery = match.groups("0")
    return int(shard_id, 16), int(key, 16), int(delivery, 16)
