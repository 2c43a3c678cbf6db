"""TLS below a connection: a protocol for the socket, and a transport for the connection.

The loops' own TLS hides from a server which connections are in their handshake, and how many bytes a peer has not
taken. So bounds on connections, on time and on memory would not hold. Here the connection is told of everything as it
is without TLS. docs/decisions/0055-tls.md.
"""

from __future__ import annotations

import asyncio
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol, cast

from foqs.model import limits
from foqs.transport.tls.caller_tls import CALLER_TLS, CallerTls, caller_tls
from foqs.transport.tls.contexts import ServerContext
from foqs.transport.tls.handshakes import Handshakes
from foqs.transport.tls.records import RecordMeter

HANDSHAKE_RECORD = 0x16
"""The first byte of every TLS connection. A frame that begins with it would be of 370 MB, which is refused."""
READ_BYTES = 16 * limits.KIB
"""The most that a record has, and so the most that OpenSSL returns at once."""
RECORDS_PER_TURN_MAX = 250
"""Records that one turn of the event loop reads from a connection, in about a millisecond if they are small."""
HELLO_BYTES_MAX = 8 * limits.KIB
"""The most that the first message of a host has. Those of other callers may have more."""
BARE_RECORDS_MAX = 16
"""Bound on records without bytes of the stream that a peer sends after its handshake; one more for each MiB it sends.
A new key is one. Each takes 0.1 ms and an answer, and peers ask for one after gigabytes.
"""
UNENCRYPTED_BYTES_MAX = 64 * limits.KIB
"""Bytes of responses that become one stream of records. More are sent at once."""
HANDSHAKE_BREACH = "tls_handshake"
PLAIN_BREACH = "plain_connection"
RECORD_BREACH = "tls_record"


class Served(Protocol):
    """The connection above the layer."""

    address: str

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes) -> None: ...

    def eof_received(self) -> bool: ...

    def pause_writing(self) -> None: ...

    def resume_writing(self) -> None: ...

    def connection_lost(self, exc: Exception | None) -> None: ...

    def became_plain(self, transport: asyncio.Transport) -> None:
        """The peer speaks no TLS, so the connection has the transport itself from now on."""

    def record_begun(self, buffered_bytes: int, *, is_another: bool) -> None:
        """Count the bytes that are not decrypted yet: mostly those of a record whose rest has not come.

        `is_another` is True if a record has ended since the last time.
        """

    def refuse(self, reason: str, detail: str) -> None: ...


@dataclass(frozen=True, slots=True)
class PortTls:
    """TLS of a server. `context` returns the newest one; plain connections are served too unless `is_required`."""

    context: Callable[[], ServerContext]
    is_required: bool


class TlsDoor:
    """The parts that the layers of one server share."""

    def __init__(
        self,
        handshakes: Handshakes,
        context: Callable[[], ServerContext],
        answer_plain: Callable[[bytes], bytes | None] | None,
        count_handshake: Callable[[str], None],
    ) -> None:
        """`context` returns the newest one. `count_handshake` takes `done`, `failed`, `refused`
        or, for a peer that speaks no TLS, `plain`.

        `answer_plain` is None if plain connections are served as well. Else it returns the answer to a plain peer by
        the first bytes it sent, or None while they are too few.
        """
        self.handshakes = handshakes
        self.context = context
        self.answer_plain = answer_plain
        self.count_handshake = count_handshake


class _Phase(Enum):
    BEGIN = "no byte has come"
    PLAIN_HEAD = "a plain call that is to be refused has begun"
    HANDSHAKE = "the handshake is not over"
    SERVED = "calls are served"
    OVER = "nothing is read any more"


