"""Coalescing of single enqueues among threads, without a thread of its own.

The first caller of a lane leads: it runs the call for all that wait, then hands the lead to one of those that came
meanwhile. So nobody works for others for longer than one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foqs.client.coalescing import EnqueueQueues, Lane, PendingEnqueue, deadline_of
from foqs.client.errors import ClientClosedError
from foqs.client.flows import Terms
from foqs.client.items import NewItem
from foqs.client.shared_enqueue import CallOutcome
from foqs.client.sync.monitor import Monitor, closed_gate, open_gate
from foqs.model.errors import FoqsError

RunBatch = Callable[[Lane, Sequence[NewItem], int | None], CallOutcome]
"""Makes one attempt: the lane, its items, and when it must have ended, if its callers have said so."""


class EnqueueCoalescer:
    """Puts the single enqueues of a `Client` together into calls; the client owns it.

    A leader cannot leave its call before the call ends. So the leader is always the one with the most time among those
    whom the call carries: it reaches no deadline later than its own, and the others leave when theirs comes.
    The handler of a signal may raise anywhere in the thread of a caller: then that one is taken out of wherever it was.
    """

    def __init__(self, items_max: int, terms: Terms, run_batch: RunBatch, pause: Callable[[int], None]) -> None:
        """`pause` waits for so many milliseconds, and raises when the client is closed."""
        self._queues = EnqueueQueues(items_max, terms)
        self._run_batch = run_batch
        self._pause = pause
        self._room = Monitor()

    def enqueue(self, lane: Lane, item: NewItem, deadline_at_ms: int | None = None) -> str:
        """Return the item's id, by `deadline_at_ms` of the clock where that is given.

        Raises the item's error; OverloadedError when its turn did not come in time; NotSentError at the deadline, or
        OutcomeUnknownError when a call carries the item by then.
        """
        queues = self._queues
        pending = queues.pending(item, deadline_at_ms)
        was_held = self._room.is_held()  # The handler of a signal may call what it has interrupted.
        while True:
            has_left = False
            try:
                self._share_call(lane, pending)
            except BaseException as error:
                try:
                    self._let_go(lane, pending, error, was_held=was_held)
                    has_left = True
                finally:
                    if not has_left:  # Another signal has cut it off.
                        self._let_go(lane, pending, error, was_held=was_held)
                raise
            pause_ms = queues.next_pause_ms(lane, pending)
            if pause_ms is None:
                return pending.result()
            if pause_ms:
                self._pause(pause_ms)
            lane = queues.again(lane, pending)

    def _share_call(self, lane: Lane, pending: PendingEnqueue) -> None:
        """Have a call carry the item, and wait for what came of it."""
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
        """Wait for the outcome; when the lead comes instead, return what the next call carries."""
        in_time = pending.wakeup.acquire(timeout=self._queues.patience_s(pending))
        if not in_time:
            with self._room:
                is_withdrawn = self._queues.withdraw(lane, pending)
            if is_withdrawn:
                raise pending.not_sent()  # Who catches it passes on the lead, if that came this moment.
            if pending.has_deadline and not pending.done:
                raise pending.in_flight_too_long()
            pending.wakeup.acquire()  # A call carries it now, and that call ends.
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
        # What else is raised is for this caller, and as it is: the handler of a signal did, such as a time limit.
        with self._room:
            for carried in self._queues.end(lane, outcome):
                _wake(carried)
            if self._queues.finish(lane):
                _wake(self._queues.heir(lane))

    def _let_go(self, lane: Lane, pending: PendingEnqueue, error: BaseException, *, was_held: bool = False) -> None:
        """Take the enqueue out of wherever it was; a signal may have cut off anything, this as well."""
        if not was_held:
            self._room.drop()
        with self._room:
            self._queues.abandon(lane, pending, error, _wake)
            self._room.notify_all()

    def close(self) -> None:
        """End nothing: every call runs in the thread of a caller, and fails as soon as its pool is closed."""


def _wake(pending: PendingEnqueue) -> None:
    if pending.wakeup is not None:
        open_gate(pending.wakeup)
