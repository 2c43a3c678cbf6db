"""Blocking sockets: one call at a time on a connection, a bounded pool of them, safe for threads."""

from __future__ import annotations

import os
import select
import socket
import threading
from collections.abc import Callable, Collection
from typing import Any

from foqs.client.addresses import Address, AddressBook
from foqs.client.dialogue import (
    BrokenDialogueError,
    Dialogue,
    body_bytes,
    leaves_connection_usable,
    outcome_of,
)
from foqs.client.errors import ClientClosedError, NotSentError, OutcomeUnknownError, check_process
from foqs.client.flows import Call, Send, no_answer
from foqs.client.options import IDLE_REUSE_MS_MAX, OWNER_CONNECT_MS_MAX, Options
from foqs.client.sync.late import LateAnswers
from foqs.model.errors import OverloadedError
from foqs.wire import codec as wire

_RECEIVE_BYTES = 64 * 1024


class ClientConnection:
    """One socket with one call at a time; its `ConnectionPool` opens and closes it.

    It is `usable` until anything but a response that the contract declares comes, see `dialogue`.
    """

    def __init__(self, sock: socket.socket, address: Address, clock_ms: Callable[[], int]) -> None:
        self._socket = sock
        self.address = address
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._timeout_ms = 0
        self._is_exact = False
        self._clock_ms = clock_ms
        self._dialogue = Dialogue()
        self._part = b""
        """What has come of a response that nobody waits for any more."""
        self.usable = True
        self.used_at_ms = clock_ms()
        self.call: Call | None = None
        """The call whose response may still come."""
        self.is_given_up = False
        """Whether the caller that waits here is to give up: the client is about to be closed."""

    def exchange(self, step: Send, deadline_at_ms: int) -> Any:
        """Send and wait for the answer. NotSentError, OutcomeUnknownError, or what the host answered."""
        call = step.call
        seqid, frame = self._dialogue.frame_of(call)
        self.usable = False
        self._is_exact = step.is_exact
        self._send(frame, deadline_at_ms)
        self.call = call
        reply = self._receive(step, seqid, deadline_at_ms)
        self.call = None
        try:
            response = outcome_of(reply, call)
        except BrokenDialogueError as error:
            raise OutcomeUnknownError(str(error)) from error
        finally:
            self.used_at_ms = self._clock_ms()
            self.usable = leaves_connection_usable(reply, call)
        return response

    def _send(self, frame: bytes, deadline_at_ms: int) -> None:
        try:
            self._limit_wait(deadline_at_ms)
            self._socket.sendall(frame)
        except OSError as error:
            # A host acts on whole frames only, and the last bytes of this one never left.
            raise NotSentError(f"the connection to {self.address} broke while sending: {error}") from error

    def _receive(self, step: Send, seqid: int, deadline_at_ms: int) -> wire.Reply:
        method = step.call.method
        try:
            reply = self._dialogue.reply_in(self._read_frame(deadline_at_ms))
        except TimeoutError as error:
            raise no_answer(step, self.address) from error
        except OSError as error:
            self.call = None
            broken = f"{method}: the connection to {self.address} broke before the answer: {error}"
            raise OutcomeUnknownError(broken) from error
        except BrokenDialogueError as error:
            self.call = None
            raise OutcomeUnknownError(f"{method}: {self.address} sent no answer of foqs: {error}") from error
        if reply.seqid != seqid:
            self.call = None
            raise OutcomeUnknownError(f"{method}: the answer has seqid {reply.seqid}, the call {seqid}")
        return reply

    def end_wait(self) -> None:
        """Let a host that waits for items with its response answer at once, since nothing more comes from here."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.usable = False  # not connected any more

    def late_response(self, call: Call, wait_ms: int) -> Any:
        """Return the response to a call whose caller has given up; None if none comes within `wait_ms`."""
        self.end_wait()
        self._is_exact = False
        try:
            reply = self._dialogue.reply_in(self._read_frame(self._clock_ms() + wait_ms))
        except (OSError, BrokenDialogueError):
            return None
        return reply.response if reply.method is not None and reply.method.name == call.method else None

    def _read_frame(self, deadline_at_ms: int) -> bytes:
        data, self._part = self._part, b""
        try:
            while len(data) < wire.LENGTH_BYTES:
                data += self._socket_bytes(_RECEIVE_BYTES, deadline_at_ms)
            end = wire.LENGTH_BYTES + body_bytes(data)
        except OSError:
            self._part = data
            raise
        if len(data) < end:
            data = self._read_rest(data, end, deadline_at_ms)
        if len(data) > end:
            raise BrokenDialogueError(f"{len(data) - end} bytes behind the answer")
        return data[wire.LENGTH_BYTES :]

    def _read_rest(self, start: bytes, end: int, deadline_at_ms: int) -> bytes:
        chunks, missing = [start], end - len(start)
        try:
            while missing > 0:
                chunks.append(self._socket_bytes(min(missing, 1 << 20), deadline_at_ms))
                missing -= len(chunks[-1])
        except OSError:
            self._part = b"".join(chunks)
            raise
        return b"".join(chunks)

    def _socket_bytes(self, count: int, deadline_at_ms: int) -> bytes:
        self._limit_wait(deadline_at_ms)
        data = self._socket.recv(count)
        if not data:
            raise ConnectionResetError("closed by the host")
        return data

    def _limit_wait(self, deadline_at_ms: int) -> None:
        left_ms = deadline_at_ms - self._clock_ms()
        if left_ms <= 0:
            raise TimeoutError("the time for the call is over")
        # Setting the timeout is a system call; a tenth more is no matter, unless the caller's deadline is meant.
        slack_ms = 0 if self._is_exact else left_ms // 10
        if not left_ms <= self._timeout_ms <= left_ms + slack_ms:
            self._timeout_ms = left_ms + slack_ms // 2
            self._socket.settimeout(self._timeout_ms / 1000)

    def is_stale(self) -> bool:
        """Whether an idle connection was closed by the host, or has bytes to read that nobody asked for."""
        return self._clock_ms() - self.used_at_ms > IDLE_REUSE_MS_MAX or bool(self._poll.poll(0))

    def abort(self) -> None:
        """Wake the thread that waits for this connection; that thread closes it."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            self.usable = False  # not connected any more, which is what was asked for

    def close(self) -> None:
        self.usable = False
        self._socket.close()


