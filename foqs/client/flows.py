"""Verbs without I/O: a verb is a generator of steps, and a client, blocking or asyncio, takes the steps.

A step is `Send` (one attempt of one call; the client sends the response struct into the generator, or throws a
FoqsError) or `Pause`. All that decides (batching, retries, paging, mapping of errors) stands here and in `verbs`, once
for both clients, and tests drive it by hand without a socket or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from foqs.client.addresses import Address, AddressBook
from foqs.client.checks import check_whole
from foqs.client.durations import DEADLINE_MS_MAX
from foqs.client.encoded import EncodedItems
from foqs.client.errors import NotSentError, OutcomeUnknownError, copy_of, error_from_wire
from foqs.client.retry import Pauses, Repeat, RetryPolicy, goes_elsewhere, may_repeat, verdict
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InternalError, NotFoundError

if TYPE_CHECKING:
    from foqs.client.owners import Owners
    from foqs.client.slots import SlotGroups

HOP_MS = 2_000
"""How long a read waits for one host while there is another address that was not asked yet: a host may hang."""
T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One call of the wire.

    wait_ms: how long the host may hold it before it answers (long poll).
    encoded: the batch of the request, which then has none itself.
    is_long: a host that is well may take much of the client's timeout for it.
    late: what is to be done about the response if its caller has given up; None for nothing.
    """

    method: str
    request: Any
    repeat: Repeat
    wait_ms: int = 0
    encoded: EncodedItems | None = None
    is_long: bool = False
    late: Callable[[Any], Flow[None] | None] | None = None


@dataclass(slots=True)
class Send:
    """One attempt, at an address that is not among `avoided`.

    Whoever takes the step enters at which one it was tried, and `is_sent` as soon as the host may have got all of it.
    is_exact: the timeout ends at the caller's deadline, and may not be a moment longer.
    owner: the address to try before all others, if it can be reached at once; none of the client's needs to be it.
    """

    call: Call
    timeout_ms: int
    avoided: Collection[Address] = ()
    is_exact: bool = False
    address: Address | None = None
    is_sent: bool = False
    owner: Address | None = None


@dataclass(slots=True)
class Pause:
    pause_ms: int


def no_answer(step: Send, address: object) -> OutcomeUnknownError:
    """Make the error of an attempt whose time ran out after it was sent."""
    return OutcomeUnknownError(f"{step.call.method}: no answer from {address} within {step.timeout_ms} ms")


Flow = Generator[Send | Pause, Any, T]


@dataclass(slots=True)
class Terms:
    """The terms that all calls of a client share. `clock_ms` is monotonic; `random` draws from 0 <= x < 1.

    The client owns it; calls with a deadline have a copy.
    """

    retry: RetryPolicy
    timeout_ms: int
    clock_ms: Callable[[], int]
    random: Callable[[], float]
    book: AddressBook
    batch_limits: dict[str, int] = field(default_factory=dict)
    """How many items an enqueue call may have, by namespace, where a larger one was refused."""
    groups: dict[str, SlotGroups] = field(default_factory=dict)
    """How items with dedup ids go together into calls, by namespace."""
    owners: Owners | None = None
    """Where the owners of shards listen, for clients that ask them first."""
    deadline_at_ms: int | None = None
    """When all attempts must have ended, where the caller has said so; else each call has the policy's deadline."""

    def within(self, deadline_ms: int | None) -> Terms:
        """Return the same terms for what has to end `deadline_ms` from now.

        Raises InvalidArgumentError below 1 and beyond a hundred years.
        """
        if deadline_ms is None:
            return self
        check_whole("deadline_ms", deadline_ms, 1, DEADLINE_MS_MAX)
        return self.until(self.clock_ms() + deadline_ms)

    def until_whenever(self) -> Terms:
        """Return the same terms without a deadline of the caller's."""
        return self if self.deadline_at_ms is None else replace(self, deadline_at_ms=None)

    def until(self, deadline_at_ms: int | None) -> Terms:
        """Return the same terms for what has to end at that time of the clock; None: whenever the policy says."""
        return self if deadline_at_ms is None else replace(self, deadline_at_ms=deadline_at_ms)


