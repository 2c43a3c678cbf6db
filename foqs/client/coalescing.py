"""Coalescing of single enqueues: the enqueues that arrive during a call are sent together in the next one.

It needs no timer and no setting: a lone enqueue is sent at once, and batches grow with the load. The group commit of
databases and the shard writer of the host work the same way.

Enqueues share only the call. An enqueue with an outcome returns at once; an enqueue that is to be repeated pauses on
its own, while its lane continues, and then rejoins the lane.
This module holds only state: the coalescers of `aio` and `sync` add the event loop or the lock, and run the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foqs.client.addresses import Address
from foqs.client.client_errors import ClientClosedError, NotSentError, OutcomeUnknownError, copy_of
from foqs.client.flows import Attempts, Terms
from foqs.client.queue_items import ENQUEUE_BYTES_MAX, NewItem, check_item_fits, item_bytes
from foqs.client.retry import Repeat, goes_elsewhere, may_repeat, verdict
from foqs.client.shared_enqueue import CallOutcome
from foqs.model.errors import FoqsError, OverloadedError

WAITING_ITEMS_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024

Lane = tuple[str, bool, str | None, int, tuple[Address, ...]]
"""Properties that the enqueues of one call share.

They are the namespace, True to repeat an unknown outcome, the job, the group of dedup ids, and the addresses to avoid.
"""


@dataclass(slots=True, eq=False)
class PendingEnqueue:
    """One enqueue that waits for its id. Its caller creates it; the call that carries it sets `id` or `error`."""

    item: NewItem
    bytes: int
    began_at_ms: int
    give_up_at_ms: int
    """Time until which the caller waits for its turn."""
    has_deadline: bool
    """True if the caller waits for the outcome only until `give_up_at_ms` as well."""
    wakeup: Any = None
    """A future or a lock of the coalescer."""
    taken: bool = False
    """True if a call carries it or it was withdrawn."""
    done: bool = False
    id: str = ""
    error: Exception | None = None
    address: Address | None = None
    """Address of the host that returned the error."""
    attempts: Attempts | None = None
    """State of its attempts, once a call has failed."""
    is_uncertain: bool = False
    """True if an earlier call might have stored the item."""

    def result(self) -> str:
        """Return the id. Raises the item's error."""
        if self.error is not None:
            raise self.error
        return self.id

    def not_sent(self) -> FoqsError:
        """Make the error of a caller that gives up before its turn, when nothing was sent."""
        error: FoqsError
        if self.has_deadline:
            error = NotSentError("enqueue was not sent: the caller's deadline has passed")
        else:
            error = OverloadedError(
                "enqueue was not sent: its turn did not come in time; the client has too many of them"
            )
        return verdict(error, self.is_uncertain)

    def no_room(self) -> FoqsError:
        """Make the error of a caller whose enqueue found no room in the queue."""
        error = OverloadedError("too many enqueues wait in this client: nothing of this one was sent")
        return verdict(error, self.is_uncertain)

    def in_flight_too_long(self) -> FoqsError:
        """Make the error of a caller whose deadline passes while a call carries its item."""
        return OutcomeUnknownError("enqueue: the caller's deadline has passed while the call was in flight")


@dataclass(slots=True)
class _Lane:
    waiting: deque[PendingEnqueue] = field(default_factory=deque)
    leader: PendingEnqueue | None = None
    """Caller that runs the call in flight or leads the next one; None only while no enqueue waits."""
    batch: list[PendingEnqueue] = field(default_factory=list)
    """Enqueues of the call in flight."""
    has_begun: bool = False
    """True once the call has begun, so that its items can be stored."""
    outcome: CallOutcome | BaseException | None = None
    """Outcome of the call, until all its enqueues have it."""


