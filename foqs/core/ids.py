"""Item ids and receipts: strings that carry the shard, the primary key and the delivery number.

The shard in the id routes a call without a look-up (after FOQS); the delivery number in the receipt
tells a stale holder from the present one.
"""

from __future__ import annotations

from foqs.core.errors import InvalidArgumentError

SEQUENCE_BITS = 40
"""A primary key is epoch << SEQUENCE_BITS | sequence: it grows, and no two owners ever assign the same one."""

_TEXT_CHARS_MAX = 40


def item_id(shard_id: int, key: int) -> str:
    return f"{shard_id:x}-{key:x}"


def receipt(shard_id: int, key: int, delivery: int) -> str:
    return f"{shard_id:x}-{key:x}:{delivery:x}"


def parse(text: object) -> tuple[int, int, int]:
    """(shard id, primary key, delivery number) of a receipt; the delivery number of a bare id is 0.

    Raises InvalidArgumentError for anything that this module did not write.
    """
    try:
        if not isinstance(text, str) or len(text) > _TEXT_CHARS_MAX:
            raise ValueError
        head, _, delivery = text.partition(":")
        shard_id, _, key = head.partition("-")
        parsed = (int(shard_id, 16), int(key, 16), int(delivery, 16) if delivery else 0)
        written = receipt(*parsed) if delivery else item_id(parsed[0], parsed[1])
        if written != text or not 0 <= parsed[0] < 1 << 16 or not 0 < parsed[1] < 1 << 64 or parsed[2] < 0:
            raise ValueError
    except ValueError:
        raise InvalidArgumentError(f"{text!r:.80} is neither an item id nor a receipt of this service") from None
    return parsed
