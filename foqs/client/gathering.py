"""Group commit of single enqueues: those that come while a call is in flight go together in the next one.

No timer and no setting: an enqueue that meets nobody goes at once, and the busier the client, the bigger the
batch. The same idea as a database's group commit, and as the writer of a shard on the host.
State only: the shells bring the lock or the loop, and run the calls.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from foqs.client.errors import ClientClosedError, OutcomeUnknownError, copy_of
from foqs.client.items import ENQUEUE_BYTES_MAX, NewItem, item_bytes
from foqs.model.calls import EnqueueResult
from foqs.model.errors import FoqsError, TooLargeError

WAITING_ITEMS_MAX = 10_000
WAITING_BYTES_MAX = 64 * 1024 * 1024

Lane = tuple[str, bool]
"""Namespace and whether an unknown outcome may be repeated: what one call has in common."""


@dataclass(slots=True, eq=False)
class Ticket:
    """One enqueue that waits for its id. `wakeup` is the shell's."""

    item: NewItem
    bytes: int
    wakeup: Any = None
    leads: bool = False
    """Its owner was told to run the lane's next call."""
    taken: bool = False
    done: bool = False
    id: str = ""
    error: Exception | None = None

    def result(self) -> str:
        if self.error is not None:
            raise self.error
        return self.id


@dataclass(slots=True)
class _Lane:
    waiting: deque[Ticket] = field(default_factory=deque)
    in_flight: bool = False


class Gatherer:
    """All waiting enqueues of a client."""

    def __init__(self, items_max: int) -> None:
        self._items_max = items_max
        self._lanes: dict[Lane, _Lane] = {}
        self._waiting_count = 0
        self._waiting_bytes = 0

    @staticmethod
    def ticket(item: NewItem) -> Ticket:
        """Raises TooLargeError for an item that no frame holds."""
        size = item_bytes(item)
        if size > ENQUEUE_BYTES_MAX:
            raise TooLargeError(f"an item of {size} bytes does not fit into a frame ({ENQUEUE_BYTES_MAX} bytes)")
        return Ticket(item, size)

    def has_room(self, ticket: Ticket) -> bool:
        return self._waiting_count < WAITING_ITEMS_MAX and self._waiting_bytes + ticket.bytes <= WAITING_BYTES_MAX

    def add(self, lane: Lane, ticket: Ticket) -> bool:
        """True: no call of the lane is in flight, so the caller must run the next ones, from `take` on."""
        state = self._lanes.setdefault(lane, _Lane())
        state.waiting.append(ticket)
        self._waiting_count += 1
        self._waiting_bytes += ticket.bytes
        leads = not state.in_flight
        state.in_flight = True
        return leads

    def take(self, lane: Lane) -> list[Ticket]:
        """The next call's tickets, at least one when any waits, within the limits of one call."""
        waiting = self._lanes[lane].waiting
        batch: list[Ticket] = []
        batch_bytes = 0
        while waiting and len(batch) < self._items_max and batch_bytes + waiting[0].bytes <= ENQUEUE_BYTES_MAX:
            ticket = waiting.popleft()
            ticket.taken = True
            batch_bytes += ticket.bytes
            batch.append(ticket)
        self._waiting_count -= len(batch)
        self._waiting_bytes -= batch_bytes
        return batch

    def finish(self, lane: Lane) -> Ticket | None:
        """The lane's call is over: who waits longest and should run the next one; None when nobody waits."""
        state = self._lanes[lane]
        if state.waiting:
            return state.waiting[0]
        del self._lanes[lane]
        return None

    def withdraw(self, lane: Lane, ticket: Ticket) -> bool:
        """Take back a ticket that no call has taken. False: it is too late."""
        if ticket.taken:
            return False
        self._lanes[lane].waiting.remove(ticket)
        ticket.taken = True
        self._waiting_count -= 1
        self._waiting_bytes -= ticket.bytes
        return True

    def clear(self) -> list[Ticket]:
        """Take everything that waits, whatever its lane: nobody will run another call."""
        tickets = [ticket for state in self._lanes.values() for ticket in state.waiting]
        for ticket in tickets:
            ticket.taken = True
        self._lanes.clear()
        self._waiting_count = self._waiting_bytes = 0
        return tickets


def deliver(batch: Sequence[Ticket], outcome: EnqueueResult | BaseException) -> None:
    """Give every ticket its id or its error. What is no FoqsError came in the middle of the call."""
    for position, ticket in enumerate(batch):
        if isinstance(outcome, EnqueueResult):
            ticket.error = outcome.errors.get(position)
            ticket.id = outcome.ids[position]
        elif isinstance(outcome, FoqsError):
            ticket.error = copy_of(outcome)
        elif isinstance(outcome, ClientClosedError):
            ticket.error = ClientClosedError(*outcome.args)
        else:
            ticket.error = OutcomeUnknownError(f"the call that carried this item was interrupted: {outcome!r}")
            ticket.error.__cause__ = outcome
        ticket.done = True
