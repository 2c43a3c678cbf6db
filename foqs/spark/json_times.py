"""Dates and times as Spark's `to_json` writes them, for all years of Spark."""

from __future__ import annotations

_DAYS_PER_ERA = 146_097
"""Number of days in 400 years of the Gregorian calendar."""
_EPOCH_OF_ERAS = 719_468
"""Days from March 1 of the year 0 to January 1, 1970."""
_DAY_US = 86_400_000_000


def date_text(days: int) -> str:
    """Format a date that is given in days since 1970."""
    return f'"{_date(days)}"'


def timestamp_text(time_us: int, zone: str) -> str:
    """Format a time in microseconds since 1970, cut to milliseconds and followed by `zone`."""
    days, rest_us = divmod(time_us, _DAY_US)
    return f'"{_date(days)}T{_clock(rest_us // 1_000_000)}.{rest_us // 1_000 % 1_000:03}{zone}"'


def time_text(time_ns: int) -> str:
    """Format a time of the day in nanoseconds, without trailing zeros of the fraction."""
    seconds, fraction = divmod(time_ns, 1_000_000_000)
    digits = f".{fraction:09}".rstrip("0") if fraction else ""
    return f'"{_clock(seconds)}{digits}"'


def _clock(seconds: int) -> str:
    return f"{seconds // 3_600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def _date(days: int) -> str:
    """The Gregorian date. Years before 0 and years of more than four digits have a sign.

    The algorithm is Howard Hinnant's `civil_from_days`: years begin in March, so that a leap day is the last day of a
    year.
    """
    era, day = divmod(days + _EPOCH_OF_ERAS, _DAYS_PER_ERA)
    year = (day - day // 1_460 + day // 36_524 - day // 146_096) // 365
    day_of_year = day - (365 * year + year // 4 - year // 100)
    month = (5 * day_of_year + 2) // 153
    day_of_month = day_of_year - (153 * month + 2) // 5 + 1
    month += 3 if month < 10 else -9
    year += 400 * era + (month <= 2)
    sign = "-" if year < 0 else "+" if year > 9_999 else ""
    return f"{sign}{abs(year):04}-{month:02}-{day_of_month:02}"
