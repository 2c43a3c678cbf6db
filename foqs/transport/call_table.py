"""The calls of one connection, from their frames to their answers."""

from __future__ import annotations

import asyncio
from functools import partial
from math import inf
from typing import Any, Protocol

import structlog

from foqs.model.calls import CallContext
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.fair_scheduler import CallerQueue
from foqs.transport.verbs import dequeue_response
from foqs.wire.codec import Method

_log = structlog.get_logger(__name__)


class CallOwner(Protocol):
    """The connection of a call, as its calls see it."""

    def start_call(self, call: CallInFlight) -> None: ...

    def refuse_call(self, call: CallInFlight) -> None: ...

    def answer_call(self, frame: bytes) -> None: ...

    def close(self) -> None: ...


class CallInFlight:
    """A call: first a message that may wait to be read, then a request that waits or runs."""

    __slots__ = (
        "began_s", "context", "is_counted", "message", "method", "number", "owner", "queue", "request", "seqid",
        "since_s", "size_bytes", "topics_count",
    )  # fmt: skip

    def __init__(self, owner: CallOwner, queue: CallerQueue, message: bytes, since_s: float) -> None:
        self.owner = owner
        self.queue = queue
        self.message = message
        """Empty once it was read."""
        self.size_bytes = len(message)
        self.since_s = since_s
        """When its frame was whole, in the loop's time."""
        # The others are there once it was read.
        self.context: CallContext
        self.began_s: float
        """When it began to be read, by `perf_counter`."""
        self.method: Method
        self.request: Any
        self.seqid: int
        self.topics_count = 0
        """Topics that it waits for if it is a long poll; 0 of other calls."""
        self.number: int
        """Its place among the calls of its connection, by when they began to run."""
        self.is_counted = False
        """Whether it counts as running for the scheduler."""

    def start(self) -> None:
        self.owner.start_call(self)

    def refuse(self) -> None:
        self.owner.refuse_call(self)


class CallTable:
    """Owns the calls of one connection: those that wait to be started, and the tasks of those in flight.

    The connection puts calls in and writes the answers that come out. What all connections have in flight together is
    counted by the ConnectionTable, and what a caller has running by the scheduler; this table tells both. It does not
    know its connection, which would be a cycle for the garbage collector: each call does.
    """

    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._scheduler = table.scheduler
        self._waiting: dict[CallInFlight, None] = {}
        self._in_flight: dict[CallInFlight, asyncio.Task[None]] = {}
        self._begun_count = 0
        self._swept_count = 0
        """Calls that had begun to run at the last sweep."""
        self._bytes = 0
        self._count_max = table.limits.calls_in_flight_max
        self._bytes_max = table.limits.call_bytes_max
        self._waiting_bytes_max = table.limits.waiting_bytes_max
        self.waiting_bytes = 0

    @property
    def count(self) -> int:
        """Calls that wait or are in flight."""
        return len(self._waiting) + len(self._in_flight)

    def has_room(self) -> bool:
        """Whether the connection may have one more call: by their count, by their bytes and by what waits in all."""
        return (
            len(self._waiting) + len(self._in_flight) < self._count_max
            and self._bytes < self._bytes_max
            and not (self._waiting and (self.waiting_bytes >= self._waiting_bytes_max or self._scheduler.is_full))
        )

    # --- calls that wait ---

    def wait(self, call: CallInFlight) -> None:
        """Have a call that was not read yet started or refused later."""
        self._add_waiting(call)
        self._scheduler.wait(call.queue, call)

    def put_off(self, call: CallInFlight) -> None:
        """Have the rest of a call that was read done later. It is not refused any more."""
        call.since_s = inf
        self._add_waiting(call)
        self._scheduler.put_off(call.queue, call)

    def leave_waiting(self, call: CallInFlight) -> bool:
        """The scheduler has taken a call from its queue. False if it is not to be done: its connection is gone."""
        if call not in self._waiting:
            return False
        del self._waiting[call]
        self._bytes -= call.size_bytes
        self.waiting_bytes -= call.size_bytes
        return True

    def _add_waiting(self, call: CallInFlight) -> None:
        self._waiting[call] = None
        self._bytes += call.size_bytes
        self.waiting_bytes += call.size_bytes

    # --- calls in flight ---

    def begin(self, call: CallInFlight) -> None:
        """Run a call that was read."""
        self._begun_count = call.number = self._begun_count + 1
        if not call.topics_count:
            call.is_counted = True
            self._scheduler.started(call.queue)
        self._in_flight[call] = self._table.loop.create_task(self._run(call), name=call.method.name)
        self._bytes += call.size_bytes

    async def _run(self, call: CallInFlight) -> None:
        try:
            answered = await self._table.verbs.answer(call.context, call.method, call.request, call.seqid)
            self._table.call_answered(call, answered)
        except Exception as cause:
            self._end(call)
            _log.error("call_not_answered", method=call.method.name, caller=call.context.caller, exc_info=cause)
            call.owner.close()
        else:
            self._end(call)
            call.owner.answer_call(answered.frame)

    def _end(self, call: CallInFlight) -> None:
        if self._in_flight.pop(call, None) is not None:
            self._bytes -= call.size_bytes
            self._leave(call)

    def _leave(self, call: CallInFlight) -> None:
        """Count a call that was admitted no more."""
        self._runs_no_more(call)
        self._table.call_left(call)

    def _runs_no_more(self, call: CallInFlight) -> None:
        if call.is_counted:
            call.is_counted = False
            self._scheduler.ended(call.queue)

    def pass_over_slow_calls(self) -> None:
        """Count calls that began before the last sweep as running no more: it may be only their shard that is sick."""
        for call in [call for call in self._in_flight if call.is_counted and call.number <= self._swept_count]:
            self._runs_no_more(call)
        self._swept_count = self._begun_count

    def end_long_polls(self) -> None:
        """Answer the long polls at once, with nothing."""
        for call, task in list(self._in_flight.items()):
            if call.topics_count:
                task.add_done_callback(partial(self._long_poll_ended, call))
                task.cancel()

    def _long_poll_ended(self, call: CallInFlight, task: asyncio.Task[None]) -> None:
        if task.cancelled():
            self._end(call)
            call.owner.answer_call(self._table.codec.encode_reply(call.method, dequeue_response([]), call.seqid))

    # --- the end ---

    def tasks(self) -> list[asyncio.Task[None]]:
        """The tasks of the calls in flight."""
        return list(self._in_flight.values())

    def clear(self) -> None:
        """Cancel all calls: the connection ends. Those that wait are passed over by the scheduler."""
        waiting, tasks = list(self._waiting), self.tasks()
        admitted = [*self._in_flight, *[call for call in waiting if not call.message]]
        self._waiting.clear()
        self._in_flight.clear()
        for call in waiting:
            call.message = b""
        for call in admitted:
            self._leave(call)
        self._bytes = self.waiting_bytes = 0
        self._table.cancel(tasks)
