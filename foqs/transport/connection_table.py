"""What all connections of one server share: limits, counters, metrics, and who is let in."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import cycle
from time import perf_counter
from typing import TYPE_CHECKING, Protocol

import structlog

from foqs.model import limits
from foqs.model.errors import ErrorCode, OverloadedError
from foqs.transport.fair_scheduler import FairScheduler, SchedulerLimits
from foqs.transport.partial_frames import PartialFrames
from foqs.transport.verbs import Answered, Verbs
from foqs.wire.codec import ENQUEUE, Codec, for_seqid
from foqs.wire.frames import FrameTimes

if TYPE_CHECKING:
    from foqs.transport.call_table import CallInFlight
    from foqs.transport.connection import Connection

_log = structlog.get_logger(__name__)

_LOGGED_ERRORS_PER_SWEEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportLimits:
    """The bounds of a server; the defaults are those of `foqs.model.limits`, tests shorten them."""

    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX
    call_bytes_max: int = limits.CALL_BYTES_PER_CONNECTION_MAX
    waiting_bytes_max: int = limits.WAITING_BYTES_PER_CONNECTION_MAX
    all_calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_MAX
    all_call_bytes_max: int = limits.CALL_BYTES_MAX
    long_poll_topics_per_address_max: int = limits.LONG_POLL_TOPICS_PER_ADDRESS_MAX
    scheduling: SchedulerLimits = field(default_factory=SchedulerLimits)
    frame_times: FrameTimes = field(default_factory=FrameTimes)
    idle_ms_max: int = limits.IDLE_MS_MAX
    write_stall_ms_max: int = limits.WRITE_STALL_MS_MAX
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_MAX
    partial_frame_bytes_max: int = limits.PARTIAL_FRAME_BYTES_MAX
    partial_frame_bytes_per_address_max: int = limits.PARTIAL_FRAME_BYTES_PER_ADDRESS_MAX
    unsent_bytes_max: int = limits.UNSENT_ANSWER_BYTES_MAX
    drain_ms_max: int = limits.DRAIN_MS_MAX
    sweep_ms: int = limits.CONNECTION_SWEEP_MS


class TransportMetrics(Protocol):
    """Where the counts go. Reasons and outcomes are a small fixed set of words."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self, reason: str) -> None: ...

    def protocol_error(self, reason: str) -> None: ...

    def call_finished(self, method: str, outcome: str, seconds: float) -> None: ...

    def long_poll_finished(self, outcome: str, seconds: float) -> None:
        """A dequeue that may wait for items: its time says nothing of how fast the host is."""


class NoMetrics:
    """Counts nothing."""

    def connection_opened(self) -> None:
        return None

    def connection_closed(self) -> None:
        return None

    def connection_refused(self, reason: str) -> None:
        return None

    def protocol_error(self, reason: str) -> None:
        return None

    def call_finished(self, method: str, outcome: str, seconds: float) -> None:
        return None

    def long_poll_finished(self, outcome: str, seconds: float) -> None:
        return None


