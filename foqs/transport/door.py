"""What all connections of one server share: limits, counters, metrics, and who must go when bytes run out."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import cycle
from math import inf
from time import perf_counter
from typing import Protocol

import structlog

from foqs.core import limits
from foqs.core.errors import ErrorCode, OverloadedError
from foqs.transport.verbs import Verbs
from foqs.transport.wire import ENQUEUE, Codec, for_seqid

_log = structlog.get_logger(__name__)

_LOGGED_ERRORS_PER_SWEEP = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorLimits:
    """The bounds of a server; the defaults are those of `foqs.core.limits`, tests shorten them."""

    connections_max: int = limits.CONNECTIONS_MAX
    connections_per_address_max: int = limits.CONNECTIONS_PER_ADDRESS_MAX
    calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_PER_CONNECTION_MAX
    call_bytes_max: int = limits.CALL_BYTES_PER_CONNECTION_MAX
    all_calls_in_flight_max: int = limits.CALLS_IN_FLIGHT_MAX
    all_call_bytes_max: int = limits.CALL_BYTES_MAX
    long_poll_topics_per_address_max: int = limits.LONG_POLL_TOPICS_PER_ADDRESS_MAX
    turn_work_max: int = limits.TURN_WORK_MAX
    turn_wait_ms_max: int = limits.TURN_WAIT_MS_MAX
    calls_running_per_address_max: int = limits.CALLS_RUNNING_PER_ADDRESS_MAX
    frame_bytes_max: int = limits.FRAME_BYTES_MAX
    first_frame_ms_max: int = limits.FIRST_FRAME_MS_MAX
    header_ms_max: int = limits.FRAME_HEADER_MS_MAX
    body_ms_min: int = limits.FRAME_BODY_MS_MIN
    body_bytes_per_ms_min: int = limits.FRAME_BODY_BYTES_PER_MS_MIN
    idle_ms_max: int = limits.IDLE_MS_MAX
    write_stall_ms_max: int = limits.WRITE_STALL_MS_MAX
    write_buffer_bytes_max: int = limits.WRITE_BUFFER_BYTES_MAX
    unfinished_bytes_max: int = limits.UNFINISHED_FRAME_BYTES_MAX
    unsent_bytes_max: int = limits.UNSENT_ANSWER_BYTES_MAX
    drain_ms_max: int = limits.DRAIN_MS_MAX
    sweep_ms: int = limits.CONNECTION_SWEEP_MS


class DoorMetrics(Protocol):
    """Where the counts go. Reasons and outcomes are a small fixed set of words."""

    def connection_opened(self) -> None: ...

    def connection_closed(self) -> None: ...

    def connection_refused(self, reason: str) -> None: ...

    def protocol_error(self, reason: str) -> None: ...

    def call_finished(self, method: str, outcome: str, seconds: float) -> None: ...


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


class Guest(Protocol):
    """What the door asks of a connection."""

    address: str
    unfinished_since: float | None
    """When the frame that is still incomplete began, in the loop's time."""
    held_bytes: int
    """Received, and no call yet."""
    calls: dict[int, asyncio.Task[None]]

    def finish(self) -> None: ...

    def abort(self) -> None: ...

    def refuse(self, reason: str, detail: str) -> None: ...

    def unsent_bytes(self) -> int: ...

    def check(self, now: float) -> None: ...

    def take_turn(self, frames_max: int) -> None: ...