class _Attempts:
    """Where and when the attempts of one call are made: at each address in turn, and after a pause at each again.

    A flow makes one, asks it for each attempt, and tells it what came of that.
    """

    def __init__(self, terms: Terms, owner: Address | None = None) -> None:
        self._terms = terms
        self._owner = owner
        self._pauses = Pauses(terms.retry, terms.clock_ms, terms.random, terms.deadline_at_ms)
        self._avoided: set[Address] = set()
        self._heard: tuple[Address, FoqsError] | None = None
        """The last host that was reached, and what came of that."""
        self._rests_until_ms: dict[Address, int] = {}
        """The time at which asking a host again can help, by its own word."""
        self._step: Send | None = None
        self._answer_ms: int | None = None
        """The part of the time before the deadline that is kept for the response of a call that waits at the host."""

    def send(self, call: Call) -> Send:
        """Make the next attempt. Raises NotSentError past the caller's deadline."""
        terms = self._terms
        timeout_ms, is_exact = terms.timeout_ms + call.wait_ms, False
        if call.repeat is Repeat.READ and not call.is_long and terms.book.has_others(self._avoided):
            timeout_ms = min(timeout_ms, HOP_MS)
        if terms.deadline_at_ms is not None:
            left_ms = terms.deadline_at_ms - terms.clock_ms()
            if left_ms <= 0:
                self._step = None  # No address is at fault.
                raise NotSentError(f"{call.method} was not sent: the caller's deadline has passed")
            call = self._with_time_to_answer(call, left_ms)
            is_exact = left_ms <= timeout_ms
            timeout_ms = min(timeout_ms, left_ms)
        owner = self._owner if self._owner not in self._avoided else None
        self._step = step = Send(call, timeout_ms, tuple(self._avoided), is_exact, owner=owner)
        return step

    def _with_time_to_answer(self, call: Call, left_ms: int) -> Call:
        """Return the call with a wait at the host so short that a response still comes before the deadline.

        Otherwise items would be leased to a caller that is gone by the time they arrive.
        """
        if not call.wait_ms:
            return call
        if self._answer_ms is None:
            self._answer_ms = min(self._terms.timeout_ms, max(0, left_ms - call.wait_ms))
        wait_ms = max(0, min(call.wait_ms, left_ms - self._answer_ms))
        if wait_ms == call.wait_ms:
            return call
        request = copy(call.request)
        request.wait_ms = wait_ms
        return replace(call, request=request, wait_ms=wait_ms)

    def served(self) -> None:
        """Note that the last attempt was answered, and that something of it was done."""
        if self._step is not None and self._step.address is not None:
            self._terms.book.served(self._step.address)

    def failed(self, error: FoqsError) -> int | None:
        """Return the pause after an attempt that failed and may be repeated; None for no other attempt."""
        address = self._step.address if self._step is not None else None
        is_unknown = isinstance(error, OutcomeUnknownError)
        if address is not None and (goes_elsewhere(error) or is_unknown):
            self._terms.book.failed(address, self._terms.clock_ms())
        is_read = self._step is not None and self._step.call.repeat is Repeat.READ
        return self.after(error, elsewhere=goes_elsewhere(error) or (is_unknown and is_read))

    def after(self, error: FoqsError, *, elsewhere: bool) -> int | None:
        """Do the same; `elsewhere`: another address may do at once what this one did not."""
        address = self._step.address if self._step is not None else None
        if address is not None and not isinstance(error, NotSentError):
            self._heard = address, error
        now_ms, wait_ms = self._terms.clock_ms(), error.retry_after_ms or 0
        rests = self._rests_until_ms
        if elsewhere and address is not None:
            self._avoided.add(address)
            rests[address] = now_ms + wait_ms
            if self._terms.book.has_other(self._avoided):
                return 0
            wait_ms = max(0, min(rests.values()) - now_ms)
        pause_ms = self._pauses.next_ms(wait_ms)
        # A standby must not cut the pause short that a busy owner has asked for, nor the owner that of the standby.
        goes_on_at_ms = now_ms + (pause_ms or 0)
        self._avoided = {resting for resting, until_ms in rests.items() if until_ms > goes_on_at_ms}
        return pause_ms

    def told(self, error: FoqsError) -> FoqsError:
        """Return what the caller is told of the last failure.

        Where no host could be reached in the end, what one has said that was reached before belongs to it: most often
        that is the cause.
        """
        if self._heard is None or not isinstance(error, NotSentError):
            return error
        address, heard = self._heard
        of_address = heard.message if str(address) in heard.message else f"{address}: {heard.message}"
        both = copy_of(heard)
        both.message = f"{of_address}; {error.message}"
        both.args = (both.message,)
        both.__cause__ = error
        return both


