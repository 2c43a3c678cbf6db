"""Numbers, durations and names as the pages show them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from foqs.model import limits
from foqs.model.shown_text import escaped, one_line

NOTHING: Final = "–"
SHOWN_CHARS_MAX: Final = 300
"""The longest text of others in a cell of a table."""


def number(value: float) -> str:
    """Return a count with separators of thousands."""
    return f"{round(value):,}"


def per_second(value: float) -> str:
    """Return a rate: one digit behind the point below 10, none above."""
    if value < 0.05:
        return "0"
    return f"{value:.1f}" if value < 9.95 else f"{round(value):,}"


def age(duration_ms: int) -> str:
    """Return a duration with its largest unit."""
    seconds = max(0, duration_ms) // 1_000
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3_600:
        return f"{seconds // 60} min"
    return f"{seconds // 3_600} h" if seconds < 172_800 else f"{seconds // 86_400} d"


def clock(time_ms: int) -> str:
    """Return the time of day, in UTC."""
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%H:%M:%S") if time_ms else NOTHING


def moment(time_ms: int | None) -> str:
    """Return a date and time in UTC."""
    if not time_ms or time_ms >= limits.NEVER_MS:
        return NOTHING
    return datetime.fromtimestamp(time_ms / 1_000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def size(count_bytes: int) -> str:
    """Return a number of bytes."""
    return f"{count_bytes:,} B" if count_bytes < 10_240 else f"{count_bytes / 1_024:,.0f} KiB"


def name(text: str) -> str:
    """Return a text of others on one line, without the characters that turn its order."""
    return one_line(text)


def short(text: str) -> str:
    """Return a text of others for a cell of a table."""
    shown = one_line(text[: SHOWN_CHARS_MAX + 1])
    return shown if len(shown) <= SHOWN_CHARS_MAX else shown[:SHOWN_CHARS_MAX] + "…"


def escaped_text(text: str) -> str:
    """Return a text of others with its line ends, and its unsafe characters written out."""
    return escaped(text)
