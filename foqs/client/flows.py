"""Verbs without I/O: a verb is a generator of steps, which a blocking or an asyncio client executes.

A step is `Send` (one attempt of one call; the client sends the response struct into the generator, or throws a
FoqsError) or `Pause`. All decisions (batching, retries, paging, mapping of errors) are in this module and in `verbs`,
once for both clients, so tests can drive them without a socket or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from foqs.client.addresses import Address, AddressBook
from foqs.client.checks import check_whole
from foqs.client.client_errors import NotSentError, OutcomeUnknownError, copy_of
from foqs.client.durations import DEADLINE_MS_MAX
from foqs.client.encoded import EncodedItems
from foqs.client.retry import Pauses, Repeat, RetryPolicy, goes_elsewhere, may_repeat, verdict
from foqs.model.errors import FoqsError

if TYPE_CHECKING:
    from foqs.client.owners import Owners
    from foqs.client.slot_groups import SlotGroups

HOP_MS = 2_000
"""Longest wait of a read for one host while an untried address remains, in ms, because a host can hang."""
T = TypeVar("T")


@dataclass(slots=True)
class Call:
    """One call of the wire.

    wait_ms: how long the host can hold the call before it answers (long poll).
    encoded: the batch of the request, whose own batch is then empty.
    is_long: True if a healthy host can use most of the client's timeout for it.
    late: makes the flow for a response that arrives after its caller has given up; None to ignore the response.
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
    """One attempt, at an address outside `avoided`.

    The client sets `address`, and `is_sent` as soon as the host might have the complete frame.
    is_exact: True if the timeout ends at the caller's deadline and must not be exceeded.
    owner: an address to try first if it is reachable at once; it need not be one of the client's addresses.
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
    """Make the error of an attempt that timed out after it was sent."""
    return OutcomeUnknownError(f"{step.call.method}: no answer from {address} within {step.timeout_ms} ms")


Flow = Generator[Send | Pause, Any, T]


@dataclass(slots=True)
class Terms:
    """Terms that all calls of a client share. `clock_ms` is monotonic; `random` draws from 0 <= x < 1.

    The client owns it; calls with a deadline use a copy.
    """

    retry: RetryPolicy
    timeout_ms: int
    clock_ms: Callable[[], int]
    random: Callable[[], float]
    book: AddressBook
    batch_limits: dict[str, int] = field(default_factory=dict)
    """Most items of an enqueue call, by namespace, where a larger call was refused."""
    groups: dict[str, SlotGroups] = field(default_factory=dict)
    """Groups of items with dedup ids, by namespace."""
    owners: Owners | None = None
    """Addresses of the shard owners, for clients that try the owner first."""
    deadline_at_ms: int | None = None
    """The caller's deadline of all attempts; None for the deadline of the retry policy."""

    def within(self, deadline_ms: int | None) -> Terms:
        """Return a copy with a deadline `deadline_ms` from now.

        Raises InvalidArgumentError below 1 and beyond a hundred years.
        """
        if deadline_ms is None:
            return self
        check_whole("deadline_ms", deadline_ms, 1, DEADLINE_MS_MAX)
        return self.until(self.clock_ms() + deadline_ms)

    def until_whenever(self) -> Terms:
        """Return these terms without the caller's deadline."""
        return self if self.deadline_at_ms is None else replace(self, deadline_at_ms=None)

    def until(self, deadline_at_ms: int | None) -> Terms:
        """Return these terms with a deadline; None keeps the present one."""
        return self if deadline_at_ms is None else replace(self, deadline_at_ms=deadline_at_ms)