def call_flow(terms: Terms, call: Call) -> Flow[Any]:
    """Make one call with its repetitions, and return the response struct."""
    attempts = _Attempts(terms)
    uncertain = False
    while True:
        try:
            response = yield attempts.send(call)
        except FoqsError as error:
            pause_ms = attempts.failed(error) if may_repeat(error, call.repeat) else None
            if pause_ms is None:
                final = verdict(attempts.told(error), uncertain)
                if final is error:
                    raise
                raise final from error
            uncertain = uncertain or not error.nothing_done
        else:
            attempts.served()
            return response
        if pause_ms:
            yield Pause(pause_ms)


def batch_flow(
    terms: Terms,
    entries: Sequence[Any],
    make_call: Callable[[Sequence[Any], bool], Call],
    take: Callable[[Any, Sequence[int]], Mapping[int, Any] | None],
    *,
    gone_is_done: bool = False,
    owner: Address | None = None,
) -> Flow[PositionErrors]:
    """Make the calls for one batch whose positions succeed or fail alone, and return the errors by position.

    The positions that may be repeated are repeated until the deadline.

    make_call(pending, repeated) makes the next attempt; `repeated`: some of `pending` may have been done by an earlier
    one.
    take(response, places) keeps what the response holds beside errors, and returns its errors; `places` are
    the positions in `entries` that the response speaks of, in its order.
    gone_is_done: NOT_FOUND after an unknown outcome means that an earlier attempt did it.
    owner: the host that has most of the entries, where that is known.
    Raises when the call as a whole fails before anything is known of any position.
    """
    batch = _Batch(_Attempts(terms, owner), len(entries), gone_is_done)
    while True:
        pending = [entries[place] for place in batch.places] if batch.answered_once else entries
        call = make_call(pending, batch.is_uncertain)
        try:
            wire_errors = take((yield batch.attempts.send(call)), batch.places)
        except FoqsError as error:
            pause_ms = batch.failed(error, call.repeat)
        else:
            pause_ms = batch.answered(wire_errors or {}, call.repeat)
        if pause_ms is None:
            return batch.errors
        if pause_ms:
            yield Pause(pause_ms)


class _Batch:
    """The results of a batch by position, and the positions still open between attempts; its flow owns it.

    places: the positions of the next attempt.
    """

    def __init__(self, attempts: _Attempts, count: int, gone_is_done: bool) -> None:
        self.attempts = attempts
        self.errors: PositionErrors = {}
        self.places: Sequence[int] = range(count)
        self.answered_once = False
        self._gone_is_done = gone_is_done
        self._uncertain: set[int] = set()

    @property
    def is_uncertain(self) -> bool:
        """Tell whether an earlier attempt may have done some of `places`."""
        return bool(self._uncertain) and not self._uncertain.isdisjoint(self.places)

    def failed(self, error: FoqsError, repeat: Repeat) -> int | None:
        """Enter that the call failed as a whole. Returns the pause before the next attempt, or None for the end."""
        pause_ms = self.attempts.failed(error) if may_repeat(error, repeat) else None
        if pause_ms is None:
            if not self.answered_once:
                raise verdict(self.attempts.told(error), bool(self._uncertain)) from error.__cause__
            self._give_up(dict.fromkeys(self.places, self.attempts.told(error)))
        elif not error.nothing_done:
            self._uncertain.update(self.places)
        return pause_ms

    def answered(self, wire_errors: Mapping[int, Any], repeat: Repeat) -> int | None:
        """Enter which positions failed. Returns the pause before those to repeat are sent, or None for the end."""
        self.answered_once = True
        again: PositionErrors = {}
        for index, wire_error in wire_errors.items():
            if not 0 <= index < len(self.places):
                raise InternalError(f"the host reported position {index} of a batch of {len(self.places)}")
            place = self.places[index]
            error = error_from_wire(wire_error)
            if self._gone_is_done and isinstance(error, NotFoundError) and place in self._uncertain:
                continue
            if may_repeat(error, repeat):
                again[place] = error
            else:
                self.errors[place] = error
        pause_ms = self._next_pause_ms(again)
        if pause_ms is None:
            self._give_up(again)
        else:
            self.places = sorted(again)
            self._uncertain.update(place for place, error in again.items() if not error.nothing_done)
        return pause_ms

    def _next_pause_ms(self, again: PositionErrors) -> int | None:
        if len(again) < len(self.places):
            self.attempts.served()
        if not again:
            return None
        errors = sorted(again.values(), key=lambda error: error.retry_after_ms or 0)
        if len(again) == len(self.places) and all(map(goes_elsewhere, errors)):
            return self.attempts.failed(errors[-1])
        return self.attempts.after(errors[-1], elsewhere=any(map(goes_elsewhere, errors)))

    def _give_up(self, errors: PositionErrors) -> None:
        for place, error in errors.items():
            self.errors[place] = verdict(error, place in self._uncertain)
