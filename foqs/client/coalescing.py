"""Coalescing of single enqueues: those that come while a call is in flight go together in the next one.

No timer and no setting: an enqueue that meets nobody goes at once, and the busier the client, the bigger the batch.
The same idea as a database's group commit, and as the writer of a shard on the host.

Who shares a call shares nothing else: what has an outcome is told at once, and an enqueue that is to be repeated pauses
by itself, while its lane goes on, and then comes to the lane again.
There is only state here: the coalescers of `aio` and `sync` bring the loop or the lock, and run the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foqs.client.addresses import Address
from foqs.client.errors import ClientClosedError, NotSentError, OutcomeUnknownError, copy_of
from foqs.client.flows import Attempts, Terms
from foqs.client.items import ENQUEUE_BYTES_MAX, NewItem, check_item_fits, item_bytes
from foqs.client.retry import Repeat, goes_elsewhere, may_repeat, verdict
from foqs.client.shared_enqueue import CallOutcome
from foqs.model.errors import FoqsError, OverloadedError

WAITING_ITEMS_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024

Lane = tuple[str, bool, str | None, int, tuple[Address, ...]]
"""Namespace, whether an unknown outcome may be repeated, job, group of dedup ids, and the addresses that are not to be
asked: what one call has in common.
"""


@dataclass(slots=True, eq=False)
class PendingEnqueue:
    """One enqueue that waits for its id. Its caller makes it, the call that carries it sets `id` or `error`."""

    item: NewItem
    bytes: int
    began_at_ms: int
    give_up_at_ms: int
    """The caller waits for its turn until then."""
    has_deadline: bool
    """The caller waits no longer than that for the outcome either."""
    wakeup: Any = None
    """The coalescer's own: a future or a lock."""
    taken: bool = False
    """A call carries it, or it was withdrawn."""
    done: bool = False
    id: str = ""
    error: Exception | None = None
    address: Address | None = None
    """The address of the call that brought the error."""
    attempts: Attempts | None = None
    """What has come of it so far, once a call has failed."""
    is_uncertain: bool = False
    """An earlier call may have stored it."""

    def result(self) -> str:
        """The id. Raises the item's error."""
        if self.error is not None:
            raise self.error
        return self.id

    def not_sent(self) -> FoqsError:
        """Make the error of a caller that gives up before its turn: nothing of it was sent."""
        error: FoqsError
        if self.has_deadline:
            error = NotSentError("enqueue was not sent: the caller's deadline has passed")
        else:
            error = OverloadedError(
                "enqueue was not sent: its turn did not come in time; the client has too many of them"
            )
        return verdict(error, self.is_uncertain)

    def no_room(self) -> FoqsError:
        """Make the error of a caller whose enqueue did not even come to wait for its turn."""
        error = OverloadedError("too many enqueues wait in this client: nothing of this one was sent")
        return verdict(error, self.is_uncertain)

    def in_flight_too_long(self) -> FoqsError:
        """Make the error of a caller whose deadline comes while a call carries its item."""
        return OutcomeUnknownError("enqueue: the caller's deadline has passed while the call was in flight")


@dataclass(slots=True)
class _Lane:
    waiting: deque[PendingEnqueue] = field(default_factory=deque)
    leader: PendingEnqueue | None = None
    """Who runs the call in flight, or is to run the next one; None only while nobody waits."""
    batch: list[PendingEnqueue] = field(default_factory=list)
    """Those that the call in flight carries."""
    has_begun: bool = False
    """The call has begun: what it carries may be stored."""
    outcome: CallOutcome | BaseException | None = None
    """What came of it, until all of its enqueues are told."""


