"""Durations from callers: each argument `x_ms` in milliseconds has a twin `x`, a timedelta.

Only one of the two is allowed. Fractions of a millisecond are rounded up, so nothing happens too early.
`foqs.model.given_times` has the twins of times.
"""

from __future__ import annotations

from datetime import timedelta

from foqs.model.errors import InvalidArgumentError
from foqs.model.given_times import check_one, rounded_up, twin_of

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
    check_one(name, value_ms)
    if not isinstance(value, timedelta):
        raise InvalidArgumentError(
            f"{twin_of(name)} {value!r} is not a timedelta: use timedelta(seconds=...), or {name} for milliseconds"
        )
    return rounded_up(value)


def duration_or(name: str, value_ms: int | None, value: timedelta | None, default_ms: int) -> int:
    """Return the result of `duration_ms`, or the default if neither argument is given."""
    given_ms = duration_ms(name, value_ms, value)
    return default_ms if given_ms is None else given_ms
