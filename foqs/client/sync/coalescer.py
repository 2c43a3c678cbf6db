"""Coalescing of single enqueues among threads, without a thread of its own.

The first caller of a lane leads: it runs the call for all that wait, then hands the lead to one of those that came
meanwhile. So nobody works for others for longer than one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from foqs.client.coalescing import EnqueueQueues, Lane, PendingEnqueue, complete, deadline_of
from foqs.client.errors import ClientClosedError
from foqs.client.items import NewItem
from foqs.model.calls import EnqueueResult
from foqs.model.errors import FoqsError, OverloadedError

RunBatch = Callable[[Lane, Sequence[NewItem], int | None], EnqueueResult]
"""Runs one call: the lane, its items, and when it must have ended, if its callers have said so."""


class EnqueueCoalescer:
    """Puts the single enqueues of a `Client` together into calls; the client owns it.

    A leader cannot leave its call before the call ends. So the leader is always the one with the most time among those
    whom the call carries: it reaches no deadline later than its own, and the others leave when theirs comes.
    """

    def __init__(self, items_max: int, wait_ms_max: int, clock_ms: Callable[[], int], run_batch: RunBatch) -> None:
        self._queues = EnqueueQueues(items_max, wait_ms_max, clock_ms)
        self._run_batch = run_batch
        self._room = threading.Condition()

    def enqueue(self, lane: Lane, item: NewItem, deadline_at_ms: int | None = None) -> str:
        """Return the item's id, by `deadline_at_ms` of the clock where that is given.

        Raises the item's error; OverloadedError when its turn did not come in time; NotSentError at the deadline, or
        OutcomeUnknownError when a call carries the item by then.
        """
        pending = self._queues.pending(item, deadline_at_ms)
        batch: list[PendingEnqueue] = []
        with self._room:
            if not self._room.wait_for(lambda: self._queues.has_room(pending), self._queues.patience_s(pending)):
                raise OverloadedError("too many enqueues wait in this client: nothing of this one was sent")
            leads = self._queues.add(lane, pending)
            if leads:
                batch = self._queues.take(lane, pending)
            else:
                pending.wakeup = threading.Event()
        if not leads and self._follow(lane, pending):
            with self._room:
                batch = self._queues.take(lane, pending)
                self._room.notify_all()
        if batch:
            self._lead(lane, batch)
        return pending.result()

    def _follow(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Wait for the outcome; True when the lead came instead."""
        try:
            in_time = pending.wakeup.wait(self._queues.patience_s(pending))
        except BaseException:
            self._leave(lane, pending)
            raise
        if not in_time:
            if self._leave(lane, pending):
                raise pending.not_sent()
            if pending.has_deadline and not pending.done:
                raise pending.in_flight_too_long()
            pending.wakeup.wait()  # A call carries it now, and that call ends.
        return pending.leads and not pending.done

    def _leave(self, lane: Lane, pending: PendingEnqueue) -> bool:
        """Give up waiting, and the lead with it if it came this moment. False: a call carries the item."""
        with self._room:
            if not self._queues.withdraw(lane, pending):
                return False
            self._room.notify_all()
            if pending.leads:
                self._appoint_heir(lane)
            return True

    def _lead(self, lane: Lane, batch: Sequence[PendingEnqueue]) -> None:
        outcome: EnqueueResult | BaseException
        try:
            outcome = self._run_batch(lane, [pending.item for pending in batch], deadline_of(batch))
        except (FoqsError, ClientClosedError) as error:
            outcome = error
        except BaseException as error:
            # What the handler of a signal raised, such as a time limit, is for this caller, and as it is.
            self._pass_on(lane, batch, error)
            raise
        self._pass_on(lane, batch, outcome)

    def _pass_on(self, lane: Lane, batch: Sequence[PendingEnqueue], outcome: EnqueueResult | BaseException) -> None:
        complete(batch, outcome)
        with self._room:
            self._appoint_heir(lane)
        for pending in batch:
            if pending.wakeup is not None:
                pending.wakeup.set()

    def _appoint_heir(self, lane: Lane) -> None:
        if self._queues.finish(lane):
            heir = self._queues.heir(lane)
            heir.leads = True
            heir.wakeup.set()

    def close(self) -> None:
        """End nothing: every call runs in the thread of a caller, and fails as soon as its pool is closed."""