class StandingQueue:
    """How long the frames of a connection have waited for their turn; times are in seconds.

    The host sees but the head of a queue that is longer than the buffers of the two systems. So once a frame has waited
    too long, what comes at once after the last one has as well: the queue is flushed until there is a moment without a
    frame, however old it is (a queue that stands is overload: CoDel, Nichols and Jacobson 2012). But no longer than a
    frame may wait: by then the queue is gone, and what comes is new.
    """

    def __init__(self, wait_ms_max: int) -> None:
        self._wait_s_max = wait_ms_max / 1000
        self._since: float | None = None
        """Since when a frame has waited; None when none does."""
        self._flush_began_at = self._flushed_at = -inf
        """When the last flush began, and when a frame was looked at in it, last."""

    def began(self, now: float) -> None:
        """A frame waits; no matter if others do."""
        if self._since is None:
            self._since = now

    def ended(self) -> None:
        """No frame waits."""
        self._since = None

    def is_overdue(self, now: float) -> bool:
        """Whether what waits is refused now."""
        since = now if self._since is None else self._since
        is_next = since - self._flushed_at <= limits.TURN_CATCH_UP_MS / 1000
        is_flushed = is_next and now - self._flush_began_at < self._wait_s_max
        if not is_flushed and now - since >= self._wait_s_max:
            self._flush_began_at = now
            is_flushed = True
        if is_flushed:
            self._flushed_at = now
        return is_flushed


class Turns:
    """Who may start work in this turn of the event loop, so that no turn is long.

    Round robin over the addresses that have frames waiting, and over the connections of each: many connections
    get one address no more than one does. What an address enqueues and all else of it have a place each in the round:
    what it takes and settles, which makes the load less, is not behind all that it wants to add.

    An address with too many calls running has no turn until some end. One that had most of a turn, while others have
    calls running, has none for as long as that took: these go on meanwhile.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, work_max: int, running_max: int) -> None:
        self._loop = loop
        self._work_max = work_max
        self._running_max = running_max
        self._work = 0.0
        self._work_by_address: Counter[str] = Counter()
        self._began_s = 0.0
        """Since when there is work in this turn, by `perf_counter`."""
        self._is_scheduled = False
        self._waiting: dict[tuple[str, bool], deque[Guest]] = {}
        """By address, and whether what waits is an enqueue."""
        self._running: Counter[str] = Counter()
        self._resting: set[str] = set()

    def is_free(self, address: str) -> bool:
        """Whether work may start at once: nobody waits, and the turn and the address have some left."""
        return not self._waiting and self.has_work_left(address)

    def has_work_left(self, address: str) -> bool:
        return self._work < self._work_max and self._may_start(address)

    def spend(self, address: str, element_count: int, size_bytes: int, began_s: float) -> None:
        """Count a frame; it was begun to be read at that time of `perf_counter`."""
        work = 1 + element_count // limits.TURN_WORK_ELEMENTS + size_bytes // limits.TURN_WORK_BYTES
        if not self._work_by_address:
            self._began_s = began_s
        self._work += work
        self._work_by_address[address] += work
        self._begin_soon()

    def spend_on_refusal(self) -> None:
        """Count a frame that was refused unread."""
        self._work += 1 / limits.TURN_REFUSALS
        self._begin_soon()

    def started(self, address: str) -> None:
        self._running[address] += 1

    def ended(self, address: str, count: int) -> None:
        left = self._running[address] - count
        if left:
            self._running[address] = left
        else:
            del self._running[address]
        if self._waiting:
            self._begin_soon()

    def wait(self, guest: Guest, *, enqueues: bool) -> None:
        """Let `take_turn` be called when it is the guest's turn; `enqueues`: its first frame is an enqueue."""
        self._waiting.setdefault((guest.address, enqueues), deque()).append(guest)
        self._begin_soon()

    def _may_start(self, address: str) -> bool:
        return self._running[address] < self._running_max and address not in self._resting

    def _rest(self, address: str, began_s: float) -> None:
        """After a turn that was its, and the first steps of the calls that were started, which are most of the work."""
        self._loop.call_later(perf_counter() - began_s, self._end_rest, address)

    def _begin_rests(self) -> None:
        for address, work in self._work_by_address.items():
            if work > self._work_max / 2 and len(self._running) > (address in self._running):
                self._resting.add(address)
                self._loop.call_soon(self._rest, address, self._began_s)

    def _end_rest(self, address: str) -> None:
        self._resting.discard(address)
        if self._waiting:
            self._begin_soon()

    def _begin_soon(self) -> None:
        if not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._begin)

    def _begin(self) -> None:
        self._is_scheduled = False
        self._begin_rests()
        self._work = 0.0
        self._work_by_address.clear()
        passed_over = 0
        while len(self._waiting) > passed_over and self._work < self._work_max:
            place, guests = next(iter(self._waiting.items()))
            # It goes to the end of the round, unless this was the last of its guests.
            del self._waiting[place]
            if not self._may_start(place[0]):
                self._waiting[place] = guests
                passed_over += 1
                continue
            guest = guests.popleft()
            if guests:
                self._waiting[place] = guests
            guest.take_turn(limits.TURN_FRAMES_PER_CONNECTION_MAX)
        if any(self._may_start(address) for address, _ in self._waiting):
            self._begin_soon()


