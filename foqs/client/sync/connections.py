"""Blocking sockets: one call at a time on each connection, in a bounded pool. Safe for threads."""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
from collections.abc import Callable, Collection
from typing import Any

from foqs.client.addresses import Address, AddressBook
from foqs.client.client_errors import ClientClosedError, NotSentError, OutcomeUnknownError, check_process
from foqs.client.client_options import IDLE_REUSE_MS_MAX, OWNER_CONNECT_MS_MAX, Options, wall_ms
from foqs.client.dialogue import (
    BrokenDialogueError,
    Dialogue,
    SpeaksTlsError,
    body_bytes,
    leaves_connection_usable,
    outcome_of,
)
from foqs.client.flows import Call, Send, no_answer
from foqs.client.own_tls import OwnTls
from foqs.client.own_token import not_signed_in, renew_at_ms
from foqs.client.sync.late import LateAnswers
from foqs.client.sync.monitor import Flag, Monitor, Places, guarded
from foqs.client.sync.over_tls import begin_tls, has_stray_data
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    OverloadedError,
    PermissionDeniedError,
    UnavailableError,
)
from foqs.wire import codec as wire

_RECEIVE_BYTES = 64 * 1024


class ClientConnection:
    """One socket with one call at a time; its `ConnectionPool` opens and closes it.

    It stays `usable` until it receives anything but a response that the contract declares, see `dialogue`.
    """

    def __init__(
        self,
        sock: socket.socket,
        address: Address,
        clock_ms: Callable[[], int],
        *,
        tls: OwnTls,
        signs_in: bool = False,
    ) -> None:
        """`signs_in` is True for a connection that is of no use before `sign_in`."""
        self._socket = sock
        self.address = address
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        self._timeout_ms = 0
        self._is_exact = False
        self._clock_ms = clock_ms
        self._dialogue = Dialogue()
        self._part = b""
        """Bytes received of an incomplete response."""
        self._tls = tls
        self._is_answered = False
        """True once the host has answered a call."""
        self._is_signed_in = not signs_in
        self.usable = not signs_in
        self.used_at_ms = clock_ms()
        self._renew_at_ms = math.inf
        self.call: Call | None = None
        """The call whose response might still arrive."""
        self.has_sent = False
        """True if the whole frame of that call was sent."""
        self.is_half_closed = False
        """True once the wait for items was ended, so that no more calls can be sent."""

    def sign_in(self, call: Call, timeout_ms: int) -> None:
        """Show the token of the client. Raises PermissionDeniedError, OutcomeUnknownError and NotSentError."""
        step, deadline_at_ms = Send(call, timeout_ms), self._clock_ms() + timeout_ms
        try:
            identity = self.receive(step, self.send(step, deadline_at_ms), deadline_at_ms)
        except InvalidArgumentError as error:
            raise not_signed_in(self.address, error) from error
        self._renew_at_ms = renew_at_ms(identity, wall_ms(), self._clock_ms())
        self.usable = self._is_signed_in = True

    def send(self, step: Send, deadline_at_ms: int) -> int:
        """Send a call and return its seqid. Raises NotSentError."""
        seqid, frame = self._dialogue.frame_of(step.call)
        self.usable = False
        self.has_sent = False
        self.call = step.call
        self._is_exact = step.is_exact
        self._send(frame, deadline_at_ms)
        self.has_sent = True
        return seqid

    def receive(self, step: Send, seqid: int, deadline_at_ms: int) -> Any:
        """Wait for the answer to a sent call. Raises OutcomeUnknownError, or the host's error."""
        call = step.call
        reply = self._receive(step, seqid, deadline_at_ms)
        self.call = None
        try:
            response = outcome_of(reply, call)
        except BrokenDialogueError as error:
            raise OutcomeUnknownError(str(error)) from error
        finally:
            self.used_at_ms = self._clock_ms()
            self.usable = self._is_signed_in and leaves_connection_usable(reply, call)
        return response

    def _send(self, frame: bytes, deadline_at_ms: int) -> None:
        try:
            self._limit_wait(deadline_at_ms)
            self._socket.sendall(frame)
        except OSError as error:
            # A host acts only on complete frames, and the last bytes of this one were not sent.
            self.call = None
            raise NotSentError(f"the connection to {self.address} broke while sending: {error}") from error

    def _receive(self, step: Send, seqid: int, deadline_at_ms: int) -> wire.Reply:
        method = step.call.method
        try:
            reply = self._dialogue.reply_in(self._read_frame(deadline_at_ms))
        except TimeoutError as error:
            raise no_answer(step, self.address) from error
        except OSError as error:
            self.call = None
            if not self._is_answered and (refusal := self._tls.refusal(self.address, error)):
                raise refusal from error
            broken = f"{method}: the connection to {self.address} broke before the answer: {error}"
            raise OutcomeUnknownError(broken) from error
        except SpeaksTlsError as error:
            self.call = None
            raise NotSentError(f"{self.address}: {error}") from error
        except BrokenDialogueError as error:
            self.call = None
            raise OutcomeUnknownError(f"{method}: {self.address} sent no answer of foqs: {error}") from error
        self._is_answered = True
        if reply.seqid != seqid:
            self.call = None
            raise OutcomeUnknownError(f"{method}: the answer has seqid {reply.seqid}, the call {seqid}")
        return reply

    def end_wait(self) -> None:
        """End the host's wait for items, so that it answers at once, by closing this side of the connection."""
        self.is_half_closed = True
        try:
            # Below TLS: another thread possibly reads, and after `SSLSocket.shutdown` the rest would be plain bytes.
            socket.socket.shutdown(self._socket, socket.SHUT_WR)
        except OSError:
            self.usable = False  # Not connected any more.

    def late_response(self, call: Call, wait_ms: int) -> Any:
        """Return the response to an abandoned call, or None if it does not arrive within `wait_ms`."""
        self.end_wait()
        self._is_exact = False
        try:
            reply = self._dialogue.reply_in(self._read_frame(self._clock_ms() + wait_ms))
        except (OSError, BrokenDialogueError):
            return None
        return reply.response if reply.method is not None and reply.method.name == call.method else None

    def _read_frame(self, deadline_at_ms: int) -> bytes:
        while len(self._part) < wire.LENGTH_BYTES:
            self._part += self._socket_bytes(_RECEIVE_BYTES, deadline_at_ms)
        end = wire.LENGTH_BYTES + body_bytes(self._part)
        if len(self._part) < end:
            self._read_rest(end, deadline_at_ms)
        data, self._part = self._part, b""
        if len(data) > end:
            raise BrokenDialogueError(f"{len(data) - end} bytes behind the answer")
        return data[wire.LENGTH_BYTES :]

    def _read_rest(self, end: int, deadline_at_ms: int) -> None:
        chunks, missing = [self._part], end - len(self._part)
        try:
            while missing > 0:
                chunks.append(self._socket_bytes(min(missing, 1 << 20), deadline_at_ms))
                missing -= len(chunks[-1])
        finally:
            self._part = b"".join(chunks)

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
        # Setting the timeout is a system call, so a tenth more is accepted, except before the caller's deadline.
        slack_ms = 0 if self._is_exact else left_ms // 10
        if not left_ms <= self._timeout_ms <= left_ms + slack_ms:
            self._timeout_ms = left_ms + slack_ms // 2
            self._socket.settimeout(self._timeout_ms / 1000)

    def is_stale(self) -> bool:
        """True if the host closed an idle connection, if unexpected bytes arrived, or if its token is about to end."""
        now_ms = self._clock_ms()
        if now_ms - self.used_at_ms > IDLE_REUSE_MS_MAX or now_ms >= self._renew_at_ms:
            return True
        if isinstance(self._socket, ssl.SSLSocket):
            self._timeout_ms = 0  # The next call sets that of the socket.
            return has_stray_data(self._socket, self._poll)
        return bool(self._poll.poll(0))

    def abort(self) -> None:
        """Wake the thread that waits for this connection; that thread closes it."""
        try:
            socket.socket.shutdown(self._socket, socket.SHUT_RDWR)  # See `end_wait`.
        except OSError:
            self.usable = False  # Not connected any more, as intended.

    def close(self) -> None:
        self.usable = False
        self._socket.close()


