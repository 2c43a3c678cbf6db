"""Coalescing of single enqueues among threads, without a thread of its own.

The first caller of a lane leads: it runs the call for all waiting callers, then passes the lead to a caller that
arrived meanwhile. So no caller works for others for longer than one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.client.client_errors import ClientClosedError
from foqs.client.coalescing import EnqueueQueues, Lane, PendingEnqueue, deadline_of
from foqs.client.flows import Terms
from foqs.client.queue_items import NewItem
from foqs.client.shared_enqueue import CallOutcome
from foqs.client.sync.monitor import Monitor, closed_gate, open_gate
from foqs.model.errors import FoqsError

RunBatch = Callable[[Lane, Sequence[NewItem], int | None], CallOutcome]
"""Makes one attempt for a lane and its items, until the callers' deadline if there is one."""


class EnqueueCoalescer:
    """Combines the single enqueues of a `Client` into calls; the client owns it.

    A leader cannot leave its call before the call ends. The leader is therefore always the caller with the latest
    deadline in the batch, so the call never outlasts it, and the others leave at their own deadlines.
    If a signal handler raises in the thread of a caller, the caller's enqueue is removed at any stage.
    """

    def __init__(self, items_max: int, terms: Terms, run_batch: RunBatch, pause: Callable[[int], None]) -> None:
        """`pause` waits for the given number of milliseconds, and raises if the client is closed."""
        self._queues = EnqueueQueues(items_max, terms)
        self._run_batch = run_batch
        self._pause = pause
        self._room = Monitor()

    def enqueue(self, lane: Lane, item: NewItem, deadline_at_ms: int | None = None) -> str:
        """Return the item's id by `deadline_at_ms` of the clock, if given.

        Raises the item's error; OverloadedError if its turn did not come in time; NotSentError at the deadline, or
        OutcomeUnknownError if a call carries the item by then.
        """
        queues = self._queues
        pending = queues.pending(item, deadline_at_ms)
        was_held = self._room.is_held()  # A signal handler might call the method that it interrupted.
        while True:
            has_left = False
            try:
                self._share_call(lane, pending)
            except BaseException as error:
                try:
                    self._let_go(lane, pending, error, was_held=was_held)
                    has_left = True
                finally:
                    if not has_left:  # Another signal interrupted it.
                        self._let_go(lane, pending, error, was_held=was_held)
                raise
            pause_ms = queues.next_pause_ms(lane, pending)
            if pause_ms is None:
                return pending.result()
            if pause_ms:
                self._pause(pause_ms)
            lane = queues.again(lane, pending)

    def _share_call(self, lane: Lane, pending: PendingEnqueue) -> None:
        """Add the item to a call and wait for its outcome."""
        queues, room, batch = self._queues, self._room, None
        with room:
            if not room.wait_for(lambda: queues.has_room(pending), queues.patience_s(pending)):
                raise pending.no_room()
            if queues.add(lane, pending):
                batch = queues.take(lane, pending)
            else:
                pending.wakeup = closed_gate()
        if batch is None:
            batch = self._follow(lane, pending)
        if batch is not None:
            self._lead(lane, batch)

    def _follow(self, lane: Lane, pending: PendingEnqueue) -> list[PendingEnqueue] | None:
        """Wait for the outcome. If the lead arrives instead, return the batch of the next call."""
        in_time = pending.wakeup.acquire(timeout=self._queues.patience_s(pending))
        if not in_time:
            with self._room:
                is_cancelled = self._queues.cancel(lane, pending)
            if is_cancelled:
                raise pending.not_sent()  # The `except` of `enqueue` passes on a lead that arrived just now.
            if pending.has_deadline and not pending.done:
                raise pending.in_flight_too_long()
            pending.wakeup.acquire()  # A call carries the item now, and that call ends.
        with self._room:
            if pending.done or not self._queues.leads(lane, pending):
                return None
            batch = self._queues.take(lane, pending)
            self._room.notify_all()
            return batch

    def _lead(self, lane: Lane, batch: Sequence[PendingEnqueue]) -> None:
        outcome: CallOutcome | BaseException
        try:
            self._queues.begin(lane)
            outcome = self._run_batch(lane, [pending.item for pending in batch], deadline_of(batch))
        except (FoqsError, ClientClosedError) as error:
            outcome = error
        # Any other exception is for this caller, unchanged: a signal handler raised it, such as a time limit.
        with self._room:
            for carried in self._queues.end(lane, outcome):
                _wake(carried)
            if self._queues.finish(lane):
                _wake(self._queues.heir(lane))

    def _let_go(self, lane: Lane, pending: PendingEnqueue, error: BaseException, *, was_held: bool = False) -> None:
        """Remove the enqueue at any stage; signals can interrupt every step, even this method."""
        if not was_held:
            self._room.drop()
        with self._room:
            self._queues.abandon(lane, pending, error, _wake)
            self._room.notify_all()

    def close(self) -> None:
        """Do nothing: every call runs in the thread of its caller, and fails once its pool is closed."""


def _wake(pending: PendingEnqueue) -> None:
    if pending.wakeup is not None:
        open_gate(pending.wakeup)
