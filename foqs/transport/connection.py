"""One client connection: frames out of bytes, calls out of frames, answers in the order they are ready.

A connection runs up to `calls_in_flight_max` calls at once and answers each when it is done, under the seqid it came
with: a client that pipelines must tell answers by seqid, one that waits for each answer sees no difference. Beyond
that, and while the peer does not take its answers, nothing more is read; nor while others are served (`FairScheduler`).
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from functools import partial
from struct import Struct
from time import perf_counter
from typing import Any, cast

import structlog

from foqs.model import limits
from foqs.model.errors import FoqsError, InvalidArgumentError
from foqs.transport.connection_table import ConnectionTable
from foqs.transport.fair_scheduler import Flow, StandingQueue
from foqs.transport.unframed import UNFRAMED_CALL, answer_unframed
from foqs.transport.verbs import dequeue_response, is_long_poll
from foqs.wire.codec import (
    ENQUEUE,
    LENGTH_BYTES,
    METHODS_BY_NAME_BYTES,
    UNKNOWN_METHOD,
    Method,
    is_enqueue,
    seqid_of_enqueue,
)
from foqs.wire.frame_scan import FrameError, scan_call

_log = structlog.get_logger(__name__)

_u32 = Struct("!I").unpack_from


class Connection(asyncio.Protocol):
    def __init__(self, table: ConnectionTable) -> None:
        self._table = table
        self._limits = table.limits
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self.address = ""
        self._flows: tuple[Flow, Flow] = (("", False), ("", True))
        self._admitted = False
        self._closing = False
        self._half_closed = False

        self._buffer: bytes | bytearray = b""
        """What was received; everything before `_at` is done with."""
        self._at = 0
        self._wanted = 0
        """No frame can be cut before this many bytes from `_at` are there."""
        self.buffered_bytes = 0
        self._reading_paused = False
        self._paused_at: float | None = None
        """Since when others of the address are read, in the loop's time."""
        self._waits_for_turn = False
        self._queue = StandingQueue(self._limits.turn_wait_ms_max)
        self._is_overdue = False
        self._refusals: list[bytes] = []
        """Of this turn: to be written as one."""

        self._awaited = "first_frame"
        self._deadline: float | None = None
        self.partial_since: float | None = None
        self._heard = True
        self._heard_at = 0.0

        self.calls: dict[int, asyncio.Task[None]] = {}
        self._running: dict[int, Flow] = {}
        """Of the calls those that count for their flow in the turns."""
        self._swept_count = 0
        """Calls up to this one had been started at the last sweep."""
        self._long_polls: dict[int, tuple[Method, int, int, int]] = {}
        """Their method, seqid, bytes and count of topics."""
        self._call_count = 0
        self._call_bytes = 0
        """Of the frames of `calls`."""

        self._write_paused = False
        self._written_bytes = 0
        self._taken_bytes = -1
        self._taken_at = 0.0

    # --- asyncio.Protocol ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else "unknown"
        self._flows = ((self.address, False), (self.address, True))
        self._admitted = self._table.admit(self)
        if not self._admitted:
            self._close()
            return
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._transport.set_write_buffer_limits(high=self._limits.write_buffer_bytes_max)
        self._deadline = self._table.loop.time() + self._limits.first_frame_ms_max / 1000

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        self._heard = True
        buffer = self._buffer
        if not buffer and self._is_one_frame(data):
            self._await_nothing()
            try:
                self._start_call(data, LENGTH_BYTES, len(data))
            except FrameError as error:
                self.refuse(error.reason, str(error))
            return
        if buffer:
            if isinstance(buffer, bytes):
                buffer = self._buffer = bytearray(memoryview(buffer)[self._at :])
            else:
                del buffer[: self._at]
            self._at = 0
            buffer += data
            if len(buffer) < self._wanted:
                self._hold()
                return
        else:
            self._buffer = data
        self._cut_frames()

    def eof_received(self) -> bool:
        """Answer what was asked, then close. Nobody may be there any more, so long polls end now, empty."""
        self._half_closed = True
        self._deadline = self.partial_since = None
        if self._buffer:
            self._table.protocol_error(self, "truncated", "the peer closed within a frame")
        for number, (method, seqid, size_bytes, _) in list(self._long_polls.items()):
            call = self.calls[number]
            call.add_done_callback(partial(self._long_poll_ended, number, method, seqid, size_bytes))
            call.cancel()
        return bool(self.calls) or self._reading_paused

    def pause_writing(self) -> None:
        self._write_paused = True

    def resume_writing(self) -> None:
        self._write_paused = False
        self._proceed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        if self._admitted:
            self._table.leave(self)

    # --- what the server asks ---

    def refuse(self, reason: str, detail: str) -> None:
        """Close because of a breach of the protocol or of a bound. Calls in flight are cancelled."""
        if self._closing:
            return
        self._table.protocol_error(self, reason, detail)
        if self.calls:
            self._close()
        else:
            self._take_no_more()
            self._transport.pause_reading()
            self._table.hang_up_soon(self)

    def finish(self) -> None:
        """Close once the answers that were written are sent."""
        self._close()

    def abort(self) -> None:
        """Close now; what is not sent is lost."""
        self._end()
        self._transport.abort()

    def unsent_bytes(self) -> int:
        return self._transport.get_write_buffer_size()

    def check(self, now: float) -> bool:
        """Hold the connection to its deadlines, every sweep. False when this closed it, or soon will."""
        self._pass_over_slow_calls()
        if self._is_write_stalled(now):
            self._table.protocol_error(self, "write_stall", "the peer does not take its answers")
            self.abort()
        elif self._closing:
            return True
        elif self._deadline is not None and now >= self._deadline and self._paused_at is None:
            self.refuse(f"{self._awaited}_deadline", "the rest of the frame did not come in time")
        elif self._heard or self.calls:
            self._heard = False
            self._heard_at = now
        elif now - self._heard_at >= self._limits.idle_ms_max / 1000:
            self._close()
        return not self._closing

    def _pass_over_slow_calls(self) -> None:
        """A call that began before the last sweep waits for a shard that may be sick: others need not wait with it."""
        for number in [number for number in self._running if number <= self._swept_count]:
            self._table.scheduler.ended(self._running.pop(number), 1)
        self._swept_count = self._call_count

    # --- frames ---

    def _is_one_frame(self, data: bytes) -> bool:
        """Whether these are the bytes of one frame, to be served at once: so it is with clients that wait."""
        return (
            len(data) > LENGTH_BYTES
            and _u32(data, 0)[0] == len(data) - LENGTH_BYTES <= self._limits.frame_bytes_max
            and not self._is_full()
            and not self._reading_paused
            and self._table.scheduler.is_free(self._flows[is_enqueue(data, LENGTH_BYTES)], len(data))
        )

    def _is_full(self) -> bool:
        """Whether the peer must first take answers, or wait for some."""
        return (
            len(self.calls) >= self._limits.calls_in_flight_max
            or self._call_bytes >= self._limits.call_bytes_max
            or self._write_paused
        )

    def _cut_frames(self, frames_max: int = 0) -> None:
        """Start the calls that are here whole; `frames_max` of them where it is the connection's turn."""
        data, at, size = self._buffer, self._at, len(self._buffer)
        started = 0
        full, length = False, 0
        while size - at >= LENGTH_BYTES:
            full = self._is_full()
            if full:
                break
            length = _u32(data, at)[0]
            if not 0 < length <= self._limits.frame_bytes_max:
                self._refuse_length(length)
                return
            end = at + LENGTH_BYTES + length
            if end > size:
                break
            flow = self._flows[is_enqueue(data, at + LENGTH_BYTES)]
            if not self._may_start(flow, length, started, frames_max):
                self._waits_for_turn = full = True
                self._queue.began(self._table.loop.time())
                self._table.scheduler.wait(self, flow)
                break
            started += 1
            try:
                if isinstance(data, bytes):
                    self._start_call(data, at + LENGTH_BYTES, end)
                else:
                    self._start_call(bytes(memoryview(data)[at + LENGTH_BYTES : end]), 0, length)
            except FrameError as error:
                self.refuse(error.reason, str(error))
                return
            at = end
        if at != self._at:
            self._await_nothing()
        if not self._waits_for_turn:
            self._queue.ended()
        if at == size:
            self._buffer, self._at = b"", 0
        else:
            self._at = at
            self._await_remainder(size - at, length, full)
        self._hold()
        self._set_reading(not full)

    def _refuse_length(self, length: int) -> None:
        is_unframed = length == UNFRAMED_CALL and self._awaited == "first_frame"
        answer = answer_unframed(self._table.codec, self._buffer, self._at) if is_unframed else b""
        if answer is None:
            self._hold()  # The deadline is that of the first frame.
        else:
            self._write(answer)
            self.refuse("frame_length", f"{length} bytes, not 1..{self._limits.frame_bytes_max}")

    def _may_start(self, flow: Flow, length: int, started: int, frames_max: int) -> bool:
        """Whether one more call may start: `started` of `frames_max` are where it is the connection's turn."""
        scheduler = self._table.scheduler
        if frames_max:
            return started < frames_max and scheduler.has_work_left(flow)
        return scheduler.is_free(flow, length)

    def _await_remainder(self, here_bytes: int, length: int, full: bool) -> None:
        """Set what the frame that is incomplete waits for, and until when. A deadline never moves."""
        if full:
            self._wanted = 0
            self._await_nothing()
        elif here_bytes < LENGTH_BYTES:
            self._wanted = LENGTH_BYTES
            if not self._awaited:
                self._await("header", self._limits.header_ms_max)
        else:
            self._wanted = LENGTH_BYTES + length
            if self._awaited != "body":
                self._await("body", self._limits.body_ms_min + length / self._limits.body_bytes_per_ms_min)
                self.partial_since = self._table.loop.time()

    def _await(self, what: str, allowed_ms: float) -> None:
        now = self._table.loop.time()
        self._awaited = what
        self._deadline = now + allowed_ms / 1000
        if self._paused_at is not None:
            self._paused_at = now  # This deadline waits from now on.

    def _await_nothing(self) -> None:
        self._awaited = ""
        self._deadline = self.partial_since = None

    def _hold(self) -> None:
        buffered_bytes = len(self._buffer) - self._at
        if buffered_bytes != self.buffered_bytes:
            added_bytes = buffered_bytes - self.buffered_bytes
            self.buffered_bytes = buffered_bytes
            self._table.partial_frames.changed(self, added_bytes)

    def _set_reading(self, reading: bool) -> None:
        if reading is self._reading_paused and not self._closing:
            self._reading_paused = not reading
            self._read_or_not()

    def _read_or_not(self) -> None:
        if self._reading_paused or self._paused_at is not None:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def pause(self) -> None:
        """Read nothing more until `resume`: others of the address are before it. Deadlines wait as well."""
        if not self._closing:
            self._paused_at = self._table.loop.time()
            self._read_or_not()

    def resume(self) -> None:
        if self._paused_at is not None and not self._closing:
            now = self._table.loop.time()
            if self._deadline is not None:
                self._deadline += now - self._paused_at
            if self.partial_since is not None:
                self.partial_since += now - self._paused_at
            self._paused_at = None
            self._read_or_not()

    def take_turn(self, frames_max: int) -> None:
        """Start so many calls at most, of the frames that are here."""
        self._waits_for_turn = False
        if self._closing:
            return
        self._is_overdue = self._queue.is_overdue(self._table.loop.time())
        try:
            self._cut_frames(frames_max * limits.TURN_REFUSALS if self._is_overdue else frames_max)
        except Exception as cause:
            _log.error("frame_not_taken", exc_info=cause)
            self._close()
        finally:
            self._is_overdue = False
            if self._refusals:
                self._write(b"".join(self._refusals))
                self._refusals.clear()

    # --- calls ---

    def _start_call(self, data: bytes, start: int, end: int) -> None:
        if self._is_overdue and self._refuse_enqueue(data, start, end):
            return
        began_s = perf_counter()
        name, seqid, body = scan_call(data, start, end)
        size_bytes = end - start
        method = METHODS_BY_NAME_BYTES.get(name)
        if method is None:
            self._table.scheduler.spend(self.address, 0, size_bytes, began_s)
            self._table.metrics.call_finished("unknown", "UNKNOWN_METHOD", 0.0)
            message = f"the contract has no method {name.decode('ascii')}"
            self._write(self._table.codec.encode_application_error(name, UNKNOWN_METHOD, message, seqid))
            return
        try:
            request = self._table.codec.decode_request(method, data[body:end])
        except UnicodeDecodeError:
            self._table.scheduler.spend(self.address, 0, size_bytes, began_s)
            self._fail(method, InvalidArgumentError(f"{method.name}: a string is not valid UTF-8"), seqid)
            return
        batch = getattr(request, method.batch, None) if method.batch and request is not None else None
        element_count = len(batch) if batch else 0
        work = self._table.scheduler.spend(self.address, element_count, size_bytes, began_s)
        waits = is_long_poll(method, request)
        refusal = self._table.refusal(self.address, size_bytes, element_count if waits else 0)
        if refusal is not None:
            self._fail(method, refusal, seqid)
            return
        self._call_count = number = self._call_count + 1
        if waits and self._half_closed:
            request.wait_ms = 0
        if waits:
            self._long_polls[number] = (method, seqid, size_bytes, element_count)
            self._table.long_poll_started(self.address, element_count)
        else:
            self._running[number] = flow = self._flows[method is ENQUEUE]
            self._table.scheduler.started(flow)
        run = self._run(number, method, request, seqid, size_bytes, work)
        self.calls[number] = self._table.loop.create_task(run, name=method.name)
        self._call_bytes += size_bytes
        self._table.call_started(size_bytes)

    def _refuse_enqueue(self, data: bytes, start: int, end: int) -> bool:
        """Answer an enqueue that waited too long, unread: to refuse must cost far less than to do. False for others."""
        seqid = seqid_of_enqueue(data, start, end)
        if seqid is None:
            return False
        self._refusals.append(self._table.refusal_frame(self.address, seqid))
        return True

    async def _run(self, number: int, method: Method, request: Any, seqid: int, size_bytes: int, work: int) -> None:
        began_s = perf_counter()
        try:
            await self._table.scheduler.after_penalty(self.address, work)
            frame, outcome, looked_at_count = await self._table.verbs.answer(method, request, seqid)
            name = "" if number in self._long_polls else method.name
            self._table.call_answered(self.address, name, outcome, began_s, looked_at_count, len(frame))
        except Exception as cause:
            self._forget(number, size_bytes)
            _log.error("call_not_answered", method=method.name, exc_info=cause)
            self._close()
        else:
            self._answer(number, frame, size_bytes)

    def _fail(self, method: Method, error: FoqsError, seqid: int) -> None:
        frame, outcome, _ = self._table.verbs.failed(method, error, seqid)
        self._table.metrics.call_finished(method.name, outcome, 0.0)
        self._write(frame)

    def _long_poll_ended(
        self, number: int, method: Method, seqid: int, size_bytes: int, call: asyncio.Task[None]
    ) -> None:
        if call.cancelled():
            self._answer(number, self._table.codec.encode_reply(method, dequeue_response([]), seqid), size_bytes)

    def _answer(self, number: int, frame: bytes, size_bytes: int) -> None:
        self._forget(number, size_bytes)
        self._write(frame)
        self._proceed()

    def _forget(self, number: int, size_bytes: int) -> None:
        if self.calls.pop(number, None) is not None:
            flow = self._running.pop(number, None)
            if flow is not None:
                self._table.scheduler.ended(flow, 1)
            long_poll = self._long_polls.pop(number, None)
            if long_poll is not None:
                self._table.long_poll_ended(self.address, long_poll[-1])
            self._call_bytes -= size_bytes
            self._table.calls_ended(1, size_bytes)

    def _write(self, frame: bytes) -> None:
        if not self._closing:
            self._written_bytes += len(frame)
            self._transport.write(frame)

    def _proceed(self) -> None:
        """A call ended or the peer took answers: go on with what waited for that."""
        if self._closing:
            return
        if self._reading_paused and not self._waits_for_turn:
            self._cut_frames()
        if self._half_closed and not self.calls and not self._reading_paused:
            self._close()

    # --- the end ---

    def _is_write_stalled(self, now: float) -> bool:
        unsent_bytes = self.unsent_bytes()
        taken_bytes = self._written_bytes - unsent_bytes
        if not unsent_bytes or taken_bytes != self._taken_bytes:
            self._taken_bytes = taken_bytes
            self._taken_at = now
            return False
        return now - self._taken_at >= self._limits.write_stall_ms_max / 1000

    def _close(self) -> None:
        self._end()
        self._transport.close()

    def _take_no_more(self) -> None:
        self._closing = True
        self._deadline = self.partial_since = None
        self._buffer, self._at = b"", 0
        self._hold()

    def _end(self) -> None:
        self._take_no_more()
        calls = list(self.calls.values())
        self._table.calls_ended(len(calls), self._call_bytes)
        for flow, count in Counter(self._running.values()).items():
            self._table.scheduler.ended(flow, count)
        self._running.clear()
        for long_poll in self._long_polls.values():
            self._table.long_poll_ended(self.address, long_poll[-1])
        self._call_bytes = 0
        self.calls.clear()
        self._long_polls.clear()
        self._table.cancel(calls)