class _Checkout:
    """Resources of one attempt in the pool: a place, and later its connection."""

    __slots__ = ("connection", "is_given_up", "is_over", "socket")

    def __init__(self) -> None:
        self.connection: ClientConnection | None = None
        self.socket: socket.socket | None = None
        """An open socket without a connection object yet."""
        self.is_given_up = False
        """True if the caller must end its wait for items, because the client is about to be closed."""
        self.is_over = False


class ConnectionPool:
    """The connections of one blocking client, at most `connections_max`; the client owns it. Safe for threads.

    A call has exclusive use of the most recently used connection whose address did not fail recently. If a signal
    handler raises during a call, the call's resources are freed.
    """

    def __init__(self, options: Options, book: AddressBook) -> None:
        self._options = options
        self._book = book
        self._changed = Monitor()
        self._places = Places(options.connections_max, self._changed)
        self._idle: list[ClientConnection] = []
        self._busy: dict[ClientConnection, _Checkout] = {}
        self._process_id = os.getpid()
        self._is_closing = False
        """True once no new wait for items is allowed."""
        self.late = LateAnswers()
        self.closed = Flag()

    @property
    def calls_in_flight_max(self) -> int:
        """Most calls in flight of one `enqueue_many`, because each needs a connection."""
        return self._options.connections_max

    def exchange(self, step: Send) -> Any:
        """Make one attempt of a call within `step.timeout_ms`, including the wait for a connection."""
        check_process(self._process_id)
        checkout = _Checkout()
        was_held = self._changed.is_held()  # A signal handler might call the method that it interrupted.
        try:
            try:
                response = self._exchange(checkout, step)
            finally:
                self._check_in(checkout, was_held)
            if checkout.is_given_up:
                self.late.came(checkout, step.call, response)
                raise ClientClosedError("the client is closed")
            return response
        except BaseException as error:
            if not checkout.is_over:  # A signal interrupted it.
                self._check_in(checkout, was_held)
            if checkout.is_given_up:
                self.late.ended(checkout)
                if isinstance(error, FoqsError):
                    raise ClientClosedError("the client is closed") from error
            raise

    def _exchange(self, checkout: _Checkout, step: Send) -> Any:
        deadline_at_ms = self._options.clock_ms() + step.timeout_ms
        is_wait = step.call.wait_ms > 0
        if not self._places.take(checkout, step.timeout_ms / 1000, is_wait=is_wait, on_full=self._end_wait):
            raise OverloadedError(
                f"all {self._options.connections_max} connections of the client are busy, since {step.timeout_ms} ms: "
                "raise connections_max, since each thread that calls or waits needs one"
            )
        connection = self._take_owners(checkout, deadline_at_ms, step.owner) or self._take(
            checkout, deadline_at_ms, step.avoided
        )
        step.address = connection.address
        if step.call.late is not None:
            self._begin_wait(connection, step.call)
        seqid = connection.send(step, deadline_at_ms)
        if step.call.late is not None:
            self._check_wait(checkout, connection, step.call)
        return connection.receive(step, seqid, deadline_at_ms)

    def _begin_wait(self, connection: ClientConnection, call: Call) -> None:
        with self._changed:
            if self._is_closing:
                raise ClientClosedError("the client is closed")
            connection.has_sent = False
            connection.call = call

    def _check_wait(self, checkout: _Checkout, connection: ClientConnection, call: Call) -> None:
        """End the wait at once if that was requested before the call was sent, when it was not possible yet."""
        with self._changed:
            is_wanted = call.wait_ms and self._options.connections_max == 1 and self._places.is_wanted
            if is_wanted or checkout.is_given_up:
                connection.end_wait()

    def _end_wait(self) -> None:
        """End the wait for items on the only connection, because another call needs it."""
        if self._options.connections_max == 1:
            for connection in list(self._busy):
                if connection.call is not None and connection.call.wait_ms and connection.has_sent:
                    connection.end_wait()

    def _take_owners(self, checkout: _Checkout, deadline_at_ms: int, owner: Address | None) -> ClientConnection | None:
        """Return a connection to the owner of the call's shard, or None if none is available at once."""
        now_ms = self._options.clock_ms
        if owner is None or self._book.is_cooling(owner, now_ms()) or not self._options.token.may_go_to(owner):
            return None
        if connection := self._take_idle(checkout, [owner]):
            return connection
        left_ms = min(self._options.connect_timeout_ms, OWNER_CONNECT_MS_MAX, deadline_at_ms - now_ms())
        if left_ms <= 0:
            return None
        try:
            return self._open(checkout, owner, left_ms)
        except (OSError, UnavailableError, OverloadedError, PermissionDeniedError):
            self._book.failed(owner, now_ms())
            return None

    def _take(self, checkout: _Checkout, deadline_at_ms: int, avoided: Collection[Address]) -> ClientConnection:
        preferred = self._book.preferred(self._options.clock_ms(), avoided)
        return self._take_idle(checkout, preferred) or self._connect(checkout, deadline_at_ms, avoided)

    def _take_idle(self, checkout: _Checkout, addresses: Collection[Address]) -> ClientConnection | None:
        """Return the most recently used idle connection to these addresses that is still open."""
        while True:
            with self._changed:
                self.check_open()
                connection = next((c for c in reversed(self._idle) if c.address in addresses), None)
                if connection is None:
                    return None
                checkout.connection = connection
                self._busy[connection] = checkout
                self._idle.remove(connection)
            if not connection.is_stale():
                return connection
            self._drop(connection)
            checkout.connection = None

    def _connect(self, checkout: _Checkout, deadline_at_ms: int, avoided: Collection[Address]) -> ClientConnection:
        now_ms = self._options.clock_ms
        failures = []
        for address in self._book.candidates(now_ms(), avoided):
            if connection := self._take_idle(checkout, [address]):  # Its address is not preferred.
                return connection
            left_ms = min(self._options.connect_timeout_ms, deadline_at_ms - now_ms())
            if left_ms <= 0:
                failures.append(f"{address}: no time left")
                break
            try:
                return self._open(checkout, address, left_ms)
            except (OSError, UnavailableError, OverloadedError) as error:
                failures.append(f"{address}: {error}")
                self._book.failed(address, now_ms())
        raise NotSentError("no connection: " + "; ".join(failures))

    def _open(self, checkout: _Checkout, address: Address, timeout_ms: int) -> ClientConnection:
        """Make a connection, and sign in. If that fails, the connection is closed."""
        began_ms = self._options.clock_ms()
        checkout.socket = socket.create_connection(address, timeout=timeout_ms / 1000)
        if self._options.tls:
            left_ms = timeout_ms - (self._options.clock_ms() - began_ms)
            checkout.socket = begin_tls(checkout.socket, address, max(1, left_ms), self._options.tls)
        connection = self._admit(checkout, checkout.socket, address)
        if self._options.token:
            try:
                left_ms = timeout_ms - (self._options.clock_ms() - began_ms)
                connection.sign_in(self._options.token.call(), max(1, left_ms))
            except BaseException:
                self._drop(connection)
                checkout.connection = None
                raise
        return connection

    def _admit(self, checkout: _Checkout, sock: socket.socket, address: Address) -> ClientConnection:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = checkout.connection = ClientConnection(
            sock, address, self._options.clock_ms, tls=self._options.tls, signs_in=bool(self._options.token)
        )
        checkout.socket = None
        with self._changed:
            self.check_open()
            self._busy[connection] = checkout
            # The spare one has an address that is not preferred, or was unused for the longest time.
            is_full = len(self._idle) + len(self._busy) > self._options.connections_max
            spare = self._idle.pop(0) if is_full and self._idle else None
        if spare is not None:
            spare.close()
        return connection

    def _check_in(self, checkout: _Checkout, was_held: bool) -> None:
        """Free the resources of an attempt at any stage. Safe to repeat."""
        if not was_held:
            self._changed.drop()
        connection = checkout.connection
        if connection is not None:
            with self._changed:
                holder = self._busy.get(connection)
                # On a repetition, another attempt might have the connection.
                is_ours = holder is checkout or (holder is None and connection not in self._idle)
                if is_ours and connection.usable and not connection.is_half_closed and not self.closed.is_set():
                    if connection not in self._idle:
                        self._idle.append(connection)
                    self._busy.pop(connection, None)
                    is_ours = False
            if is_ours and not self._is_late(connection):
                self._drop(connection)
        elif checkout.socket is not None:
            checkout.socket.close()
        checkout.connection = None
        self._places.leave(checkout)
        checkout.is_over = True

    def _is_late(self, connection: ClientConnection) -> bool:
        """Pass a connection on whose late response might bring items. True if it was passed on. Safe to repeat."""
        call = connection.call
        if call is None or call.late is None or self.closed.is_set() or not self.late.take(connection, call):
            return False
        with self._changed:
            self._busy.pop(connection, None)
        return True

    def _drop(self, connection: ClientConnection) -> None:
        connection.close()
        with self._changed:
            self._busy.pop(connection, None)
            if connection in self._idle:
                self._idle.remove(connection)

    @guarded
    def give_up_waits(self) -> None:
        """End all waits for items, because the client is about to be closed."""
        if self._process_id != os.getpid():
            return
        self._is_closing = True
        for connection, checkout in list(self._busy.items()):
            if connection.call is not None and connection.call.late is not None:
                checkout.is_given_up = True
                self.late.expect(checkout)
                if connection.has_sent:
                    connection.end_wait()

    def check_open(self) -> None:
        if self.closed.is_set():
            raise ClientClosedError("the client is closed")

    def pause(self, pause_ms: int) -> None:
        """Wait between two attempts of a call. Raises ClientClosedError if the client is closed meanwhile."""
        if self.closed.wait(pause_ms / 1000):
            raise ClientClosedError("the client is closed")

    @guarded
    def close(self) -> None:
        """Close the idle connections and abort the busy ones; each call's thread closes its own socket."""
        self.closed.set()
        if self._process_id == os.getpid():  # A fork must not end the calls of its parent process.
            for connection in list(self._busy):
                connection.abort()
        for connection in self._idle:
            connection.close()
        self._idle.clear()
