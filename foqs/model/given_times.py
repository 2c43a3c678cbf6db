"""Times from callers: an argument `x_ms`, milliseconds since the epoch, has a twin `x`, a datetime with a time zone.

Only one of the two is allowed. `foqs.client.durations` has the twins of durations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from foqs.model.errors import InvalidArgumentError

if TYPE_CHECKING:
    from datetime import datetime, timedelta

_EPOCH_DAY: Final = 719_163
"""The ordinal of the first of January 1970."""
_DAY_US: Final = 86_400_000_000


def time_ms(name: str, value_ms: int | None, value: datetime | None) -> int | None:
    """Return the milliseconds since the epoch of an argument called `name` or of its twin, or None if neither is given.

    Raises InvalidArgumentError if both are given, and for a twin that is not a datetime or has no time zone.
    """
    if value is None:
        return value_ms
    check_one(name, value_ms)
    # Values know no clock, so the module of clocks is not imported here.
    if not (hasattr(value, "utcoffset") and hasattr(value, "toordinal")):
        raise InvalidArgumentError(f"{twin_of(name)} {value!r} is not a datetime: use one with a time zone, or {name}")
    offset = value.utcoffset()
    if offset is None:
        raise InvalidArgumentError(
            f"{twin_of(name)} {value.isoformat()} has no time zone, so it is no point in time: "
            "use datetime.now(UTC) + timedelta(...), or .astimezone() for local time"
        )
    seconds = (value.hour * 60 + value.minute) * 60 + value.second
    local_us = (value.toordinal() - _EPOCH_DAY) * _DAY_US + seconds * 1_000_000 + value.microsecond
    return _rounded_up(local_us - _microseconds(offset))


def twin_of(name: str) -> str:
    """Name the timedelta or datetime twin of the argument `name`."""
    return name.replace("_ms", "")


def check_one(name: str, value_ms: int | None) -> None:
    """Raise InvalidArgumentError if an argument is given whose twin is, too."""
    if value_ms is not None:
        raise InvalidArgumentError(f"{twin_of(name)} and {name} are both given: give one of them")


def rounded_up(value: timedelta) -> int:
    """Return the milliseconds of a duration, rounded up, so that nothing happens too early."""
    return _rounded_up(_microseconds(value))


def _microseconds(value: timedelta) -> int:
    return value.days * _DAY_US + value.seconds * 1_000_000 + value.microseconds


def _rounded_up(us: int) -> int:
    return -(-us // 1_000)
