"""Stored items as rows of tables, and their payloads as texts."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from contextlib import suppress
from typing import Any, Final

from foqs.console.texts import age, escaped_text
from foqs.model import limits
from foqs.model.calls import ItemState, StoredItem

SHOWN_BYTES_MAX: Final = 64 * limits.KIB
"""The most bytes of a payload that a page shows."""
PREVIEW_BYTES: Final = 200
_HEX_BYTES_PER_LINE: Final = 16


def item_row(one: StoredItem, now_ms: int, *, hides_payloads: bool) -> dict[str, Any]:
    """Return the cells of an item."""
    return {
        "id": one.id,
        "state": one.state.name.lower(),
        "priority": one.priority,
        "attempt": one.failed_attempts + 1 if one.state is not ItemState.DEAD else one.failed_attempts,
        "when": _when(one, now_ms),
        "ends": age(one.lease_expires_at_ms - now_ms) if one.lease_expires_at_ms else "",
        "leased_by": one.leased_by or "",
        "error": last_error(one),
        "key": one.ordering_key or one.fairness_key or one.key_bucket or "",
        "preview": "" if hides_payloads else preview(one.payload),
        "bytes": len(one.payload),
    }


def last_error(one: StoredItem) -> str:
    """Return the last known reason of a failure, or of the death of a dead letter."""
    return one.errors[0].reason if one.errors else one.death_reason or ""


def preview(payload: bytes) -> str:
    """Return the beginning of a payload on one line."""
    return payload[:PREVIEW_BYTES].decode(errors="replace")


def contents(data: bytes) -> list[tuple[str, str, str]]:
    """Return the forms in which bytes are shown, each with a key, a label and a text; the best one first."""
    shown = data[:SHOWN_BYTES_MAX]
    forms = []
    with suppress(ValueError, RecursionError):
        forms.append(("json", "JSON", escaped_text(json.dumps(json.loads(shown), indent=2, ensure_ascii=False))))
    with suppress(UnicodeDecodeError):
        # A character that is cut at the end is left out; bytes that are none are an error.
        text = getincrementaldecoder("utf-8")().decode(shown, final=len(data) <= SHOWN_BYTES_MAX)
        forms.append(("text", "Text", escaped_text(text)))
    return [*forms, ("hex", "Hex", _hex(shown))]


def _hex(data: bytes) -> str:
    """Return bytes as lines of hexadecimal digits with the printable characters beside them."""
    found = []
    for at in range(0, len(data), _HEX_BYTES_PER_LINE):
        some = data[at : at + _HEX_BYTES_PER_LINE]
        chars = "".join([chr(byte) if 32 <= byte < 127 else "." for byte in some])
        found.append(f"{at:06x}  {some.hex(' '):<{3 * _HEX_BYTES_PER_LINE}} {chars}")
    return "\n".join(found)


def _when(one: StoredItem, now_ms: int) -> str:
    """Return the time that matters in the state of an item."""
    match one.state:
        case ItemState.DELAYED:
            return f"in {age(one.deliver_after_ms - now_ms)}"
        case ItemState.LEASED:
            return age(now_ms - one.leased_since_ms) if one.leased_since_ms else ""
        case ItemState.DEAD:
            return f"{age(now_ms - one.died_at_ms)} ago" if one.died_at_ms else ""
        case _:
            return age(now_ms - max(one.deliver_after_ms, one.enqueued_at_ms))