class TlsLayer(asyncio.Protocol):
    """Encrypts and decrypts for one connection. The event loop calls it from below, and the connection from above.

    It reads and writes at once and keeps nothing but what OpenSSL needs, so that a connection which pauses its reading
    stops the peer, and `get_write_buffer_size` counts the bytes of the connection that the peer has not taken.
    """

    def __init__(self, connection: Served, door: TlsDoor) -> None:
        self._connection = connection
        self._door = door
        self._transport: asyncio.Transport = cast(asyncio.Transport, None)
        self._phase = _Phase.BEGIN
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._ssl: ssl.SSLObject = cast(ssl.SSLObject, None)
        self._serving: ServerContext = cast(ServerContext, None)
        self._hello: bytes | None = None
        """The bytes of the first message while it can turn out to be that of a host."""
        self._caller: CallerTls | None = None
        self._meter = RecordMeter()
        self._unread, self._unread_at = b"", 0
        """Bytes that came, and the position of the first of them that OpenSSL was not given."""
        self._has_ended_record = False
        self._bare_records = self._stream_bytes = 0
        self._head = b""
        self._is_paused = self._waits_for_turn = self._has_more_records = False
        self._is_shaken = self._is_kept_at_eof = self._is_delivering = False
        self._unencrypted: list[bytes] = []
        self._unencrypted_bytes = self._unsent_bytes = self._sent_bytes = 0
        """Bytes of the connection, but for `_sent_bytes`, which are those that the transport was given."""
        self._sent: deque[tuple[int, int]] = deque()
        """Pieces that were sent: `_sent_bytes` at the end of each, and its bytes before the encryption."""

    # --- the protocol of the socket ---

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._connection.connection_made(cast(asyncio.Transport, self))

    def data_received(self, data: bytes) -> None:
        if self._phase is _Phase.BEGIN and not self._begin(data):
            return
        if self._phase is _Phase.PLAIN_HEAD:
            self._refuse_plain(data)
        elif self._phase is not _Phase.OVER:
            self._unread, self._unread_at = self._unread[self._unread_at :] + data, 0
            if self._phase is _Phase.SERVED:
                self._read()
            else:
                self._ask_for_turn()

    def eof_received(self) -> bool:
        if self._phase is not _Phase.OVER:
            self._end_handshake("failed")
            self._phase = _Phase.OVER
            self._is_kept_at_eof = self._connection.eof_received()
        if not self._is_kept_at_eof:
            self.close()
        return True  # Closed here, after the end of the stream is sent, or once all calls are answered.

    def pause_writing(self) -> None:
        self._connection.pause_writing()

    def resume_writing(self) -> None:
        self._connection.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake("failed")
        self._phase = _Phase.OVER
        self._unread, self._unread_at = b"", 0
        self._unencrypted.clear()
        connection = self._connection
        # The connection has this layer as its transport. A flood of lost ones would hold the loop as one collection.
        del self._connection
        connection.connection_lost(exc)

    # --- the transport of the connection ---

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the certificates of the connection, or a value of the transport of the socket."""
        return self._caller if name == CALLER_TLS else self._transport.get_extra_info(name, default)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._transport.set_write_buffer_limits(high, low)

    def get_write_buffer_size(self) -> int:
        """Return the bytes that were written and that the peer has not taken, before their encryption.

        At 0 return those of the layer, so that a peer which does not take the end of the stream is turned out as well.
        """
        self._count_taken()
        return self._unsent_bytes or self._transport.get_write_buffer_size()

    def write(self, data: bytes) -> None:
        """Encrypt and send. Responses to calls that came together and are answered at once become one record."""
        if not self._is_shaken or self._transport.is_closing():
            return
        self._unencrypted.append(data)
        self._unencrypted_bytes += len(data)
        self._unsent_bytes += len(data)
        if not self._is_delivering or self._unencrypted_bytes > UNENCRYPTED_BYTES_MAX:
            self._encrypt()

    def is_closing(self) -> bool:
        return self._transport.is_closing()

    def pause_reading(self) -> None:
        self._is_paused = True
        self._read_or_not()

    def resume_reading(self) -> None:
        self._is_paused = False
        self._read_or_not()

    def close(self) -> None:
        """Send all that was written, and the end of the stream, and close."""
        self._end_handshake("failed")
        if self._is_shaken and not self._transport.is_closing():
            self._encrypt()
            with suppress(ssl.SSLError):  # It would wait for the peer's end of the stream.
                self._ssl.unwrap()
            self._send()
        self._phase = _Phase.OVER
        self._transport.close()

    def abort(self) -> None:
        """Close now; unsent bytes are lost."""
        self._end_handshake("failed")
        self._phase = _Phase.OVER
        self._transport.abort()

    # --- the beginning ---

    def _begin(self, data: bytes) -> bool:
        """Choose by the first byte that the peer sends. False if the peer needs no layer."""
        if data[0] == HANDSHAKE_RECORD:
            self._serve(self._door.context())
            self._hello = None if self._serving.host_entry is None else b""
            self._phase = _Phase.HANDSHAKE
        elif self._door.answer_plain is not None:
            self._phase = _Phase.PLAIN_HEAD
        else:
            self._phase = _Phase.OVER
            self._door.count_handshake("plain")
            self._transport.set_protocol(cast(asyncio.Protocol, self._connection))
            self._connection.became_plain(self._transport)
            self._connection.data_received(data)
            return False
        return True

    def _serve(self, serving: ServerContext) -> None:
        self._serving = serving
        self._ssl = serving.context.wrap_bio(self._incoming, self._outgoing, server_side=True)

    def _begins_as_host(self) -> bool:
        """Begin the handshake again if it was broken off because the caller asks for that of hosts."""
        entry, hello = self._serving.host_entry, self._hello
        if entry is None or not entry.is_asked:
            return False
        entry.is_asked, self._hello = False, None
        if hello is None:
            return False
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._incoming.write(hello)
        self._serve(entry.served)
        return True

    def _refuse_plain(self, data: bytes) -> None:
        answer_plain = self._door.answer_plain
        assert answer_plain is not None, "plain connections are not served"
        self._head += data
        answer = answer_plain(self._head)
        if answer is None:
            return  # The rest of the call's head can come until the deadline of the first frame.
        if answer:
            self._transport.write(answer)
        self._phase = _Phase.OVER
        self._connection.refuse(PLAIN_BREACH, "a connection without TLS, where tls = required")

    @property
    def address(self) -> str:
        """The address of the peer."""
        return self._connection.address

    def _ask_for_turn(self) -> None:
        """Have the next step of the handshake done. Nothing more is read before that."""
        self._report_undecrypted()
        if self._phase is not _Phase.HANDSHAKE or self._waits_for_turn:
            return
        self._waits_for_turn = True
        self._read_or_not()
        if not self._door.handshakes.ask(self):
            self.turn_away()

    def turn_away(self) -> None:
        """Refuse the handshake, because too many wait. `Handshakes` calls this as well."""
        self._waits_for_turn = False
        self._end_handshake("refused")
        self._fail(HANDSHAKE_BREACH, "too many handshakes wait")

    def shake(self) -> None:
        """Do the next step of the handshake. `Handshakes` calls this."""
        self._waits_for_turn = False
        if self._phase is not _Phase.HANDSHAKE:
            return
        try:
            is_done = self._take_handshake()
        except ssl.SSLError as error:
            self._send()  # The alert says to the peer why.
            self._end_handshake("failed")
            self._fail(HANDSHAKE_BREACH, _reason_of(error))
            return
        self._send()
        if is_done:
            self._hello = None
            self._caller = caller_tls(self._ssl, self._serving.binding, is_host=self._serving.is_of_hosts)
            self._end_handshake("done")
            self._phase, self._is_shaken = _Phase.SERVED, True
            self._read()
        else:
            self._report_undecrypted()
            if self._unread and self._phase is _Phase.HANDSHAKE:
                self._read_on_soon()
        self._read_or_not()

    def _take_handshake(self) -> bool:
        """Take records of the handshake. True once it is done; later records are not taken."""
        for _ in range(RECORDS_PER_TURN_MAX):
            if not self._feed():
                break
            if self._handshake_is_done():
                return True
        return False

    def _handshake_is_done(self) -> bool:
        """Let OpenSSL continue the handshake. Raises SSLError."""
        try:
            self._ssl.do_handshake()
        except ssl.SSLWantReadError:
            if self._outgoing.pending:  # The first message was answered.
                self._hello = None
            return False
        except ssl.SSLError:
            if not self._begins_as_host():
                raise
            return self._handshake_is_done()
        return True

    def _end_handshake(self, outcome: str) -> None:
        """Count the end of the handshake, if it was not over."""
        if self._phase is _Phase.HANDSHAKE:
            self._door.handshakes.leave(self)
            self._door.count_handshake(outcome)

    # --- reading and writing ---

    def _read_or_not(self) -> None:
        if self._transport.is_closing():
            return
        if self._is_paused or self._waits_for_turn or self._has_more_records:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    def _feed(self) -> bool:
        """Give OpenSSL the next record, or the part of it that has come. False if nothing is left.

        It gets one at a time, because it takes those without bytes of the stream all at once.
        """
        if not self._unread:
            return False
        end = self._meter.end_of_record(self._unread, self._unread_at)
        record = self._unread[self._unread_at : end]
        if self._hello is not None:
            self._hello = self._hello + record if len(self._hello) + len(record) <= HELLO_BYTES_MAX else None
        self._incoming.write(record)
        self._has_ended_record = self._has_ended_record or not self._meter.partial_bytes
        self._unread_at = end
        if end == len(self._unread):
            self._unread, self._unread_at = b"", 0
        return True

    def _report_undecrypted(self) -> None:
        waiting_bytes = len(self._unread) - self._unread_at
        has_ended, self._has_ended_record = self._has_ended_record, False
        kept_bytes = len(self._hello or b"") + self._meter.partial_bytes + waiting_bytes
        self._connection.record_begun(kept_bytes, is_another=has_ended)

    def _read(self) -> None:
        """Give the connection the bytes of up to RECORDS_PER_TURN_MAX records, and the end of the stream."""
        parts: list[bytes] = []
        is_over, broken = False, ""
        try:
            for _ in range(RECORDS_PER_TURN_MAX):
                if is_over or not self._feed():
                    break
                is_over = self._read_record(parts)
                if self._bare_records > BARE_RECORDS_MAX + self._stream_bytes // limits.MIB:
                    broken = "too many records without bytes of the stream"
                    break
        except ssl.SSLError as error:
            broken = _reason_of(error)
        self._send()  # An alert, or the answer to a new key of the peer.
        if parts:
            self._is_delivering = True
            try:
                self._connection.data_received(b"".join(parts))
            finally:
                self._is_delivering = False
            self._encrypt()
        if self._phase is not _Phase.SERVED:
            return
        self._report_undecrypted()
        if broken:
            self._fail(RECORD_BREACH, broken)
        elif is_over:
            self._phase = _Phase.OVER
            self._is_kept_at_eof = self._connection.eof_received()
            if not self._is_kept_at_eof:
                self.close()
        elif self._unread:
            self._read_on_soon()

    def _read_record(self, parts: list[bytes]) -> bool:
        """Take the content of the record that OpenSSL was given. True if it is the end of the stream."""
        try:
            part = self._ssl.read(READ_BYTES)
        except ssl.SSLWantReadError:
            self._bare_records += not self._meter.partial_bytes
            return False
        except ssl.SSLZeroReturnError:
            return True
        if part:
            parts.append(part)
            self._stream_bytes += len(part)
        return not part

    def _read_on_soon(self) -> None:
        if not self._has_more_records:
            self._has_more_records = True
            self._read_or_not()
            asyncio.get_running_loop().call_soon(self._read_on)

    def _read_on(self) -> None:
        self._has_more_records = False
        if self._phase is _Phase.SERVED:
            self._read()
            self._read_or_not()
        elif self._phase is _Phase.HANDSHAKE:
            self._ask_for_turn()

    def _encrypt(self) -> None:
        """Encrypt all that was written, as one stream of records, and send it."""
        if not self._unencrypted or self._transport.is_closing():
            return
        plain = memoryview(b"".join(self._unencrypted))
        plain_bytes = len(plain)
        self._unencrypted.clear()
        self._unencrypted_bytes = 0
        try:
            while plain:
                plain = plain[self._ssl.write(plain) :]
        except ssl.SSLError as error:
            self._fail(RECORD_BREACH, _reason_of(error))
            return
        self._send(plain_bytes)
        self._count_taken()

    def _send(self, plain_bytes: int = 0) -> None:
        if self._outgoing.pending and not self._transport.is_closing():
            data = self._outgoing.read()
            self._sent_bytes += len(data)
            if plain_bytes:
                self._sent.append((self._sent_bytes, plain_bytes))
            self._transport.write(data)

    def _count_taken(self) -> None:
        """Count the pieces that the peer's system has taken whole."""
        taken_bytes = self._sent_bytes - self._transport.get_write_buffer_size()
        while self._sent and self._sent[0][0] <= taken_bytes:
            self._unsent_bytes -= self._sent.popleft()[1]

    def _fail(self, reason: str, detail: str) -> None:
        self._phase = _Phase.OVER
        self._connection.refuse(reason, detail)


def _reason_of(error: ssl.SSLError) -> str:
    """Return OpenSSL's words for the fault. They have no byte of the peer."""
    verified = getattr(error, "verify_message", "")
    return (verified or error.reason or type(error).__name__).lower().replace("_", " ")
