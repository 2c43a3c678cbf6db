"""Verbs without I/O: a verb is a generator of steps, and a client, blocking or asyncio, takes the steps.

A step is `Send` (one attempt of one call; the client sends the response struct into the generator, or throws a
FoqsError) or `Pause`. All that decides (batching, retries, paging, mapping of errors) stands here and in `verbs`, once
for both clients, and tests drive it by hand without a socket or a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from foqs.client.addresses import Address, AddressBook
from foqs.client.checks import check_whole
from foqs.client.durations import DEADLINE_MS_MAX
from foqs.client.encoded import EncodedItems
from foqs.client.errors import NotSentError, OutcomeUnknownError, copy_of
from foqs.client.retry import Pauses, Repeat, RetryPolicy, goes_elsewhere, may_repeat, verdict
from foqs.model.errors import FoqsError

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


class Attempts:
    """Where and when the attempts of one call are made: at each address in turn, and after a pause at each again.

    A flow makes one, asks it for each attempt, and tells it what came of that. So does each enqueue that shares its
    calls with others: when it is to be repeated, it is so by itself.
    """

    def __init__(
        self,
        terms: Terms,
        owner: Address | None = None,
        *,
        avoided: Collection[Address] = (),
        began_at_ms: int | None = None,
    ) -> None:
        """Begin a call that has begun at `began_at_ms`, else now; the policy's deadline counts from then on.

        avoided: addresses that are not asked in the first round.
        """
        self._terms = terms
        self._owner = owner
        deadline_at_ms = terms.deadline_at_ms
        if deadline_at_ms is None and began_at_ms is not None:
            deadline_at_ms = began_at_ms + terms.retry.deadline_ms
        self._pauses = Pauses(terms.retry, terms.clock_ms, terms.random, deadline_at_ms)
        self._avoided: set[Address] = set(avoided)
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

    def copy(self) -> Attempts:
        """Return the same for some of the entries of the call, which go their own way from now on."""
        one = copy(self)
        one._pauses = copy(self._pauses)
        one._avoided, one._rests_until_ms = set(self._avoided), dict(self._rests_until_ms)
        return one

    def at_step_of(self, other: Attempts) -> Attempts:
        """Enter that the last attempt was the one that another call has made, in which this one had a part."""
        self._step = other._step
        return self

    @property
    def address(self) -> Address | None:
        """Where the last attempt was made, if anywhere."""
        return self._step.address if self._step is not None else None

    @property
    def avoided(self) -> Collection[Address]:
        """The addresses that the next attempt is not to be made at."""
        return self._avoided

    def failed(self, error: FoqsError) -> int | None:
        """Return the pause after an attempt that failed and may be repeated; None for no other attempt."""
        self.blame(error)
        is_read = self._step is not None and self._step.call.repeat is Repeat.READ
        is_unknown = isinstance(error, OutcomeUnknownError)
        return self.after(error, self.address, elsewhere=goes_elsewhere(error) or (is_unknown and is_read))

    def blame(self, error: FoqsError) -> None:
        """Have other addresses preferred for a while, if the last one is at fault."""
        if self.address is not None and (goes_elsewhere(error) or isinstance(error, OutcomeUnknownError)):
            self._terms.book.failed(self.address, self._terms.clock_ms())

    def after(self, error: FoqsError, address: Address | None, *, elsewhere: bool) -> int | None:
        """Return the pause after an attempt at an address; `elsewhere`: another one may do it at once."""
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
    attempts = Attempts(terms)
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
