"""Coalescing of single enqueues: those that come while a call is in flight go together in the next one.

No timer and no setting: an enqueue that meets nobody goes at once, and the busier the client, the bigger the batch.
The same idea as a database's group commit, and as the writer of a shard on the host.
There is only state here: the coalescers of `aio` and `sync` bring the loop or the lock, and run the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foqs.client.errors import ClientClosedError, NotSentError, OutcomeUnknownError, copy_of
from foqs.client.items import ENQUEUE_BYTES_MAX, NewItem, item_bytes
from foqs.model.calls import EnqueueResult
from foqs.model.errors import FoqsError, OverloadedError, TooLargeError

WAITING_ITEMS_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024

Lane = tuple[str, bool, str | None, int]
"""Namespace, whether an unknown outcome may be repeated, job, and group of dedup ids: what one call has in common."""


@dataclass(slots=True, eq=False)
class PendingEnqueue:
    """One enqueue that waits for its id. Its caller makes it, the call that carries it sets `id` or `error`."""

    item: NewItem
    bytes: int
    give_up_at_ms: int
    """The caller waits for its turn until then."""
    has_deadline: bool
    """The caller waits no longer than that for the outcome either."""
    wakeup: Any = None
    """The coalescer's own: a future or an event."""
    leads: bool = False
    """Its caller was told to run the lane's next call."""
    taken: bool = False
    """A call carries it, or it was withdrawn."""
    done: bool = False
    id: str = ""
    error: Exception | None = None

    def result(self) -> str:
        """The id. Raises the item's error."""
        if self.error is not None:
            raise self.error
        return self.id

    def not_sent(self) -> FoqsError:
        """Make the error of a caller that gives up before its turn: nothing of it was sent."""
        if self.has_deadline:
            return NotSentError("enqueue was not sent: the caller's deadline has passed")
        return OverloadedError("enqueue was not sent: its turn did not come in time; the client has too many of them")

    def in_flight_too_long(self) -> FoqsError:
        """Make the error of a caller whose deadline comes while a call carries its item."""
        return OutcomeUnknownError("enqueue: the caller's deadline has passed while the call was in flight")


@dataclass(slots=True)
class _Lane:
    waiting: deque[PendingEnqueue] = field(default_factory=deque)
    in_flight: bool = False


class EnqueueQueues:
    """The enqueues of a client that wait for a call, by lane, in the order in which they came.

    A coalescer owns it, adds every enqueue, and takes a batch for each call. Not safe for threads.
    """

    def __init__(self, items_max: int, wait_ms_max: int, clock_ms: Callable[[], int]) -> None:
        self._items_max = items_max
        self._wait_ms_max = wait_ms_max
        self._clock_ms = clock_ms
        self._lanes: dict[Lane, _Lane] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0

    def pending(self, item: NewItem, deadline_at_ms: int | None) -> PendingEnqueue:
        """Make an enqueue of an item. Raises TooLargeError for one that no frame holds."""
        size = item_bytes(item)
        if size > ENQUEUE_BYTES_MAX:
            raise TooLargeError(f"an item of {size} bytes does not fit into a frame ({ENQUEUE_BYTES_MAX} bytes)")
        has_deadline = deadline_at_ms is not None
        give_up_at_ms = self._clock_ms() + self._wait_ms_max if deadline_at_ms is None else deadline_at_ms
        return PendingEnqueue(item, size, give_up_at_ms, has_deadline)

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
        leads = not state.in_flight
        state.in_flight = True
        return leads

    def take(self, lane: Lane, leader: PendingEnqueue | None = None) -> list[PendingEnqueue]:
        """Take the enqueues of the next call, at least one when any waits, within the limits of one call.

        With a leader, who runs the call and waits no longer than its own deadline, none that has more time.
        """
        waiting = self._lanes[lane].waiting
        batch = waiting_prefix(waiting, self._items_max)
        if leader is not None:
            later = [place for place, one in enumerate(batch) if one.give_up_at_ms > leader.give_up_at_ms]
            del batch[later[0] if later else len(batch) :]
        for pending in batch:
            waiting.popleft()
            pending.taken = True
            self._waiting_bytes -= pending.bytes
        self._waiting_count -= len(batch)
        return batch

    def finish(self, lane: Lane) -> bool:
        """Note that the lane's call has ended; whether another one must be run, because somebody waits."""
        if self._lanes[lane].waiting:
            return True
        del self._lanes[lane]
        return False

    def heir(self, lane: Lane) -> PendingEnqueue:
        """Return who of those that wait should lead the next call.

        It is the one with the most time of those that can go together, so that the call is cut short for none.
        """
        return max(waiting_prefix(self._lanes[lane].waiting, self._items_max), key=lambda one: one.give_up_at_ms)

    def withdraw(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Take back an enqueue that no call has taken. False: it is too late."""
        if pending.taken:
            return False
        self._lanes[lane].waiting.remove(pending)
        pending.taken = True
        self._waiting_count -= 1
        self._waiting_bytes -= pending.bytes
        return True

    def clear(self) -> list[PendingEnqueue]:
        """Take everything that waits, whatever its lane: nobody will run another call."""
        left = [pending for state in self._lanes.values() for pending in state.waiting]
        for pending in left:
            pending.taken = True
        self._lanes.clear()
        self._waiting_count = self._waiting_bytes = 0
        return left


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


def complete(batch: Sequence[PendingEnqueue], outcome: EnqueueResult | BaseException) -> None:
    """Give every enqueue of a call its id or its error. What is no FoqsError came in the middle of the call."""
    for position, pending in enumerate(batch):
        if isinstance(outcome, EnqueueResult):
            pending.error = outcome.errors.get(position)
            pending.id = outcome.ids[position]
        elif isinstance(outcome, FoqsError):
            pending.error = copy_of(outcome)
        elif isinstance(outcome, ClientClosedError):
            pending.error = ClientClosedError(*outcome.args)
        else:
            pending.error = OutcomeUnknownError(f"the call that carried this item was interrupted: {outcome!r}")
            pending.error.__cause__ = outcome
        pending.done = True