class _Slots:
    """How many calls may have a connection. Calls that wait for items never take the last one, if there are several.

    Where there is but one, a call that waits takes it when no other call wants it.
    """

    def __init__(self, count: int) -> None:
        self._free_count = count
        self._kept_count = min(1, count - 1)
        self._wanting_count = 0
        """Calls that do not wait for items, and want a slot."""
        self._changed = threading.Condition()

    def acquire(self, timeout_s: float, *, is_wait: bool) -> bool:
        with self._changed:
            self._wanting_count += not is_wait
            try:
                is_free = self._changed.wait_for(lambda: self._is_free(is_wait), timeout_s)
                self._free_count -= is_free
            finally:
                self._wanting_count -= not is_wait
                if self._free_count and not self._wanting_count:
                    self._changed.notify_all()
            return is_free

    def _is_free(self, is_wait: bool) -> bool:
        if is_wait:
            return self._free_count > self._kept_count and not self._wanting_count
        return self._free_count > 0

    def release(self) -> None:
        with self._changed:
            self._free_count += 1
            self._changed.notify_all()


class ConnectionPool:
    """The connections of one blocking client, at most `connections_max`; the client owns it. Safe for threads.

    A call takes the connection that was used last, unless its address failed of late, and has it to itself.
    """

    def __init__(self, options: Options, book: AddressBook) -> None:
        self._options = options
        self._book = book
        self._lock = threading.Lock()
        self._slots = _Slots(options.connections_max)
        self._idle: list[ClientConnection] = []
        self._busy: set[ClientConnection] = set()
        self._process_id = os.getpid()
        self.late = LateAnswers()
        self.closed = threading.Event()

    @property
    def calls_in_flight_max(self) -> int:
        """How many calls one `enqueue_many` may have in flight: each needs a connection."""
        return self._options.connections_max

    def exchange(self, step: Send) -> Any:
        """One attempt of one call within `step.timeout_ms`, the wait for a connection included."""
        check_process(self._process_id)
        deadline_at_ms = self._options.clock_ms() + step.timeout_ms
        is_wait = step.call.wait_ms > 0
        if not self._slots.acquire(0, is_wait=is_wait):
            if not is_wait and self._options.connections_max == 1:
                self._end_waits()
            is_free = self._slots.acquire(step.timeout_ms / 1000, is_wait=is_wait)
        else:
            is_free = True
        if not is_free:
            raise OverloadedError(
                f"all {self._options.connections_max} connections of the client are busy, since {step.timeout_ms} ms: "
                "raise connections_max, since each thread that calls or waits needs one"
            )
        try:
            connection = self._take_owners(deadline_at_ms, step.owner) or self._take(deadline_at_ms, step.avoided)
            step.address = connection.address
            response = None
            try:
                response = connection.exchange(step, deadline_at_ms)
            finally:
                is_given_up = self._give_back(connection)
                if is_given_up and response is None:
                    self.late.came(step.call, None)
        finally:
            self._slots.release()
        if is_given_up:
            self.late.came(step.call, response)
            raise ClientClosedError("the client is closed")
        return response

    def _take_owners(self, deadline_at_ms: int, owner: Address | None) -> ClientConnection | None:
        """A connection to the owner of the call's shard; None if there is none and none comes at once."""
        now_ms = self._options.clock_ms
        if owner is None or self._book.is_cooling(owner, now_ms()):
            return None
        if connection := self._take_idle([owner]):
            return connection
        left_ms = min(self._options.connect_timeout_ms, OWNER_CONNECT_MS_MAX, deadline_at_ms - now_ms())
        if left_ms <= 0:
            return None
        try:
            sock = socket.create_connection(owner, timeout=left_ms / 1000)
        except OSError:
            self._book.failed(owner, now_ms())
            return None
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self._admit(ClientConnection(sock, owner, now_ms))

    def _take(self, deadline_at_ms: int, avoided: Collection[Address]) -> ClientConnection:
        preferred = self._book.preferred(self._options.clock_ms(), avoided)
        return self._take_idle(preferred) or self._connect(deadline_at_ms, avoided)

    def _take_idle(self, addresses: Collection[Address]) -> ClientConnection | None:
        """The connection to one of them that was used last, if it still is one."""
        while True:
            with self._lock:
                self.check_open()
                connection = next((c for c in reversed(self._idle) if c.address in addresses), None)
                if connection is None:
                    return None
                self._idle.remove(connection)
                self._busy.add(connection)
            if not connection.is_stale():
                return connection
            connection.close()
            with self._lock:
                self._busy.discard(connection)

    def _connect(self, deadline_at_ms: int, avoided: Collection[Address]) -> ClientConnection:
        now_ms = self._options.clock_ms
        failures = []
        for address in self._book.candidates(now_ms(), avoided):
            if connection := self._take_idle([address]):  # One that was not preferred.
                return connection
            left_ms = min(self._options.connect_timeout_ms, deadline_at_ms - now_ms())
            if left_ms <= 0:
                failures.append(f"{address}: no time left")
                break
            try:
                sock = socket.create_connection(address, timeout=left_ms / 1000)
            except OSError as error:
                failures.append(f"{address}: {error}")
                self._book.failed(address, now_ms())
                continue
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return self._admit(ClientConnection(sock, address, now_ms))
        raise NotSentError("no connection: " + "; ".join(failures))

    def _admit(self, connection: ClientConnection) -> ClientConnection:
        with self._lock:
            is_open = not self.closed.is_set()
            spare: ClientConnection | None = connection
            if is_open:
                self._busy.add(connection)
                # To an address that is not preferred, or not used for the longest time.
                is_full = len(self._idle) + len(self._busy) > self._options.connections_max
                spare = self._idle.pop(0) if is_full and self._idle else None
        if spare is not None:
            spare.close()
        if not is_open:
            raise ClientClosedError("the client is closed")
        return connection

    def _give_back(self, connection: ClientConnection) -> bool:
        """Take a connection back from its call. Returns whether the caller is to give up, whatever has come."""
        with self._lock:
            self._busy.discard(connection)
            call, connection.call = connection.call, None
            if connection.usable and not self.closed.is_set() and not connection.is_given_up:
                self._idle.append(connection)
                return False
        is_late = call is not None and call.late is not None and not self.closed.is_set()
        if not (is_late and call is not None and self.late.take(connection, call)):
            connection.close()
        return connection.is_given_up

    def _end_waits(self) -> None:
        """Let the call that waits with the only connection end its wait: another one needs it."""
        with self._lock:
            for connection in self._busy:
                if connection.call is not None and connection.call.wait_ms:
                    connection.end_wait()

    def give_up_waits(self) -> None:
        """Have those who wait for items give up: the client is about to be closed."""
        if self._process_id != os.getpid():
            return
        with self._lock:
            for connection in self._busy:
                if connection.call is not None and connection.call.late is not None and not connection.is_given_up:
                    connection.is_given_up = True
                    self.late.expect()
                    connection.end_wait()

    def check_open(self) -> None:
        if self.closed.is_set():
            raise ClientClosedError("the client is closed")

    def pause(self, pause_ms: int) -> None:
        """Wait between two attempts of a call. Raises ClientClosedError when the client is closed meanwhile."""
        if self.closed.wait(pause_ms / 1000):
            raise ClientClosedError("the client is closed")

    def close(self) -> None:
        """Close what is idle and abort what is in flight; each call's thread closes its own socket."""
        with self._lock:
            self.closed.set()
            idle, self._idle = self._idle, []
            if self._process_id == os.getpid():  # A fork must not end the calls of the process that it came from.
                for connection in self._busy:
                    connection.abort()
        for connection in idle:
            connection.close()
