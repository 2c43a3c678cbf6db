"""When a failed call is repeated, and after what pause. No clock, no sleep: both are handed in.

The pause is exponential backoff with full jitter (M. Brooker, "Exponential Backoff And Jitter", AWS, 2015) on
top of the host's `retry_after_ms`. What may be repeated depends on what is known about the failed attempt:

    failure                                          done?      repeated
    no connection, frame not handed over whole       no         always
    RATE_LIMITED, OVERLOADED, PAUSED                 no         always
    UNAVAILABLE with nothing_done                    no         always
    UNAVAILABLE, connection lost after sending       unknown    only Repeat.ALWAYS
    any other code                                   no         never: the same call fails again

Before any pause an attempt goes round the addresses, where another host may do what one could not: see
`goes_elsewhere`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from foqs.client.checks import check_whole
from foqs.client.errors import OutcomeUnknownError
from foqs.model.errors import FoqsError, OverloadedError, UnavailableError


class Repeat(Enum):
    ALWAYS = "always"
    """Reads, and what may happen twice: ack, extend, dequeue (lost items come back by their lease)."""

    UNLESS_UNKNOWN = "unless unknown"
    """Writes that would have another effect the second time: enqueue, nack, create."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """`deadline_ms` bounds a call with all its repetitions, measured to the start of the last one; 0: no
    repetition. Going on to another address, where nothing was done, is none.

    The n-th pause is drawn from 0 .. min(backoff_ms_max, backoff_ms * 2**n), plus what the host asked for.
    Raises InvalidArgumentError for what is negative.
    """

    deadline_ms: int = 15_000
    backoff_ms: int = 20
    backoff_ms_max: int = 2_000

    def __post_init__(self) -> None:
        for name in ("deadline_ms", "backoff_ms", "backoff_ms_max"):
            check_whole(name, getattr(self, name), 0)


def may_repeat(error: FoqsError, repeat: Repeat) -> bool:
    """Whether what is known about the failed attempt allows another one."""
    return error.retryable and (error.nothing_done or repeat is Repeat.ALWAYS)


def goes_elsewhere(error: FoqsError) -> bool:
    """Whether nothing was done and another host may do it: a quota or a pause holds on every host."""
    return error.nothing_done and isinstance(error, UnavailableError | OverloadedError)


def verdict(error: FoqsError, uncertain: bool) -> FoqsError:
    """What the caller gets: "nothing was done" does not hold when an earlier attempt may have been done."""
    if not (uncertain and error.retryable and error.nothing_done):
        return error
    unknown = OutcomeUnknownError(f"an earlier attempt may have been done; the last one: {error.message}")
    unknown.__cause__ = error
    return unknown


class Pauses:
    """The pauses between the attempts of a call. `clock_ms` is monotonic; `random` draws from 0 <= x < 1."""

    __slots__ = ("_clock_ms", "_deadline_at_ms", "_failures", "_policy", "_random")

    def __init__(
        self,
        policy: RetryPolicy,
        clock_ms: Callable[[], int],
        random: Callable[[], float],
        deadline_at_ms: int | None = None,
    ) -> None:
        """`deadline_at_ms`: a time of the clock that holds instead of the policy's deadline."""
        self._policy = policy
        self._clock_ms = clock_ms
        self._random = random
        self._deadline_at_ms = clock_ms() + policy.deadline_ms if deadline_at_ms is None else deadline_at_ms
        self._failures = 0

    def next_ms(self, retry_after_ms: int) -> int | None:
        """How long to wait before the next attempt; None when it would start past the deadline."""
        policy = self._policy
        backoff_ms = min(policy.backoff_ms_max, policy.backoff_ms << min(self._failures, 32))
        self._failures += 1
        pause_ms = retry_after_ms + int(self._random() * backoff_ms)
        return pause_ms if self._clock_ms() + pause_ms < self._deadline_at_ms else None
