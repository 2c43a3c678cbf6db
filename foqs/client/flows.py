"""Verbs without I/O: a verb is a generator of steps, and a shell, blocking or asyncio, takes the steps.

A step is `Send` (one attempt of one call; the shell answers with the response struct, or throws a FoqsError
into the generator) or `Pause`. All that decides (batching, retries, paging, mapping of errors) stands here
and in `verbs`, once for both shells, and tests drive it by hand without a socket or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from foqs.client.errors import OutcomeUnknownError, error_from_wire
from foqs.client.retry import Pauses, Repeat, RetryPolicy, may_repeat, verdict
from foqs.core.calls import PositionErrors
from foqs.core.errors import FoqsError, InternalError, NotFoundError

T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One call of the wire. `wait_ms`: how long the host may hold it before it answers (long poll)."""

    method: str
    request: Any
    repeat: Repeat
    wait_ms: int = 0


@dataclass(slots=True)
class Send:
    call: Call
    timeout_ms: int


@dataclass(slots=True)
class Pause:
    pause_ms: int


def no_answer(step: Send, address: object) -> OutcomeUnknownError:
    """The error of an attempt whose time ran out after it was sent."""
    return OutcomeUnknownError(f"{step.call.method}: no answer from {address} within {step.timeout_ms} ms")


Flow = Generator[Send | Pause, Any, T]


@dataclass(slots=True)
class Terms:
    """What all calls of a client have in common. `clock_ms` is monotonic; `random` draws from 0 <= x < 1."""

    retry: RetryPolicy
    timeout_ms: int
    clock_ms: Callable[[], int]
    random: Callable[[], float]

    def pauses(self) -> Pauses:
        return Pauses(self.retry, self.clock_ms, self.random)

    def send(self, call: Call) -> Send:
        return Send(call, self.timeout_ms + call.wait_ms)


def call_flow(terms: Terms, call: Call) -> Flow[Any]:
    """One call with its repetitions; returns the response struct."""
    pauses = terms.pauses()
    uncertain = False
    while True:
        try:
            return (yield terms.send(call))
        except FoqsError as error:
            pause_ms = pauses.next_ms(error.retry_after_ms) if may_repeat(error, call.repeat) else None
            if pause_ms is None:
                final = verdict(error, uncertain)
                if final is error:
                    raise
                raise final from error
            uncertain = uncertain or isinstance(error, OutcomeUnknownError)
        yield Pause(pause_ms)


def batch_flow(
    terms: Terms,
    entries: Sequence[Any],
    make_call: Callable[[Sequence[Any]], Call],
    take: Callable[[Any, Sequence[int]], Mapping[int, Any] | None],
    *,
    gone_is_done: bool = False,
) -> Flow[PositionErrors]:
    """One batch whose positions succeed or fail alone; those that may be repeated are, until the deadline.

    take(response, places) keeps what the response holds beside errors, and returns its errors; `places` are
    the positions in `entries` that the response speaks of, in its order.
    gone_is_done: NOT_FOUND after an unknown outcome means that an earlier attempt did it.
    Raises when the call as a whole fails before anything is known of any position.
    """
    batch = _Batch(terms.pauses(), len(entries), gone_is_done)
    while True:
        call = make_call([entries[place] for place in batch.places] if batch.answered_once else entries)
        try:
            wire_errors = take((yield terms.send(call)), batch.places)
        except FoqsError as error:
            pause_ms = batch.failed(error, call.repeat)
        else:
            pause_ms = batch.answered(wire_errors, call.repeat) if wire_errors else None
        if pause_ms is None:
            return batch.errors
        yield Pause(pause_ms)


class _Batch:
    """What is known of each position between the attempts. `places`: the positions of the next attempt."""

    def __init__(self, pauses: Pauses, count: int, gone_is_done: bool) -> None:
        self.errors: PositionErrors = {}
        self.places: Sequence[int] = range(count)
        self.answered_once = False
        self._pauses = pauses
        self._gone_is_done = gone_is_done
        self._uncertain: set[int] = set()

    def failed(self, error: FoqsError, repeat: Repeat) -> int | None:
        """The call failed as a whole: the pause before the next attempt, or None, the verdict in `errors`."""
        pause_ms = self._pauses.next_ms(error.retry_after_ms) if may_repeat(error, repeat) else None
        if pause_ms is None:
            if not self.answered_once:
                raise verdict(error, bool(self._uncertain)) from error.__cause__
            self._give_up(dict.fromkeys(self.places, error))
        elif isinstance(error, OutcomeUnknownError):
            self._uncertain.update(self.places)
        return pause_ms

    def answered(self, wire_errors: Mapping[int, Any], repeat: Repeat) -> int | None:
        """Some positions failed: the pause before those that may be repeated are, or None for the end."""
        self.answered_once = True
        again: PositionErrors = {}
        for index, wire_error in wire_errors.items():
            if not 0 <= index < len(self.places):
                raise InternalError(f"the host reported position {index} of a batch of {len(self.places)}")
            place = self.places[index]
            error = error_from_wire(wire_error.code, wire_error.message)
            if self._gone_is_done and isinstance(error, NotFoundError) and place in self._uncertain:
                continue
            if may_repeat(error, repeat):
                again[place] = error
            else:
                self.errors[place] = error
        pause_ms = self._pauses.next_ms(None) if again else None
        if pause_ms is None:
            self._give_up(again)
        else:
            self.places = sorted(again)
            self._uncertain.update(place for place, error in again.items() if isinstance(error, OutcomeUnknownError))
        return pause_ms

    def _give_up(self, errors: PositionErrors) -> None:
        for place, error in errors.items():
            self.errors[place] = verdict(error, place in self._uncertain)
