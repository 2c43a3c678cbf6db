"""Numbers as Spark's `to_json` writes them: as Java does, with the fewest digits that identify the number."""

from __future__ import annotations

import struct
from decimal import Decimal

_PLAIN_MIN, _PLAIN_MAX = 1e-3, 1e7
"""Java writes numbers outside these bounds with an exponent."""


def double_text(value: float) -> str:
    """Format a double. NaN and infinities are texts, because JSON has no such numbers."""
    return _of_java(value, repr(value))


def float_text(value: float) -> str:
    """Format a 32-bit float, which has fewer digits than the double of the same value."""
    if value != value or abs(value) == float("inf"):
        return _of_java(value, "")
    for digits_count in range(1, 10):
        text = f"{value:.{digits_count - 1}e}"
        if _as_float(text) == value:
            break
    return _of_java(value, text)


def decimal_text(value: Decimal) -> str:
    """Format a decimal with all of its digits, as java.math.BigDecimal does."""
    return str(value)


def _as_float(text: str) -> float:
    """The 32-bit float nearest to the number in the text."""
    try:
        (found,) = struct.unpack("f", struct.pack("f", float(text)))
    except OverflowError:  # The number is nearer to infinity.
        return float("inf")
    return float(found)


def _of_java(value: float, shortest: str) -> str:
    if value != value:
        return '"NaN"'
    if abs(value) == float("inf"):
        return '"Infinity"' if value > 0 else '"-Infinity"'
    if len(Decimal(shortest).as_tuple().digits) == 1:
        shortest = f"{value:.1e}"  # Java writes at least two digits, and chooses the nearest such number.
    sign, numbers, exponent = Decimal(shortest).as_tuple()
    digits = "".join(map(str, numbers)).lstrip("0")
    whole_count = len(digits) + int(exponent)  # Number of digits before the point.
    digits = digits.rstrip("0") or "0"
    minus = "-" if sign else ""
    if value == 0:
        return f"{minus}0.0"
    if _PLAIN_MIN <= abs(value) < _PLAIN_MAX:
        if whole_count <= 0:
            return f"{minus}0.{'0' * -whole_count}{digits}"
        digits = digits.ljust(whole_count, "0")
        return f"{minus}{digits[:whole_count]}.{digits[whole_count:] or '0'}"
    return f"{minus}{digits[0]}.{digits[1:] or '0'}E{whole_count - 1}"
