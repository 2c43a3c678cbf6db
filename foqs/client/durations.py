"""Durations and times from callers: each argument `x_ms` in milliseconds has a twin `x`, a timedelta.

Only one of the two is allowed. `deliver_after_ms`, milliseconds since the epoch, has the twin `deliver_after`, a
datetime with a time zone. Fractions of a millisecond are rounded up, so nothing happens too early.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from foqs.model.errors import InvalidArgumentError

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MILLISECOND = timedelta(milliseconds=1)
TIMEOUT_MS_MAX = 24 * 60 * 60 * 1_000
"""Longest timeout of one attempt: a day. The limit of a socket is 24 days."""
DEADLINE_MS_MAX = 36_500 * TIMEOUT_MS_MAX
"""Latest deadline: a hundred years, for callers that never give up. The limit of a lock is 292 years."""


def duration_ms(name: str, value_ms: int | None, value: timedelta | None) -> int | None:
    """Return the milliseconds of an argument called `name` or of its twin, or None if neither is given.

    Raises InvalidArgumentError if both are given, and for a twin that is not a timedelta.
    """
    if value is None:
        return value_ms
    _check_one(name, value_ms)
    if not isinstance(value, timedelta):
        raise InvalidArgumentError(
            f"{twin_of(name)} {value!r} is not a timedelta: use timedelta(seconds=...), or {name} for milliseconds"
        )
    return _rounded_up(value)


def duration_or(name: str, value_ms: int | None, value: timedelta | None, default_ms: int) -> int:
    """Return the result of `duration_ms`, or the default if neither argument is given."""
    given_ms = duration_ms(name, value_ms, value)
    return default_ms if given_ms is None else given_ms


def time_ms(name: str, value_ms: int | None, value: datetime | None) -> int | None:
    """Return the milliseconds since the epoch of an argument called `name` or of its twin, or None if neither is given.

    Raises InvalidArgumentError if both are given, and for a twin that is not a datetime or has no time zone.
    """
    if value is None:
        return value_ms
    _check_one(name, value_ms)
    if not isinstance(value, datetime):
        raise InvalidArgumentError(f"{twin_of(name)} {value!r} is not a datetime: use one with a time zone, or {name}")
    if value.utcoffset() is None:
        raise InvalidArgumentError(
            f"{twin_of(name)} {value.isoformat()} has no time zone, so it is no point in time: "
            "use datetime.now(UTC) + timedelta(...), or .astimezone() for local time"
        )
    return _rounded_up(value - _EPOCH)


def twin_of(name: str) -> str:
    """Name the timedelta or datetime twin of the argument `name`."""
    return name.replace("_ms", "")


def _check_one(name: str, value_ms: int | None) -> None:
    if value_ms is not None:
        raise InvalidArgumentError(f"{twin_of(name)} and {name} are both given: give one of them")


def _rounded_up(value: timedelta) -> int:
    whole, rest = divmod(value, _MILLISECOND)
    return whole + bool(rest)