class EnqueueQueues:
    """The enqueues of a client that wait for a call, by lane, in order of arrival.

    Its owner, a coalescer, adds every enqueue and takes a batch for each call. Not safe for threads. If a signal
    handler raises in a thread, `abandon` repairs the state that the thread was changing.
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
        """Make the enqueue of an item. Raises TooLargeError for an item that does not fit into a frame."""
        size = item_bytes(item)
        if size > ENQUEUE_BYTES_MAX:
            check_item_fits(item)
        has_deadline = deadline_at_ms is not None
        now_ms = self._clock_ms()
        give_up_at_ms = now_ms + self._wait_ms_max if deadline_at_ms is None else deadline_at_ms
        return PendingEnqueue(item, size, now_ms, give_up_at_ms, has_deadline)

    def patience_s(self, pending: PendingEnqueue) -> float:
        """Return how long the caller continues to wait for its turn, in seconds."""
        return max(0, pending.give_up_at_ms - self._clock_ms()) / 1000

    def has_room(self, pending: PendingEnqueue) -> bool:
        return self._waiting_count < WAITING_ITEMS_MAX and self._waiting_bytes + pending.bytes <= WAITING_BYTES_MAX

    def add(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Add an enqueue. True if the lane has no call in flight, so that the caller must run the next one."""
        state = self._lanes.setdefault(lane, _Lane())
        state.waiting.append(pending)
        self._waiting_count += 1
        self._waiting_bytes += pending.bytes
        if state.leader is not None:
            return False
        state.leader = pending
        return True

    def leads(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """True if the caller runs the lane's current call or leads the next one."""
        state = self._lanes.get(lane)
        return state is not None and state.leader is pending

    def take(self, lane: Lane, leader: PendingEnqueue | None = None) -> list[PendingEnqueue]:
        """Take the enqueues of the next call within its limits; at least one if any waits.

        A leader runs the call only until its own deadline, so an enqueue with a later deadline is not taken.
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
        """Record that the lane's call begins, so that its items can be stored from now on."""
        self._lanes[lane].has_begun = True

    def end(self, lane: Lane, outcome: CallOutcome | BaseException) -> list[PendingEnqueue]:
        """Set the outcomes of the lane's call. Returns its enqueues, whose callers are to be woken."""
        state = self._lanes[lane]
        state.outcome = outcome
        batch = state.batch
        complete(batch, outcome)
        return batch

    def finish(self, lane: Lane) -> bool:
        """Record the end of the lane's call. True if another call must follow, because enqueues wait."""
        state = self._lanes[lane]
        state.batch = []
        if state.waiting:
            state.leader = self._heir_of(lane)
            return True
        del self._lanes[lane]
        return False

    def heir(self, lane: Lane) -> PendingEnqueue:
        """Return the leader of the next call.

        It has the latest deadline of the next batch, so that it cuts the call short for no other enqueue.
        """
        return self._heir_of(lane)

    def cancel(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Withdraw an enqueue; False if a call carries it already."""
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
        """Remove an enqueue whose caller left with an error at any point.

        If the caller led the lane, another enqueue takes the lead. A call that had not begun is undone; the other
        enqueues of a call that had begun get its outcome, or OutcomeUnknownError. This method can itself be
        interrupted, and is correct if it is repeated until one run completes.
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
        """Take all waiting enqueues of all lanes, because no more calls will run."""
        left = [pending for state in self._lanes.values() for pending in state.waiting]
        for pending in left:
            pending.taken = True
        self._lanes.clear()
        self._waiting_count = self._waiting_bytes = 0
        return left

    def next_pause_ms(self, lane: Lane, pending: PendingEnqueue) -> int | None:
        """Return the pause before a failed enqueue is repeated, in ms, or None if its error is final."""
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
                pending.error = verdict(attempts.explained(error), pending.is_uncertain)
            return None
        pending.is_uncertain = pending.is_uncertain or not error.nothing_done
        return pause_ms

    def again(self, lane: Lane, pending: PendingEnqueue) -> Lane:
        """Reset a failed enqueue so that it can be added again, and return its lane."""
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
    """Return the enqueues at the front that fit into one call."""
    batch: list[PendingEnqueue] = []
    batch_bytes = 0
    for pending in waiting:
        if len(batch) == items_max or batch_bytes + pending.bytes > ENQUEUE_BYTES_MAX:
            break
        batch_bytes += pending.bytes
        batch.append(pending)
    return batch


def deadline_of(batch: Sequence[PendingEnqueue]) -> int | None:
    """Return the latest deadline of a batch, or None if that is not a caller's deadline."""
    last = max(batch, key=lambda one: one.give_up_at_ms)
    return last.give_up_at_ms if last.has_deadline else None


def complete(batch: Sequence[PendingEnqueue], outcome: CallOutcome | BaseException) -> None:
    """Set the id or the error of every enqueue of a call. Any exception other than FoqsError interrupted the call."""
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