class EnqueueQueues:
    """The enqueues of a client that wait for a call, by lane, in the order in which they came.

    A coalescer owns it, adds every enqueue, and takes a batch for each call. Not safe for threads. What a thread was
    about to do when a signal's handler raised is set right by `abandon`.
    """

    def __init__(self, items_max: int, terms: Terms) -> None:
        self._items_max = items_max
        self._terms = terms
        self._wait_ms_max = terms.retry.deadline_ms + terms.timeout_ms
        self._clock_ms = terms.clock_ms
        self._lanes: dict[Lane, _Lane] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0

    def pending(self, item: NewItem, deadline_at_ms: int | None) -> PendingEnqueue:
        """Make an enqueue of an item. Raises TooLargeError for one that no frame holds."""
        size = item_bytes(item)
        if size > ENQUEUE_BYTES_MAX:
            check_item_fits(item)
        has_deadline = deadline_at_ms is not None
        now_ms = self._clock_ms()
        give_up_at_ms = now_ms + self._wait_ms_max if deadline_at_ms is None else deadline_at_ms
        return PendingEnqueue(item, size, now_ms, give_up_at_ms, has_deadline)

    def patience_s(self, pending: PendingEnqueue) -> float:
        """Return how long its caller still waits for its turn."""
        return max(0, pending.give_up_at_ms - self._clock_ms()) / 1000

    def has_room(self, pending: PendingEnqueue) -> bool:
        return self._waiting_count < WAITING_ITEMS_MAX and self._waiting_bytes + pending.bytes <= WAITING_BYTES_MAX

    def add(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Add an enqueue. True: no call of the lane is in flight, so the caller must run the next one."""
        state = self._lanes.setdefault(lane, _Lane())
        state.waiting.append(pending)
        self._waiting_count += 1
        self._waiting_bytes += pending.bytes
        if state.leader is not None:
            return False
        state.leader = pending
        return True

    def leads(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Whether its caller is to run the lane's next call, or runs the present one."""
        state = self._lanes.get(lane)
        return state is not None and state.leader is pending

    def take(self, lane: Lane, leader: PendingEnqueue | None = None) -> list[PendingEnqueue]:
        """Take the enqueues of the next call, at least one when any waits, within the limits of one call.

        With a leader, who runs the call and waits no longer than its own deadline, none that has more time.
        """
        state = self._lanes[lane]
        batch = self._next_of(lane)
        if leader is not None:
            later = [place for place, one in enumerate(batch) if one.give_up_at_ms > leader.give_up_at_ms]
            del batch[later[0] if later else len(batch) :]
        state.batch, state.has_begun, state.outcome = batch, False, None
        for pending in batch:
            state.waiting.popleft()
            pending.taken = True
            self._waiting_bytes -= pending.bytes
        self._waiting_count -= len(batch)
        return batch

    def begin(self, lane: Lane) -> None:
        """Note that the lane's call begins: from now on what it carries may be stored."""
        self._lanes[lane].has_begun = True

    def end(self, lane: Lane, outcome: CallOutcome | BaseException) -> list[PendingEnqueue]:
        """Tell what came of the lane's call. Returns whom to wake: those that it carried."""
        state = self._lanes[lane]
        state.outcome = outcome
        batch = state.batch
        complete(batch, outcome)
        return batch

    def finish(self, lane: Lane) -> bool:
        """Note that the lane's call is over; whether another one must be run, because somebody waits."""
        state = self._lanes[lane]
        state.batch = []
        if state.waiting:
            state.leader = self._heir_of(lane)
            return True
        del self._lanes[lane]
        return False

    def heir(self, lane: Lane) -> PendingEnqueue:
        """Return who is to lead the next call.

        It is the one with the most time of those that can go together, so that the call is cut short for none.
        """
        return self._heir_of(lane)

    def withdraw(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Take back an enqueue that no call has taken. False: it is too late."""
        if pending.taken:
            return False
        self._lanes[lane].waiting.remove(pending)
        pending.taken = True
        self._waiting_count -= 1
        self._waiting_bytes -= pending.bytes
        return True

    def abandon(
        self, lane: Lane, pending: PendingEnqueue, error: BaseException, wake: Callable[[PendingEnqueue], None]
    ) -> None:
        """Take an enqueue out, whose caller has left with an error wherever it was.

        If it led the lane, a call that had not begun is undone, and of one that had begun the others are told what came
        of it, or that nobody knows; another one leads then. It may be cut off itself: it is right once it has been done
        to its end, however often it was begun.
        """
        state = self._lanes.get(lane)
        if state is None:
            return
        left = [one for one in state.waiting if one is not pending]
        if state.leader is pending:
            others = [one for one in state.batch if one is not pending]
            if state.has_begun or state.outcome is not None:
                complete(state.batch, error if state.outcome is None else state.outcome)
                for one in others:
                    wake(one)
            else:
                left = others + [one for one in left if one not in others]
        for one in left:
            one.taken = False
        state.waiting = deque(left)
        if state.leader is pending:
            state.batch, state.has_begun, state.outcome, state.leader = [], False, None, None
        if not left and state.leader is None:
            del self._lanes[lane]
        elif not state.batch:
            state.leader = state.leader or self._heir_of(lane)
            wake(state.leader)
        waiting = [one for other in self._lanes.values() for one in other.waiting]
        self._waiting_count, self._waiting_bytes = len(waiting), sum([one.bytes for one in waiting])

    def clear(self) -> list[PendingEnqueue]:
        """Take everything that waits, whatever its lane: nobody will run another call."""
        left = [pending for state in self._lanes.values() for pending in state.waiting]
        for pending in left:
            pending.taken = True
        self._lanes.clear()
        self._waiting_count = self._waiting_bytes = 0
        return left

    def next_pause_ms(self, lane: Lane, pending: PendingEnqueue) -> int | None:
        """Return how long an enqueue that has failed pauses before it comes again; None: it ends as it did."""
        error = pending.error
        if not isinstance(error, FoqsError):
            return None
        attempts, pause_ms = pending.attempts, None
        if may_repeat(error, Repeat.ALWAYS if lane[1] else Repeat.UNLESS_UNKNOWN):
            if attempts is None:
                terms = self._terms.until(pending.give_up_at_ms if pending.has_deadline else None)
                attempts = pending.attempts = Attempts(terms, began_at_ms=pending.began_at_ms)
            pause_ms = attempts.after(error, pending.address, elsewhere=goes_elsewhere(error))
        if pause_ms is None:
            if attempts is not None:
                pending.error = verdict(attempts.told(error), pending.is_uncertain)
            return None
        pending.is_uncertain = pending.is_uncertain or not error.nothing_done
        return pause_ms

    def again(self, lane: Lane, pending: PendingEnqueue) -> Lane:
        """Make a failed enqueue one that may be added once more, and return the lane to add it to."""
        assert pending.attempts is not None, "it is to be repeated"
        pending.taken = pending.done = False
        pending.error = pending.address = pending.wakeup = None
        if not pending.has_deadline:
            pending.give_up_at_ms = self._clock_ms() + self._wait_ms_max
        return (*lane[:4], tuple(sorted(pending.attempts.avoided)))

    def _next_of(self, lane: Lane) -> list[PendingEnqueue]:
        items_max = min(self._items_max, self._terms.batch_limits.get(lane[0], self._items_max))
        return waiting_prefix(self._lanes[lane].waiting, items_max)

    def _heir_of(self, lane: Lane) -> PendingEnqueue:
        return max(self._next_of(lane), key=lambda one: one.give_up_at_ms)


def waiting_prefix(waiting: deque[PendingEnqueue], items_max: int) -> list[PendingEnqueue]:
    """Return as many from the front as fit into one call."""
    batch: list[PendingEnqueue] = []
    batch_bytes = 0
    for pending in waiting:
        if len(batch) == items_max or batch_bytes + pending.bytes > ENQUEUE_BYTES_MAX:
            break
        batch_bytes += pending.bytes
        batch.append(pending)
    return batch


def deadline_of(batch: Sequence[PendingEnqueue]) -> int | None:
    """Return when a call that carries these must end: at the latest deadline, if its caller has named that."""
    last = max(batch, key=lambda one: one.give_up_at_ms)
    return last.give_up_at_ms if last.has_deadline else None


def complete(batch: Sequence[PendingEnqueue], outcome: CallOutcome | BaseException) -> None:
    """Give every enqueue of a call its id or its error. What is no FoqsError came in the middle of the call."""
    for position, pending in enumerate(batch):
        if isinstance(outcome, CallOutcome):
            error = outcome.errors.get(position)
            if error is not None:
                pending.error = copy_of(error)
                pending.address = outcome.addresses.get(position)
            pending.id = outcome.ids[position]
        elif isinstance(outcome, FoqsError):
            pending.error = copy_of(outcome)
        elif isinstance(outcome, ClientClosedError):
            pending.error = ClientClosedError(*outcome.args)
        else:
            pending.error = OutcomeUnknownError(f"the call that carried this item was interrupted: {outcome!r}")
            pending.error.__cause__ = outcome
        pending.done = True
