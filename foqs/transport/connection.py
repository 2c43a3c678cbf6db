"""One client connection: its bytes become calls, and responses are written in the order in which the calls end.

A connection has up to `calls_in_flight_max` calls at once and answers each under its own seqid. A client that pipelines
must match responses by seqid; one that waits for each response sees no difference. Reading stops while the connection
has no room for another call, or the peer does not take its responses.
"""

from __future__ import annotations

import asyncio
import socket
from typing import cast

import structlog

from foqs.model.peer_proof import PeerRefusedError
from foqs.transport.call_table import CallInFlight, CallTable
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.entrance import Entrance
from foqs.transport.fair_scheduler import NO_TENANT
from foqs.transport.tls.caller_tls import CALLER_TLS
from foqs.transport.unframed import HEAD_BYTES_MAX, answer_unframed
from foqs.wire.codec import ENQUEUE, LENGTH_BYTES, METHODS_BY_NAME_BYTES, seqid_of
from foqs.wire.frames import (
    FRAME_LENGTH,
    LOGIN_FRAME,
    FrameCutter,
    FrameDeadline,
    FrameError,
    FramePart,
    peek_call,
    says_bulk,
)

_log = structlog.get_logger(__name__)


class Connection(asyncio.Protocol):
    """Joins the socket of a client, the frames in its bytes, the scheduler and the calls. asyncio calls it.

    It owns the received bytes that are not read as a call yet. The ConnectionTable admits it, makes it check its
    deadlines and ends it; PartialFrames makes it `pause` and `resume` reading; the scheduler starts or refuses its
    calls.
    """

    def __init__(self, table: ConnectionTable, entrance: Entrance | None = None) -> None:
        self._table = table
        self.entrance = entrance = entrance or table.entrances[0]
        self._loop = table.loop
        self._limits = table.limits
        self._scheduler = table.scheduler
        self._namespaces = table.namespaces
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.address = ""
        self.calls = CallTable(table.calls, entrance)
        self._admitted = False
        self._closing = False
        self._half_closed = False

        self._cutter = FrameCutter()
        self._deadline = FrameDeadline(self._limits.frame_times, self._loop.time())
        self.buffered_bytes = 0
        """Bytes of an incomplete frame, or of calls that wait to be read."""
        self._is_full = False
        """True while reading is stopped until calls end or the peer takes responses."""
        self._backlog_since_s: float | None = None
        """The time since which buffered calls have been waiting behind other waiting calls."""
        self._record_bytes = 0
        """Bytes of a TLS record whose rest has not come."""
        self._record_since_s = 0.0
        self._has_received = True
        self._received_at_s = 0.0

        self._write_paused = False
        self._written_bytes = 0
        self._taken_bytes = -1
        self._taken_at_s = 0.0

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "unknown"
        self._admitted = self._table.admit(self)
        if not self._admitted:
            self.close()
            return
        self.calls.open(self.address)
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._has_received = True
        self._take_frames(data)

    def eof_received(self) -> bool:
        """Answer all calls, then close. The peer has possibly left, so long polls end now with an empty answer."""
        self._half_closed = True
        self._deadline.await_nothing()
        if self._cutter.buffered_bytes and not self._is_full:
            self._table.protocol_error(self, "truncated", "the peer closed within a frame")
        self.calls.end_long_polls()
        return bool(self.calls.count) or self._is_full

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._admitted:
            self.calls.sign_in.close()
            self._table.leave(self)

    def became_plain(self, transport: asyncio.Transport) -> None:
        """Use the transport of the socket, because the peer speaks no TLS."""
        self._transport = transport

    def record_begun(self, buffered_bytes: int, *, is_another: bool) -> None:
        """Count the bytes of TLS records that are not decrypted yet as those of a partial frame; 0 between records.

        The rest of a record has a deadline, because its bytes are kept meanwhile. `is_another` is True if a record has
        ended since the last time, so a peer whose bytes keep coming has the time anew for each one.
        """
        if not self._closing and (is_another or buffered_bytes != self._record_bytes):
            if is_another or not self._record_bytes:
                self._record_since_s = self._loop.time()
            self._record_bytes = buffered_bytes
            self._count_buffered(has_progressed=False)

    # --- frames ---

    def _take_frames(self, data: bytes = b"") -> None:
        """Read the complete calls, or queue them, while there is room for more."""
        cutter, calls = self._cutter, self.calls
        has_taken = is_full = False
        sign_in = calls.sign_in
        at_once = sign_in.at_once
        try:
            if data:
                cutter.feed(data)
                if not sign_in.is_settled:
                    calls.settle(self._transport.get_extra_info(CALLER_TLS))
            while cutter.buffered_bytes:
                is_full = self._write_paused or (calls.count > 0 and not calls.has_room())
                message = None if is_full else cutter.next_message(sign_in.frame_bytes_max)
                if message is None:
                    break
                has_taken = True
                name, namespace = peek_call(message)
                if name in at_once or sign_in.is_barred:
                    answer = calls.answer_at_once(name, message)
                    if answer is not None:
                        self._write(answer)
                        continue
                tenant = self._namespaces.number_by_name.get(namespace, NO_TENANT)
                if tenant != NO_TENANT and not sign_in.holds_in(namespace, tenant):
                    tenant = NO_TENANT  # It will be refused, and takes no turn of those whose namespace it is.
                is_enqueue = name == ENQUEUE.name_bytes
                is_bulk = is_enqueue and says_bulk(message)
                queue = self._scheduler.queue_of(tenant, calls.caller_of(self.address, message), is_enqueue, is_bulk)
                backlog_since_s = self._backlog_since_s
                since_s = self._loop.time() if backlog_since_s is None else backlog_since_s
                call = CallInFlight(self, queue, message, since_s, len(message))
                if backlog_since_s is not None or not self._scheduler.may_start(queue):
                    calls.wait(call)
                elif (response := calls.begin(call)) is not None:
                    self._write(response)
                if self._closing:
                    return
        except FrameError as error:
            self._refuse_frame(error)
            return
        if cutter.buffered_bytes or is_full or self._deadline.awaited is not None:
            self._await_rest(has_taken, is_full)
        if cutter.buffered_bytes or calls.waiting_bytes or self.buffered_bytes:
            self._count_buffered(has_progressed=has_taken)
        if is_full is not self._is_full and not self._closing:
            self._is_full = is_full
            self._backlog_since_s = self._loop.time() if is_full and calls.waiting_bytes else None
            self._read_or_not()

    def _await_rest(self, has_taken: bool, is_full: bool) -> None:
        """Set the deadline for the rest of an incomplete frame, or clear it."""
        cutter, deadline = self._cutter, self._deadline
        if (has_taken or is_full) and deadline.awaited is not None:
            deadline.await_nothing()
        if cutter.buffered_bytes and not is_full:
            deadline.await_part(cutter.missing(), cutter.body_bytes(), self._loop.time())

    def _refuse_frame(self, error: FrameError) -> None:
        if error.reason == FRAME_LENGTH and self._deadline.awaited is FramePart.FIRST_FRAME:
            response = answer_unframed(self._table.codec, self._cutter.head(HEAD_BYTES_MAX))
            if response is None:
                self._count_buffered()  # The rest of the call's head can come until the deadline of the first frame.
                return
            self._write(response)
        if error.reason == LOGIN_FRAME:
            try:
                self._write(self._refusal_of_next())
            except FrameError as beyond:  # Its address was refused too often, so it gets no answer.
                error = beyond
        self.refuse(error.reason, str(error))

    def _refusal_of_next(self) -> bytes:
        """The answer to a call that is too large to come from a caller without a login, by the name in its head."""
        message = self._cutter.head(LENGTH_BYTES + HEAD_BYTES_MAX)[LENGTH_BYTES:]
        method = METHODS_BY_NAME_BYTES.get(peek_call(message)[0])
        return b"" if method is None else self.calls.sign_in.refuse(method, seqid_of(message))

    def _count_buffered(self, *, has_progressed: bool = True) -> None:
        buffered_bytes = self._cutter.buffered_bytes + self.calls.waiting_bytes + self._record_bytes
        added_bytes = buffered_bytes - self.buffered_bytes
        if added_bytes:
            self.buffered_bytes = buffered_bytes
            self._table.partial_frames.changed(self, added_bytes, has_progressed=has_progressed)

    # --- calls ---

    def start_call(self, call: CallInFlight) -> None:
        """Read a queued call, or run one that was read before. The scheduler calls this in the call's turn."""
        if not self.calls.leave_waiting(call):
            return
        try:
            if (response := self.calls.begin(call)) is not None:
                self._write(response)
            self._count_buffered()
            self._proceed()
        except FrameError as error:
            self.refuse(error.reason, str(error))
        except Exception as cause:
            _log.error("frame_not_taken", caller=self.address, exc_info=cause)
            self.close()

    def refuse_call(self, call: CallInFlight) -> None:
        """Refuse an enqueue that waited too long, unread, because that must cost far less than to run it."""
        if not self.calls.leave_waiting(call):
            return
        self._write(self._table.calls.refusal_frame(call.message))
        self._count_buffered()
        self._proceed()

    def answer_call(self, frame: bytes) -> None:
        """Write the response of a call that has ended."""
        if not self._closing:
            self._written_bytes += len(frame)
            self._transport.write(frame)
            if self._is_full or self._half_closed or self.calls.sign_in.is_dead:
                self._proceed()

    def _proceed(self) -> None:
        """Continue with everything that waited for a call to be taken or to end, or for the peer to take responses."""
        if self._closing:
            return
        if self._is_full:
            self._take_frames()
        is_over = self._half_closed or self.calls.sign_in.is_dead
        if is_over and not self.calls.count and not self._is_full:
            self.close()

    # --- reading and writing ---

    def pause(self) -> None:
        """Stop reading until `resume`, because other connections of the address come first. Suspends deadlines too."""
        if not self._closing:
            self._deadline.pause(self._loop.time())
            self._read_or_not()

    def resume(self) -> None:
        if self._deadline.is_paused and not self._closing:
            self._deadline.resume(self._loop.time())
            self._read_or_not()

    @property
    def partial_since_s(self) -> float | None:
        """The time at which the incomplete frame began, in the loop's time."""
        since_s = self._deadline.partial_since_s
        return self._record_since_s if since_s is None and self._record_bytes else since_s

    def _read_or_not(self) -> None:
        if self._is_full or self._deadline.is_paused:
            self._transport.pause_reading()
        else:
            self._record_since_s = self._loop.time()
            self._transport.resume_reading()

    def _write(self, frame: bytes) -> None:
        if not self._closing:
            self._written_bytes += len(frame)
            self._transport.write(frame)

    def unsent_bytes(self) -> int:
        """Return the bytes of responses that the peer has not taken."""
        return self._transport.get_write_buffer_size()

    # --- deadlines and ends ---

    def check(self, now_s: float) -> bool:
        """Hold the connection to its deadlines, every sweep. False if this closed it, or soon will."""
        self.calls.pass_over_slow_calls()
        self.calls.follow_identity()
        if self._is_write_stalled(now_s):
            self._table.protocol_error(self, "write_stall", "the peer does not take its responses")
            self.abort()
        elif self._closing:
            return True
        elif self._deadline.is_over(now_s):
            awaited = self._deadline.awaited
            assert awaited is not None, "there is a deadline"
            self.refuse(f"{awaited.value}_deadline", "the rest of the frame did not come in time")
        elif self._is_record_late(now_s):
            self.refuse("record_deadline", "the rest of a TLS record did not come in time")
        elif (refusal := self.calls.refusal(now_s)) is not None:
            self.refuse_peer(refusal)
        elif self.calls.sign_in.is_late(now_s):
            self.refuse("login_deadline", "it has shown no credential in time, and access is enforced")
        elif self.calls.sign_in.is_dead and not self.calls.count:
            self.close()
        elif self._has_received or self.calls.count:
            self._has_received = False
            self._received_at_s = now_s
        elif now_s - self._received_at_s >= self._limits.idle_ms_max / 1000:
            self.close()
        return not self._closing

    def _is_record_late(self, now_s: float) -> bool:
        if not self._record_bytes or self._is_full or self._deadline.is_paused:
            return False
        if self._deadline.awaited is FramePart.FIRST_FRAME:
            return False  # That deadline holds for the handshake too, which can wait for its turn.
        return now_s - self._record_since_s >= self._limits.frame_times.header_ms_max / 1000

    def _is_write_stalled(self, now_s: float) -> bool:
        unsent_bytes = self.unsent_bytes()
        taken_bytes = self._written_bytes - unsent_bytes
        if not unsent_bytes or taken_bytes != self._taken_bytes:
            self._taken_bytes = taken_bytes
            self._taken_at_s = now_s
            return False
        return now_s - self._taken_at_s >= self._limits.write_stall_ms_max / 1000

    def refuse(self, reason: str, detail: str) -> None:
        """Close the connection for a breach of the protocol or of a bound. Calls are cancelled."""
        if self._closing:
            return
        self._table.protocol_error(self, reason, detail)
        self._turn_out()

    def refuse_peer(self, refusal: PeerRefusedError) -> None:
        """Close the connection, because its caller falsely claimed to be a host of the cluster."""
        if self._closing:
            return
        self._table.peer_refused(self, refusal)
        self._turn_out()

    def _turn_out(self) -> None:
        if self.calls.count:
            self.close()
        else:
            self._take_no_more()
            self._transport.pause_reading()
            self._table.hang_up_soon(self)

    def close(self) -> None:
        """Close once the written responses are sent. Calls are cancelled."""
        self._end()
        self._transport.close()

    def abort(self) -> None:
        """Close now; unsent bytes are lost."""
        self._end()
        self._transport.abort()

    def _take_no_more(self) -> None:
        self._closing = True
        self._deadline.await_nothing()
        self._cutter.clear()
        self._record_bytes = 0
        self._count_buffered()

    def _end(self) -> None:
        self.calls.clear()
        self._take_no_more()