class Door:
    """The shared state of a server's connections. Lives on one event loop."""

    def __init__(self, verbs: Verbs, codec: Codec, metrics: DoorMetrics, bounds: DoorLimits) -> None:
        self.loop = asyncio.get_running_loop()
        self.verbs = verbs
        self.codec = codec
        self.metrics = metrics
        self.limits = bounds
        self.draining = False
        self.guests: dict[Guest, None] = {}
        self.empty = asyncio.Event()
        self.empty.set()
        self.turns = Turns(self.loop, bounds.turn_work_max, bounds.calls_running_per_address_max)
        self.unfinished_bytes = 0
        self.calls_count = 0
        """Calls in flight."""
        self.call_bytes = 0
        """Of their frames."""
        self.cancelled_calls: set[asyncio.Task[None]] = set()
        self._guests_by_address: Counter[str] = Counter()
        self._long_poll_topics: Counter[str] = Counter()
        """By address: topics that dequeue calls wait for."""
        self._errors_unlogged = 0
        self._errors_to_log = _LOGGED_ERRORS_PER_SWEEP
        self._overdue_frames = cycle(_overdue_frames(codec, bounds.turn_wait_ms_max))

    def admit(self, guest: Guest) -> bool:
        """Let a new connection in unless there are too many, of all or of its address."""
        if len(self.guests) >= self.limits.connections_max:
            self._turn_away(guest, "connections_max")
            return False
        if self._guests_by_address[guest.address] >= self.limits.connections_per_address_max:
            self._turn_away(guest, "connections_per_address_max")
            return False
        self.guests[guest] = None
        self._guests_by_address[guest.address] += 1
        self.empty.clear()
        self.metrics.connection_opened()
        return True

    def leave(self, guest: Guest) -> None:
        """Forget a connection that was admitted and is lost."""
        del self.guests[guest]
        self._guests_by_address[guest.address] -= 1
        if not self._guests_by_address[guest.address]:
            del self._guests_by_address[guest.address]
        if not self.guests:
            self.empty.set()
        self.metrics.connection_closed()

    def hold(self, added_bytes: int) -> None:
        """Count bytes that no call was made of yet.

        Beyond the bound the longest unfinished frames have to go; where none is, whoever sent most in advance.
        """
        self.unfinished_bytes += added_bytes
        while added_bytes > 0 and self.unfinished_bytes > self.limits.unfinished_bytes_max:
            slow = [guest for guest in self.guests if guest.unfinished_since is not None]
            if slow:
                chosen = min(slow, key=lambda guest: guest.unfinished_since or 0.0)
            else:
                chosen = max(self.guests, key=lambda guest: guest.held_bytes)
            chosen.refuse("unfinished_bytes_max", "too many bytes of unfinished frames in the host")

    def refusal(self, address: str, size_bytes: int, waiting_topics_count: int) -> OverloadedError | None:
        """Why a call of this size cannot be taken now; a long poll waits for some topics, other calls for none."""
        if self.draining:
            return OverloadedError("the host is shutting down: nothing was done", retry_after_ms=1_000)
        if self.calls_count >= self.limits.all_calls_in_flight_max:
            message = f"{self.calls_count} calls are in flight on this host, which is its limit: nothing was done"
            return OverloadedError(message, retry_after_ms=1_000)
        if self.call_bytes + size_bytes > self.limits.all_call_bytes_max:
            message = f"calls of {self.call_bytes} bytes are in flight on this host: nothing was done"
            return OverloadedError(message, retry_after_ms=1_000)
        waiting_topics_count += self._long_poll_topics[address] if waiting_topics_count else 0
        if waiting_topics_count > self.limits.long_poll_topics_per_address_max:
            message = f"dequeue calls of {address} would wait for {waiting_topics_count} topics: name fewer"
            return OverloadedError(message, retry_after_ms=1_000)
        return None

    def refusal_frame(self, seqid: int) -> bytes:
        """The answer to an enqueue that waited too long for its turn.

        Calls that take items and settle them are never refused for that: they are what makes the load less.
        """
        self.turns.spend_on_refusal()
        self.metrics.call_finished(ENQUEUE.name, ErrorCode.OVERLOADED.name, 0.0)
        return for_seqid(next(self._overdue_frames), seqid)

    def call_started(self, size_bytes: int) -> None:
        self.calls_count += 1
        self.call_bytes += size_bytes

    def long_poll_started(self, address: str, topics_count: int) -> None:
        self._long_poll_topics[address] += topics_count

    def long_poll_ended(self, address: str, topics_count: int) -> None:
        self._long_poll_topics[address] -= topics_count
        if not self._long_poll_topics[address]:
            del self._long_poll_topics[address]

    def calls_ended(self, count: int, size_bytes: int) -> None:
        self.calls_count -= count
        self.call_bytes -= size_bytes

    def cancel(self, calls: Iterable[asyncio.Task[None]]) -> None:
        """Cancel calls whose connection is gone, and own them until they have ended."""
        for call in calls:
            self.cancelled_calls.add(call)
            call.add_done_callback(self.cancelled_calls.discard)
            call.cancel()

    def protocol_error(self, guest: Guest, reason: str, detail: str) -> None:
        """Count a breach of the protocol and log it, a few per sweep and never with the payload."""
        self.metrics.protocol_error(reason)
        self._log_refusal(guest, reason, detail)

    def sweep(self) -> None:
        """Hold every connection to its deadlines, and all of them to the bound on unsent answers."""
        now = self.loop.time()
        unsent: list[tuple[int, Guest]] = []
        for guest in list(self.guests):
            if waiting := guest.unsent_bytes():
                unsent.append((waiting, guest))
            guest.check(now)
        excess = sum(size for size, _ in unsent) - self.limits.unsent_bytes_max
        if excess > 0:
            for size, guest in sorted(unsent, key=lambda entry: entry[0], reverse=True):
                guest.refuse("unsent_bytes_max", "too many bytes of answers not taken in the host")
                excess -= size
                if excess <= 0:
                    break
        self._errors_to_log = _LOGGED_ERRORS_PER_SWEEP
        if self._errors_unlogged:
            _log.warning("further_connections_refused", count=self._errors_unlogged)
            self._errors_unlogged = 0

    def _turn_away(self, guest: Guest, reason: str) -> None:
        self.metrics.connection_refused(reason)
        self._log_refusal(guest, reason, "too many connections")

    def _log_refusal(self, guest: Guest, reason: str, detail: str) -> None:
        if self._errors_to_log > 0:
            self._errors_to_log -= 1
            _log.warning("connection_refused", address=guest.address, reason=reason, detail=detail)
        else:
            self._errors_unlogged += 1


def _overdue_frames(codec: Codec, wait_ms: int) -> Iterator[bytes]:
    """Encoded once. What is refused in one moment must not come back in one."""
    message = f"this host has more calls than it can do: enqueues wait for {wait_ms} ms and more, nothing was done"
    for retry_after_ms in range(wait_ms, 3 * wait_ms + 1, max(1, wait_ms // 8)):
        yield codec.encode_error(ENQUEUE, OverloadedError(message, retry_after_ms=max(1, retry_after_ms)), 0)
