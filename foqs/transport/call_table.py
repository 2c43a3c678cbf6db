"""Calls, from their messages to their responses: each connection's calls, and the state that all connections share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle
from math import inf
from time import perf_counter
from typing import Any, Protocol

from foqs.model.calls import CallContext
from foqs.model.errors import ErrorCode, FoqsError, OverloadedError
from foqs.model.peer_proof import PeerLink, PeerRefusedError
from foqs.model.principal import EVERYBODY
from foqs.transport.bounds import TransportLimits, TransportMetrics
from foqs.transport.entrance import Entrance
from foqs.transport.fair_scheduler import OF_PEER, CallerQueue, FairScheduler
from foqs.transport.sign_in import SignIn
from foqs.transport.tls.caller_tls import CallerTls
from foqs.transport.verb_table import OK, Answered, Verbs, dequeue_response
from foqs.wire.codec import (
    DEQUEUE,
    END_WAIT,
    ENQUEUE,
    HANDSHAKE,
    Codec,
    Method,
    UnreadableCallError,
    for_seqid,
    seqid_of,
)

PEER_LANES_COUNT = 64
"""The divisor whose remainder of a seqid identifies a peer's caller; the peer gives each caller its own remainder."""


class CallOwner(Protocol):
    """The connection of a call, as its calls see it."""

    def start_call(self, call: CallInFlight) -> None: ...

    def refuse_call(self, call: CallInFlight) -> None: ...

    def answer_call(self, frame: bytes) -> None: ...

    def refuse_peer(self, refusal: PeerRefusedError) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class CallInFlight:
    """A call: first a message that can wait to be read, then a request that waits or runs."""

    owner: CallOwner
    queue: CallerQueue
    message: bytes
    """Empty once it was read."""
    since_s: float
    """The time at which its frame was complete, in the loop's time."""
    size_bytes: int
    element_count: int = 0
    """Elements of the batch of its request; 0 until it was read."""
    topics_count: int = 0
    """Topics that a long poll waits for; 0 for other calls."""
    is_counted: bool = False
    """True while it counts as running for the scheduler."""
    waits_no_more: bool = False
    """True if its caller ended its wait before it was read."""
    # These are set once it was read.
    context: CallContext = field(init=False)
    began_s: float = field(init=False)
    """The start of its reading, by `perf_counter`."""
    method: Method = field(init=False)
    request: Any = field(init=False)
    seqid: int = field(init=False)
    number: int = field(init=False)
    """The number of the call on its connection, in the order in which calls began to run."""

    def start(self) -> None:
        self.owner.start_call(self)

    def refuse(self) -> None:
        self.owner.refuse_call(self)


