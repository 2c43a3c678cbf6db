"""Group commit of single enqueues among threads, without a thread of its own.

The first caller of a lane leads: it runs the call for all that wait, then hands the lead to one of those that
came meanwhile. So nobody works for others for longer than one call.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from foqs.client.gathering import Gatherer, Lane, Ticket, deliver
from foqs.client.items import NewItem
from foqs.model.calls import EnqueueResult
from foqs.model.errors import OverloadedError

RunBatch = Callable[[Lane, Sequence[NewItem]], EnqueueResult]


class ThreadGatherer:
    def __init__(self, items_max: int, wait_ms_max: int, run_batch: RunBatch) -> None:
        self._gatherer = Gatherer(items_max)
        self._wait_s_max = wait_ms_max / 1000
        self._run_batch = run_batch
        self._room = threading.Condition()

    def enqueue(self, lane: Lane, item: NewItem) -> str:
        """The id. Raises the item's error, or OverloadedError when its turn did not come in time."""
        ticket = self._gatherer.ticket(item)
        with self._room:
            if not self._room.wait_for(lambda: self._gatherer.has_room(ticket), self._wait_s_max):
                raise OverloadedError("too many enqueues wait in this client")
            leads = self._gatherer.add(lane, ticket)
            if not leads:
                ticket.wakeup = threading.Event()
        if leads or self._follow(lane, ticket):
            self._lead(lane)
        return ticket.result()

    def _follow(self, lane: Lane, ticket: Ticket) -> bool:
        """Wait for the outcome; True when the lead came instead."""
        try:
            in_time = ticket.wakeup.wait(self._wait_s_max)
        except BaseException:
            self._leave(lane, ticket)
            raise
        if not in_time:
            if self._leave(lane, ticket):
                raise OverloadedError("the enqueue's turn did not come in time")
            ticket.wakeup.wait()  # a call carries it now, and that call ends
        return ticket.leads and not ticket.done

    def _leave(self, lane: Lane, ticket: Ticket) -> bool:
        """Give up waiting, and the lead with it if it came this moment. False: a call carries the item."""
        with self._room:
            if not self._gatherer.withdraw(lane, ticket):
                return False
            self._room.notify_all()
            if ticket.leads:
                self._appoint_heir(lane)
            return True

    def _lead(self, lane: Lane) -> None:
        with self._room:
            batch = self._gatherer.take(lane)
            self._room.notify_all()
        outcome: EnqueueResult | BaseException
        try:
            outcome = self._run_batch(lane, [ticket.item for ticket in batch])
        except Exception as error:
            outcome = error
        except BaseException as error:
            self._pass_on(lane, batch, error)
            raise
        self._pass_on(lane, batch, outcome)

    def _pass_on(self, lane: Lane, batch: Sequence[Ticket], outcome: EnqueueResult | BaseException) -> None:
        deliver(batch, outcome)
        with self._room:
            self._appoint_heir(lane)
        for ticket in batch:
            if ticket.wakeup is not None:
                ticket.wakeup.set()

    def _appoint_heir(self, lane: Lane) -> None:
        heir = self._gatherer.finish(lane)
        if heir is not None:
            heir.leads = True
            heir.wakeup.set()