class ConnectionTable:
    """The connections of a server, and what they share. The server and its connections use it, on one event loop.

    It decides who is let in and which calls are refused because of what is in flight, holds connections to their
    deadlines, and counts for metrics and the log.
    """

    def __init__(
        self,
        verbs: Verbs,
        codec: Codec,
        metrics: TransportMetrics,
        bounds: TransportLimits,
        namespace_number: Callable[[bytes], int | None],
    ) -> None:
        """`namespace_number` gives the number of a namespace that this host knows, by its name."""
        self.loop = asyncio.get_running_loop()
        self.verbs = verbs
        self.codec = codec
        self.metrics = metrics
        self.limits = bounds
        self.draining = False
        self.connections: dict[Connection, None] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self.scheduler = FairScheduler(self.loop, bounds.scheduling, perf_counter)
        self.partial_frames = PartialFrames(
            self.connections.keys(), bounds.partial_frame_bytes_max, bounds.partial_frame_bytes_per_address_max
        )
        self._calls_count = 0
        """Calls that were admitted and have not ended."""
        self._call_bytes = 0
        """Of their frames."""
        self.cancelled_calls: set[asyncio.Task[None]] = set()
        self.namespace_number = namespace_number
        self._connections_by_address: Counter[str] = Counter()
        self._long_poll_topics: Counter[str] = Counter()
        """By address: topics that dequeue calls wait for."""
        self._to_hang_up: deque[Connection] = deque()
        self._errors_unlogged = 0
        self._errors_to_log = _LOGGED_ERRORS_PER_SWEEP
        self._overdue_frames = cycle(_overdue_frames(codec, bounds.scheduling.enqueue_wait_ms_max))

    # --- who is let in ---

    def turns_away(self, address: str) -> bool:
        """Whether there are too many connections, of all or of this address, for one more."""
        if len(self.connections) >= self.limits.connections_max:
            reason = "connections_max"
        elif self._connections_by_address.get(address, 0) >= self.limits.connections_per_address_max:
            reason = "connections_per_address_max"
        else:
            return False
        self.metrics.connection_refused(reason)
        self._log_refusal(address, reason, "too many connections")
        return True

    def admit(self, connection: Connection) -> bool:
        """Let a new connection in unless it is turned away."""
        if self.turns_away(connection.address):
            return False
        self.connections[connection] = None
        self._connections_by_address[connection.address] += 1
        self.empty.clear()
        self.metrics.connection_opened()
        return True

    def leave(self, connection: Connection) -> None:
        """Forget a connection that was admitted and is lost."""
        del self.connections[connection]
        self._connections_by_address[connection.address] -= 1
        if not self._connections_by_address[connection.address]:
            del self._connections_by_address[connection.address]
        if not self.connections:
            self.empty.set()
        self.metrics.connection_closed()

    # --- calls ---

    def admit_call(self, call: CallInFlight) -> OverloadedError | None:
        """Count a call that was read, until `call_left`; or tell why it cannot be done now."""
        address = call.queue.caller[1]
        if self.draining:
            return OverloadedError("the host is shutting down: nothing was done", retry_after_ms=1_000)
        if self._calls_count >= self.limits.all_calls_in_flight_max:
            message = f"{self._calls_count} calls are in flight on this host, which is its limit: nothing was done"
            return OverloadedError(message, retry_after_ms=1_000)
        if self._call_bytes + call.size_bytes > self.limits.all_call_bytes_max:
            message = f"calls of {self._call_bytes} bytes are in flight on this host: nothing was done"
            return OverloadedError(message, retry_after_ms=1_000)
        if call.topics_count:
            topics_count = self._long_poll_topics[address] + call.topics_count
            if topics_count > self.limits.long_poll_topics_per_address_max:
                message = f"dequeue calls of {address} would wait for {topics_count} topics: name fewer"
                return OverloadedError(message, retry_after_ms=1_000)
            self._long_poll_topics[address] = topics_count
        self._calls_count += 1
        self._call_bytes += call.size_bytes
        return None

    def call_left(self, call: CallInFlight) -> None:
        """A call that was admitted ended, however it did."""
        self._calls_count -= 1
        self._call_bytes -= call.size_bytes
        if call.topics_count:
            address = call.queue.caller[1]
            self._long_poll_topics[address] -= call.topics_count
            if not self._long_poll_topics[address]:
                del self._long_poll_topics[address]

    def refusal_frame(self, seqid: int) -> bytes:
        """The response to an enqueue that waited too long to be started.

        Calls that take items and settle them are never refused for that: they are what makes the load less.
        """
        self.metrics.call_finished(ENQUEUE.name, ErrorCode.OVERLOADED.name, 0.0)
        return for_seqid(next(self._overdue_frames), seqid)

    def call_answered(self, call: CallInFlight, answered: Answered) -> None:
        """Count a call that was done. What a page holds is charged to the queue of the call that asked for it."""
        now_s = perf_counter()
        if call.topics_count:
            self.metrics.long_poll_finished(answered.outcome, now_s - call.began_s)
        else:
            self.metrics.call_finished(call.method.name, answered.outcome, now_s - call.began_s)
        if answered.looked_at_count:
            self.scheduler.charge(call.queue, answered.looked_at_count, len(answered.frame), now_s)

    def cancel(self, calls: Iterable[asyncio.Task[None]]) -> None:
        """Cancel calls whose connection is gone, and own them until they have ended."""
        for call in calls:
            self.cancelled_calls.add(call)
            call.add_done_callback(self.cancelled_calls.discard)
            call.cancel()

    def protocol_error(self, connection: Connection, reason: str, detail: str) -> None:
        """Count a breach of the protocol and log it, a few per sweep and never with the payload."""
        self.metrics.protocol_error(reason)
        self._log_refusal(connection.address, reason, detail)

    def hang_up_soon(self, connection: Connection) -> None:
        """A few in a turn: thousands may break the protocol in one moment."""
        self._to_hang_up.append(connection)
        if len(self._to_hang_up) == 1:
            self.loop.call_soon(self._hang_up)

    def _hang_up(self) -> None:
        connections = [
            self._to_hang_up.popleft() for _ in range(min(limits.HANG_UPS_PER_TURN_MAX, len(self._to_hang_up)))
        ]
        if self._to_hang_up:
            self.loop.call_later(limits.CHORE_PAUSE_MS / 1000, self._hang_up)
        for connection in connections:
            connection.close()

    def sweep(self) -> Iterator[None]:
        """Hold every connection to its deadlines, and all of them to the bound on unsent responses.

        Yields where the rest is for another turn of the event loop.
        """
        now = self.loop.time()
        unsent: list[tuple[int, Connection]] = []
        looks = 0
        for connection in list(self.connections):
            if looks >= limits.CONNECTIONS_PER_SWEEP_TURN:
                yield
                looks, now = 0, self.loop.time()
            if connection not in self.connections:
                continue
            if waiting := connection.unsent_bytes():
                unsent.append((waiting, connection))
            looks += 1 if connection.check(now) else 10
        excess = sum(size for size, _ in unsent) - self.limits.unsent_bytes_max
        if excess > 0:
            for size, connection in sorted(unsent, key=lambda entry: entry[0], reverse=True):
                connection.refuse("unsent_bytes_max", "too many bytes of responses not taken in the host")
                excess -= size
                if excess <= 0:
                    break
        self._errors_to_log = _LOGGED_ERRORS_PER_SWEEP
        if self._errors_unlogged:
            _log.warning("further_connections_refused", count=self._errors_unlogged)
            self._errors_unlogged = 0

    def _log_refusal(self, address: str, reason: str, detail: str) -> None:
        if self._errors_to_log > 0:
            self._errors_to_log -= 1
            _log.warning("connection_refused", address=address, reason=reason, detail=detail)
        else:
            self._errors_unlogged += 1


def _overdue_frames(codec: Codec, wait_ms: int) -> Iterator[bytes]:
    """Encoded once. What is refused in one moment must not come back in one."""
    message = f"this host has more calls than it can do: enqueues wait for {wait_ms} ms and more, nothing was done"
    for retry_after_ms in range(wait_ms, 3 * wait_ms + 1, max(1, wait_ms // 8)):
        yield codec.encode_error(ENQUEUE, OverloadedError(message, retry_after_ms=max(1, retry_after_ms)), 0)