class ServerCalls:
    """The state that all connections of a server share: calls in flight, their bounds, and the verbs that run them.

    The call table of each connection counts its calls here. The server stops the admission of calls, and waits for
    cancelled ones.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        scheduler: FairScheduler,
        verbs: Verbs,
        codec: Codec,
        metrics: TransportMetrics,
        bounds: TransportLimits,
    ) -> None:
        self.loop = loop
        self.scheduler = scheduler
        self.verbs = verbs
        self.codec = codec
        self.metrics = metrics
        self.limits = bounds
        self.draining = False
        """True if calls are refused because the server is about to stop."""
        self.count = 0
        """Calls that were admitted and have not ended."""
        self.bytes = 0
        """The bytes of their frames."""
        self.cancelled: set[asyncio.Task[None]] = set()
        self._long_poll_topics: Counter[str] = Counter()
        """Topics that the dequeue calls of each address wait for."""
        self._overdue_frames = cycle(_overdue_frames(codec, bounds.scheduling.enqueue_wait_ms_max))

    def admit(self, call: CallInFlight) -> OverloadedError | None:
        """Count a call that was read, until `left`; or return the reason why it is refused."""
        bounds, address, topics_count = self.limits, "", 0
        if call.topics_count:
            address = call.queue.caller[1]
            topics_count = self._long_poll_topics[address] + call.topics_count
        if self.draining:
            message = "the host is shutting down: nothing was done"
        elif self.count >= bounds.all_calls_in_flight_max:
            message = f"{self.count} calls are in flight on this host, which is its limit: nothing was done"
        elif self.bytes + call.size_bytes > bounds.all_call_bytes_max:
            message = f"calls of {self.bytes} bytes are in flight on this host: nothing was done"
        elif topics_count > bounds.long_poll_topics_per_address_max:
            message = f"dequeue calls of {address} would wait for {topics_count} topics: name fewer"
        else:
            self.count += 1
            self.bytes += call.size_bytes
            if topics_count:
                self._long_poll_topics[address] = topics_count
            return None
        return OverloadedError(message, retry_after_ms=1_000)

    def left(self, call: CallInFlight) -> None:
        """Stop counting an admitted call, also as running, because it has ended in any way."""
        self.count -= 1
        self.bytes -= call.size_bytes
        if call.is_counted:
            call.is_counted = False
            self.scheduler.ended(call.queue)
        if call.topics_count:
            address = call.queue.caller[1]
            self._long_poll_topics[address] -= call.topics_count
            if not self._long_poll_topics[address]:
                del self._long_poll_topics[address]

    def failed(self, method: Method, error: FoqsError, seqid: int) -> bytes:
        """Return the response to a call refused with this error, and count it."""
        answered = self.verbs.failed(method, error, seqid)
        self.metrics.call_finished(method.name, answered.outcome, 0.0)
        return answered.frame

    def refusal_frame(self, message: bytes) -> bytes:
        """Return the response to an enqueue that waited too long to start, undecoded, and count the refusal.

        Dequeues, acks and nacks are never refused here, because they reduce the load.
        """
        self.metrics.call_finished(ENQUEUE.name, ErrorCode.OVERLOADED.name, 0.0)
        return for_seqid(next(self._overdue_frames), seqid_of(message))

    def cancel(self, tasks: Iterable[asyncio.Task[None]]) -> None:
        """Cancel calls of a lost connection, and own them until they have ended."""
        for task in tasks:
            self.cancelled.add(task)
            task.add_done_callback(self.cancelled.discard)
            task.cancel()


class CallTable:
    """Owns the calls of one connection: those that wait to be started, and the tasks of those in flight.

    The connection puts messages in and writes the resulting responses. ServerCalls counts the calls in flight of all
    connections, and the scheduler the running calls of each caller; this table reports to both. It does not reference
    its connection, which would be a cycle for the garbage collector: each call does.
    """

    def __init__(self, server: ServerCalls, entrance: Entrance) -> None:
        self._server = server
        self._scheduler = server.scheduler
        self.sign_in = SignIn(server, entrance)
        """The identity of the caller."""
        self.context = self.sign_in.context
        """The context of every call except long polls."""
        self._link: PeerLink | None = None
        """The state of the handshake of a host that is about to prove its membership of the cluster."""
        self._peer_secret_id = ""
        self._waiting: dict[CallInFlight, None] = {}
        self._in_flight: dict[CallInFlight, asyncio.Task[None]] = {}
        self._begun_count = 0
        self._swept_count = 0
        """Calls that had begun to run at the last sweep."""
        self.count = 0
        """Calls that wait or are in flight."""
        self._bytes = self.waiting_bytes = 0
        self.refused_count = 0
        """Calls that were read and not admitted."""
        self.no_long_polls = False
        """True if the caller has possibly left, so that a dequeue does not wait for items."""
        self.calls_in_flight_max = server.limits.calls_in_flight_max
        self.bytes_max = server.limits.call_bytes_max
        self._waiting_bytes_max = server.limits.waiting_bytes_max

    def _become_peer(self, link: PeerLink) -> None:
        """Treat calls from now on as those of another host of the cluster, which forwards the calls of many callers."""
        self.sign_in.become_peer()
        # What hosts hand on was checked before.
        self.context = CallContext(self.context.caller, peer=link.host_id, principal=EVERYBODY)
        self._link, self._peer_secret_id = None, link.secret_id
        self.calls_in_flight_max = self._server.limits.peer_calls_in_flight_max
        self.bytes_max = self._server.limits.peer_call_bytes_max
        self._waiting_bytes_max = self._server.limits.peer_waiting_bytes_max

    def _is_of_handshake(self, call: CallInFlight) -> bool:
        """Prepare a call of the handshake, or one that comes during it. False if that ended the connection.

        A caller of anything else before is a client, and a host calls nothing else before it has joined.
        """
        link = self._link
        if link is None:
            has_called = self._begun_count or self.count or self.refused_count or self.sign_in.was_asked
            is_fresh = not (has_called or self.context.peer)
            link = self._link = self.sign_in.begin_proof(is_fresh=is_fresh)
        elif call.method.name not in HANDSHAKE:
            detail = f"{call.method.name} was called after greet, not join"
            call.owner.refuse_peer(PeerRefusedError("not_joined", detail))
            return False
        call.context = CallContext(self.context.caller, link=link, principal=self.context.principal)
        return True

    # --- who calls ---

    def open(self, address: str) -> None:
        """The connection from this address is admitted."""
        self.sign_in.open(address)
        self.context = self.sign_in.context

    def settle(self, tls: CallerTls | None) -> None:
        """Take the caller's certificate before its first call, see `SignIn.settle`. Raises FrameError."""
        self.sign_in.settle(tls)
        self.context = self.sign_in.context

    def answer_at_once(self, name: bytes, message: bytes) -> bytes | None:
        """Answer a call to log in, or one that is barred; None for all others. Raises FrameError."""
        if self._link is not None or not self.sign_in.answers(name):
            return None
        answer = self.sign_in.answer(name, message)
        self._follow_context()
        return answer

    def follow_identity(self) -> None:
        """Look at what has become of the caller's credential and grants, every sweep."""
        if self.sign_in.follow():
            self._follow_context()

    def _follow_context(self) -> None:
        """Take another principal for calls from now on, and end the long polls that it has no permission for."""
        context, verbs = self.sign_in.context, self._server.verbs
        if context is self.context:
            return
        self.context = context
        for call, task in list(self._in_flight.items()):
            if not call.topics_count or context.is_permissive:
                continue
            is_dead = self.sign_in.is_dead
            error = self.sign_in.denial(call.method) if is_dead else verbs.refusal(context, call.method, call.request)
            if error is not None:
                self._end_long_poll(call, task, error)

    def _renew_context(self, call: CallInFlight) -> None:
        """Let a call that was put off run with the permissions of now."""
        now = self.context
        if call.context.principal is not now.principal or call.context.is_permissive is not now.is_permissive:
            call.context = replace(
                call.context, principal=now.principal, is_permissive=now.is_permissive, credential=now.credential
            )

    def refusal(self, now_s: float) -> PeerRefusedError | None:
        """Return the reason to close a peer's connection, or None: it is late to prove its identity, or is dead."""
        link, peer = self._link, self.context.peer
        if link is not None and link.is_late(now_s):
            return PeerRefusedError("late", "it greeted, and has not joined in time")
        if peer and not self._server.verbs.is_living_peer(peer, self._peer_secret_id):
            return PeerRefusedError("gone", f"host {peer} lives no more, or its secret has ended")
        return self.sign_in.ended_certificate() if peer else None

    def caller_of(self, address: str, message: bytes) -> str:
        """Return the caller for the scheduler: an address, or one group of a peer's callers."""
        peer = self.context.peer
        return address if not peer else f"{peer}{OF_PEER}{seqid_of(message) % PEER_LANES_COUNT}"

    def has_room(self) -> bool:
        """True if the connection can take one more call: by its count, its bytes and the waiting calls of all.

        The waiting calls of all do not count for a peer, because calls of one of its callers must not stop the others.
        """
        is_full = self._scheduler.is_full and not self.context.peer
        return (
            self.count < self.calls_in_flight_max
            and self._bytes < self.bytes_max
            and not (self._waiting and (self.waiting_bytes >= self._waiting_bytes_max or is_full))
        )

    # --- waiting calls ---

    def wait(self, call: CallInFlight) -> None:
        """Queue a call that was not read yet, to be started or refused later."""
        self._add_waiting(call)
        self._scheduler.wait(call.queue, call)

    def leave_waiting(self, call: CallInFlight) -> bool:
        """Remove a call that the scheduler has dequeued. False if its connection is lost, so that it must not run."""
        if call not in self._waiting:
            return False
        del self._waiting[call]
        self.count -= 1
        self._bytes -= call.size_bytes
        self.waiting_bytes -= call.size_bytes
        return True

    def _put_off(self, call: CallInFlight) -> None:
        """Queue the rest of a call that was read. It is not refused any more."""
        call.since_s = inf
        self._add_waiting(call)
        self._scheduler.put_off(call.queue, call)

    def _add_waiting(self, call: CallInFlight) -> None:
        self._waiting[call] = None
        self.count += 1
        self._bytes += call.size_bytes
        self.waiting_bytes += call.size_bytes

    # --- calls in flight ---

    def begin(self, call: CallInFlight) -> bytes | None:
        """Read a call and run it, or put it off if it is large; run it if it was put off before.

        Returns the response if the call is not to run. Raises FrameError.
        """
        server, scheduler, queue = self._server, self._scheduler, call.queue
        if call.message:
            refusal = self._read(call)
            work = scheduler.charge(queue, call.element_count, call.size_bytes, call.began_s)
            if refusal is not None:
                return refusal
            if scheduler.is_large(work):
                self._put_off(call)
                return None
        else:
            scheduler.charge_turn(queue)
            self._renew_context(call)
        self._begun_count = call.number = self._begun_count + 1
        if not call.topics_count:
            call.is_counted = True
            scheduler.started(queue)
        self.count += 1
        self._bytes += call.size_bytes
        ended = partial(self._answered, call)
        answering = server.verbs.serve(call.context, call.method, call.request, call.seqid, ended)
        self._in_flight[call] = server.loop.create_task(answering, name=call.method.name)
        return None

    def _read(self, call: CallInFlight) -> bytes | None:
        """Scan, decode and admit a call. Returns the response if it is not admitted. Raises FrameError."""
        server = self._server
        call.began_s = perf_counter()
        try:
            call.method, call.seqid, request, call.element_count = server.codec.decode_call(call.message)
        except UnreadableCallError as error:
            server.metrics.call_finished(error.method_name, error.outcome, 0.0)
            return error.response
        call.request, call.message, call.context = request, b"", self.context
        if (self._link is not None or call.method.name in HANDSHAKE) and not self._is_of_handshake(call):
            return b""
        if call.method is DEQUEUE and request is not None and request.topic_prefix is not None:
            call.element_count = max(1, call.element_count)  # Any topic counts as one.
        if call.method is DEQUEUE and call.element_count and request.wait_ms > 0:
            if self.no_long_polls or call.waits_no_more:
                request.wait_ms = 0
            call.topics_count = call.element_count
            base = self.context
            deadline_s = call.since_s + request.wait_ms / 1000
            call.context = CallContext(
                base.caller,
                deadline_s,
                base.peer,
                principal=base.principal,
                is_permissive=base.is_permissive,
                credential=base.credential,
            )
        refusal = server.admit(call)
        if refusal is None:
            return None
        self.refused_count += 1
        return server.failed(call.method, refusal, call.seqid)

    def _answered(self, call: CallInFlight, answered: Answered | None) -> None:
        """Count a finished call and write its response. The connection ends if the call has none."""
        self._end(call)
        if answered is None:
            call.owner.close()
            return
        metrics, now_s = self._server.metrics, perf_counter()
        if call.topics_count:
            metrics.long_poll_finished(answered.outcome, now_s - call.began_s)
        else:
            metrics.call_finished(call.method.name, answered.outcome, now_s - call.began_s)
        link = call.context.link
        if link is not None and link.host_id:
            self._become_peer(link)
        if call.method is END_WAIT and answered.outcome == OK:
            self._end_wait(call.request.seqid)
        if answered.read_count:  # Charge the items of a page to the queue of the call that asked for it.
            self._scheduler.charge(call.queue, answered.read_count, len(answered.frame), now_s)
        call.owner.answer_call(answered.frame)
        if link is not None and link.refusal is not None:
            call.owner.refuse_peer(link.refusal)

    def _end(self, call: CallInFlight) -> None:
        if self._in_flight.pop(call, None) is not None:
            self.count -= 1
            self._bytes -= call.size_bytes
            self._server.left(call)

    def pass_over_slow_calls(self) -> None:
        """Stop counting calls from before the last sweep as running, because possibly only their shard is sick."""
        for call in [call for call in self._in_flight if call.is_counted and call.number <= self._swept_count]:
            call.is_counted = False
            self._scheduler.ended(call.queue)
        self._swept_count = self._begun_count

    def end_long_polls(self) -> None:
        """Answer the long polls at once, with nothing, and do not let new ones wait."""
        self.no_long_polls = True
        for call, task in list(self._in_flight.items()):
            if call.topics_count:
                self._end_long_poll(call, task)

    def _end_wait(self, seqid: int) -> None:
        """Answer the long poll of this seqid at once, with nothing. If it has not begun to run, it will not wait."""
        for call, task in self._in_flight.items():
            if call.topics_count and call.seqid == seqid:
                self._end_long_poll(call, task)
                return
        for call in self._waiting:
            if call.message and seqid_of(call.message) == seqid:
                call.waits_no_more = True  # The end of its wait is small and can overtake it.
            elif not call.message and call.method is DEQUEUE and call.seqid == seqid:
                call.request.wait_ms = 0

    def _end_long_poll(self, call: CallInFlight, task: asyncio.Task[None], error: FoqsError | None = None) -> None:
        task.add_done_callback(partial(self._long_poll_ended, call, error))
        task.cancel()

    def _long_poll_ended(self, call: CallInFlight, error: FoqsError | None, task: asyncio.Task[None]) -> None:
        if task.cancelled() and call in self._in_flight:
            self._end(call)
            if error is not None:
                call.owner.answer_call(self._server.failed(call.method, error, call.seqid))
                return
            call.owner.answer_call(self._server.codec.encode_reply(call.method, dequeue_response([]), call.seqid))

    # --- the end ---

    def tasks(self) -> list[asyncio.Task[None]]:
        """Return the tasks of the calls in flight."""
        return list(self._in_flight.values())

    def clear(self) -> None:
        """Cancel all calls, because the connection ends. The scheduler skips the waiting ones."""
        waiting, tasks = list(self._waiting), self.tasks()
        let_in = [*self._in_flight, *[call for call in waiting if not call.message]]
        self._waiting.clear()
        self._in_flight.clear()
        for call in waiting:
            call.message = b""
        for call in let_in:
            self._server.left(call)
        self.count = self._bytes = self.waiting_bytes = 0
        self._server.cancel(tasks)


def _overdue_frames(codec: Codec, wait_ms: int) -> Iterator[bytes]:
    """Encode the refusals once. Retry times are spread, so that calls refused together do not come back together."""
    message = f"this host has more calls than it can do: enqueues wait for {wait_ms} ms and more, nothing was done"
    for retry_after_ms in range(wait_ms, 3 * wait_ms + 1, max(1, wait_ms // 8)):
        yield codec.encode_error(ENQUEUE, OverloadedError(message, retry_after_ms=max(1, retry_after_ms)), 0)
