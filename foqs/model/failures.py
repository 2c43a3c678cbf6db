"""The last failures of an item as they are stored: entries in one value, the newest first.

A write puts an entry before the stored ones and cuts the value at its end, without a read. So the last entry can be
torn, and a reader leaves it out. An entry begins with the version of its format and the number of the bytes behind
these, by which a reader passes over the entry of a later version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from struct import Struct
from typing import Final

from foqs.model import limits
from foqs.model.calls import ItemFailure

REASON_BYTES_MAX: Final = 500
"""Bytes of UTF-8 of one reason. A longer one is cut at the end of a character."""
FAILURES_SHOWN_MAX: Final = 16
"""Failures that a look-up of one item shows. A page shows the newest of each item."""
DEATH_REASON_BYTES_MAX: Final = 255
"""Bytes of the reason of death, as its column has them."""
LEASE_ENDED: Final = "lease ended"
"""The reason of an attempt whose lease ended without an ack or a nack."""

_VERSION: Final = 1
_HEAD: Final = Struct(">BH")
_BODY: Final = Struct(">qI")
_CONTROLS: Final = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_CONTINUATION: Final = 0b10
"""The first bits of the bytes of a character in UTF-8 after its first byte."""


def clean_reason(given: str | bytes | None) -> str:
    """Return a reason as it is stored: one line of valid UTF-8 of REASON_BYTES_MAX at most. Empty is no reason.

    It never fails: what is not UTF-8 becomes U+FFFD, control characters and line ends become spaces.
    """
    if not given:
        return ""
    if isinstance(given, str):
        if len(given) <= REASON_BYTES_MAX and given.isascii() and given.isprintable():
            return given.strip()
        given = given[:REASON_BYTES_MAX].encode(errors="replace")
    # Invalid bytes grow by their replacement, so cut before it, for the costs, and after it.
    text = _CONTROLS.sub(" ", cut(given, REASON_BYTES_MAX).decode(errors="replace")).strip()
    return cut(text.encode(), REASON_BYTES_MAX).decode().rstrip()


def cut(text: bytes, bytes_max: int) -> bytes:
    """Return UTF-8 without the characters that do not fit into `bytes_max` as a whole."""
    if len(text) <= bytes_max:
        return text
    end = bytes_max
    while end and text[end] >> 6 == _CONTINUATION and bytes_max - end < 3:
        end -= 1
    return text[:end]


def death_reason(cause: str, reason: str) -> bytes:
    """Return the reason of death for a cause and the reason that a consumer gave, if it gave one."""
    return cut((f"{cause}: {reason}" if reason else cause).encode(), DEATH_REASON_BYTES_MAX)


def entry(at_ms: int, attempt: int, reason: str, bytes_max: int = limits.ERRORS_BYTES_DEFAULT) -> bytes:
    """Encode a failure; `reason` is clean, and cut so that the entry has `bytes_max` at most."""
    text = cut(reason.encode(), max(0, bytes_max - _HEAD.size - _BODY.size))
    return _HEAD.pack(_VERSION, _BODY.size + len(text)) + _BODY.pack(at_ms, attempt) + text


def with_entry(new: bytes, stored: bytes, bytes_max: int = limits.ERRORS_BYTES_DEFAULT) -> bytes:
    """Return the stored entries with a new one, as the statements on rows make them."""
    return (new + stored)[:bytes_max]


def failures_of(stored: bytes, count_max: int = FAILURES_SHOWN_MAX) -> list[ItemFailure]:
    """Decode the newest failures, without a torn one and those of an unknown version."""
    return list(islice(_decoded(stored), count_max)) if stored else []


def _decoded(stored: bytes) -> Iterator[ItemFailure]:
    at = 0
    while at + _HEAD.size <= len(stored):
        version, size = _HEAD.unpack_from(stored, at)
        begin, at = at + _HEAD.size, at + _HEAD.size + size
        if at > len(stored):
            return
        if version == _VERSION and size >= _BODY.size:
            at_ms, attempt = _BODY.unpack_from(stored, begin)
            yield ItemFailure(at_ms, attempt, stored[begin + _BODY.size : at].decode(errors="replace"))
