"""Item ids and receipts: strings that carry the shard, the primary key and the delivery number.

The shard in the id routes a call without a look-up (after FOQS); the delivery number in the receipt distinguishes a
stale holder from the present one.
"""

from __future__ import annotations

import re

from foqs.model.errors import InvalidArgumentError, shown

SEQUENCE_BITS = 40
"""A primary key is epoch << SEQUENCE_BITS | sequence: it grows, and no two owners ever assign the same one."""

_HEX = r"(0|[1-9a-f][0-9a-f]{{0,{}}})"
_TEXT = re.compile(rf"{_HEX.format(3)}-([1-9a-f][0-9a-f]{{0,15}})(?::([1-9a-f][0-9a-f]{{0,7}}))?")


# Format strings are slower, above all in compiled code.
def item_id(shard_id: int, key: int) -> str:
    return "%x-%x" % (shard_id, key)  # noqa: UP031


def receipt(shard_id: int, key: int, delivery: int) -> str:
    return "%x-%x:%x" % (shard_id, key, delivery)  # noqa: UP031


def item_id_of(receipt: str) -> str:
    return receipt[: receipt.rindex(":")]


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
