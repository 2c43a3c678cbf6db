"""Rules for the repetition of failed calls, and the pauses. The clock is passed in, and nothing here sleeps.

The pause is exponential backoff with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS, 2015) on top of
the host's `retry_after_ms`. A repetition depends on the known facts about the failed attempt:

    failure                                          done?      repeated
    no connection, frame not handed over whole       no         always
    RATE_LIMITED, OVERLOADED, PAUSED                 no         always
    UNAVAILABLE with nothing_done                    no         always
    UNAVAILABLE, connection lost after sending       unknown    all but Repeat.UNLESS_UNKNOWN
    any other code                                   no         never: the same call fails again

Before any pause, a call tries the other addresses if another host might succeed, see `goes_elsewhere`. A read also
tries them if a host gave no answer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum

from foqs.client.checks import check_whole
from foqs.client.client_errors import OutcomeUnknownError
from foqs.client.durations import DEADLINE_MS_MAX, duration_or
from foqs.model.errors import FoqsError, OverloadedError, UnavailableError


class Repeat(Enum):
    READ = "read"
    """A call that changes nothing: another address is tried at once, even after an unknown outcome."""

    ALWAYS = "always"
    """A call that is safe to do twice: ack, extend, dequeue (lost items are redelivered after their lease)."""

    UNLESS_UNKNOWN = "unless unknown"
    """A write with another effect the second time: enqueue, nack, create."""


@dataclass(frozen=True, slots=True, kw_only=True, init=False)
class RetryPolicy:
    """Repetition of failed calls, for calls without a deadline of their own.

    deadline or deadline_ms (15 s): no repetition starts later than this after the start of the call; 0 for no
        repetitions. Another address, after nothing was done or for a read, does not count as a repetition.
    backoff or backoff_ms (20 ms), backoff_max or backoff_ms_max (2 s): the n-th pause is drawn from 0 ..
        min(backoff_max, backoff * 2**n), plus the host's retry_after_ms.

    Raises InvalidArgumentError for a negative value or one beyond a hundred years, and if an argument and its twin in
    milliseconds are both given.
    """

    deadline_ms: int
    backoff_ms: int
    backoff_ms_max: int

    def __init__(
        self,
        *,
        deadline_ms: int | None = None,
        backoff_ms: int | None = None,
        backoff_ms_max: int | None = None,
        deadline: timedelta | None = None,
        backoff: timedelta | None = None,
        backoff_max: timedelta | None = None,
    ) -> None:
        set_field = object.__setattr__
        set_field(self, "deadline_ms", duration_or("deadline_ms", deadline_ms, deadline, 15_000))
        set_field(self, "backoff_ms", duration_or("backoff_ms", backoff_ms, backoff, 20))
        set_field(self, "backoff_ms_max", duration_or("backoff_ms_max", backoff_ms_max, backoff_max, 2_000))
        for name in ("deadline_ms", "backoff_ms", "backoff_ms_max"):
            check_whole(name, getattr(self, name), 0, DEADLINE_MS_MAX)


NO_REPEATS = RetryPolicy(deadline_ms=0)
"""Policy of callers that repeat calls themselves, with their own pauses."""


def may_repeat(error: FoqsError, repeat: Repeat) -> bool:
    """True if the failed attempt can be repeated."""
    return error.retryable and (error.nothing_done or repeat is not Repeat.UNLESS_UNKNOWN)


def goes_elsewhere(error: FoqsError) -> bool:
    """True if nothing was done and another host might do it; a quota or a pause applies on every host."""
    return error.nothing_done and isinstance(error, UnavailableError | OverloadedError)


def verdict(error: FoqsError, uncertain: bool) -> FoqsError:
    """Return the caller's error: "nothing was done" is false if an earlier attempt might have been done."""
    if not (uncertain and error.retryable and error.nothing_done):
        return error
    unknown = OutcomeUnknownError(f"an earlier attempt may have been done; the last one: {error.message}")
    unknown.__cause__ = error
    return unknown


class Pauses:
    """Pauses between the attempts of a call. `clock_ms` is monotonic; `random` draws from 0 <= x < 1."""

    __slots__ = ("_clock_ms", "_deadline_at_ms", "_failures", "_policy", "_random")

    def __init__(
        self,
        policy: RetryPolicy,
        clock_ms: Callable[[], int],
        random: Callable[[], float],
        deadline_at_ms: int | None = None,
    ) -> None:
        """`deadline_at_ms` overrides the policy's deadline."""
        self._policy = policy
        self._clock_ms = clock_ms
        self._random = random
        self._deadline_at_ms = clock_ms() + policy.deadline_ms if deadline_at_ms is None else deadline_at_ms
        self._failures = 0

    def next_ms(self, retry_after_ms: int) -> int | None:
        """Return the pause before the next attempt in ms, or None if that would start past the deadline."""
        policy = self._policy
        backoff_ms = min(policy.backoff_ms_max, policy.backoff_ms << min(self._failures, 32))
        self._failures += 1
        pause_ms = retry_after_ms + int(self._random() * backoff_ms)
        return pause_ms if self._clock_ms() + pause_ms < self._deadline_at_ms else None