class Attempts:
    """Addresses and times of the attempts of one call: one round over the addresses, then another one after a pause.

    A flow creates one, asks it for each attempt and reports the outcome to it. Each enqueue that shares its calls with
    others has its own as well, because it is repeated on its own.
    """

    def __init__(
        self,
        terms: Terms,
        owner: Address | None = None,
        *,
        avoided: Collection[Address] = (),
        began_at_ms: int | None = None,
    ) -> None:
        """The policy's deadline counts from `began_at_ms`, by default from now.

        avoided: addresses to skip in the first round.
        """
        self._terms = terms
        self._owner = owner
        deadline_at_ms = terms.deadline_at_ms
        if deadline_at_ms is None and began_at_ms is not None:
            deadline_at_ms = began_at_ms + terms.retry.deadline_ms
        self._pauses = Pauses(terms.retry, terms.clock_ms, terms.random, deadline_at_ms)
        self._avoided: set[Address] = set(avoided)
        self._last_error: tuple[Address, FoqsError] | None = None
        """Last host that was reached, and its error."""
        self._rests_until_ms: dict[Address, int] = {}
        """Time from which asking a host again can help, as the host reported."""
        self._step: Send | None = None
        self._answer_ms: int | None = None
        """Time before the deadline that is reserved for the response of a long poll, in ms."""

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
        """Shorten the wait at the host, so that the response arrives before the deadline.

        Otherwise items would be leased to a caller that has given up when they arrive.
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
        """Record that the host answered the last attempt and did some of it."""
        if self._step is not None and self._step.address is not None:
            self._terms.book.served(self._step.address)

    def copy(self) -> Attempts:
        """Return a copy for some entries of the call, which are repeated on their own from now on."""
        one = copy(self)
        one._pauses = copy(self._pauses)
        one._avoided, one._rests_until_ms = set(self._avoided), dict(self._rests_until_ms)
        return one

    def at_step_of(self, other: Attempts) -> Attempts:
        """Take over the last attempt from another call that carried these entries too."""
        self._step = other._step
        return self

    @property
    def address(self) -> Address | None:
        """Address of the last attempt, if any."""
        return self._step.address if self._step is not None else None

    @property
    def avoided(self) -> Collection[Address]:
        """Addresses that the next attempt skips."""
        return self._avoided

    def failed(self, error: FoqsError) -> int | None:
        """Return the pause after a failed attempt that can be repeated, in ms, or None to stop."""
        self.blame(error)
        is_read = self._step is not None and self._step.call.repeat is Repeat.READ
        is_unknown = isinstance(error, OutcomeUnknownError)
        return self.after(error, self.address, elsewhere=goes_elsewhere(error) or (is_unknown and is_read))

    def blame(self, error: FoqsError) -> None:
        """Prefer other addresses for a while, if the last one is at fault."""
        if self.address is not None and (goes_elsewhere(error) or isinstance(error, OutcomeUnknownError)):
            self._terms.book.failed(self.address, self._terms.clock_ms())

    def after(self, error: FoqsError, address: Address | None, *, elsewhere: bool) -> int | None:
        """Return the pause after an attempt at an address, in ms; `elsewhere`: another host can do it at once."""
        if address is not None and not isinstance(error, NotSentError):
            self._last_error = address, error
        now_ms, wait_ms = self._terms.clock_ms(), error.retry_after_ms or 0
        rests = self._rests_until_ms
        if elsewhere and address is not None:
            self._avoided.add(address)
            rests[address] = now_ms + wait_ms
            if self._terms.book.has_other(self._avoided):
                return 0
            wait_ms = max(0, min(rests.values()) - now_ms)
        pause_ms = self._pauses.next_ms(wait_ms)
        # Neither a standby nor a busy owner must shorten the pause that the other one requested.
        goes_on_at_ms = now_ms + (pause_ms or 0)
        self._avoided = {resting for resting, until_ms in rests.items() if until_ms > goes_on_at_ms}
        return pause_ms

    def explained(self, error: FoqsError) -> FoqsError:
        """Return the caller's error for the last failure.

        If no host was reachable at the end, it includes the error of the last host that was, which is usually the
        cause.
        """
        if self._last_error is None or not isinstance(error, NotSentError):
            return error
        address, last = self._last_error
        of_address = last.message if str(address) in last.message else f"{address}: {last.message}"
        both = copy_of(last)
        both.message = f"{of_address}; {error.message}"
        both.args = (both.message,)
        both.__cause__ = error
        return both


def call_flow(terms: Terms, call: Call) -> Flow[Any]:
    """Make one call with its repetitions, and return the response struct."""
    attempts = Attempts(terms)
    uncertain = False
    while True:
        try:
            response = yield attempts.send(call)
        except FoqsError as error:
            pause_ms = attempts.failed(error) if may_repeat(error, call.repeat) else None
            if pause_ms is None:
                final = verdict(attempts.explained(error), uncertain)
                if final is error:
                    raise
                raise final from error
            uncertain = uncertain or not error.nothing_done
        else:
            attempts.served()
            return response
        if pause_ms:
            yield Pause(pause_ms)
