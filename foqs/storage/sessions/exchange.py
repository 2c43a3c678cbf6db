"""The exchange with a MySQL server: many statements in one round trip, sent and answered on the event loop.

pymysql opens a session, and does all rare work on it. It reads an answer on a blocking thread, which has to take the
interpreter's lock back for every piece: up to 5 ms each on a busy host, several times per transaction. So a transaction
is sent as a whole, its COMMIT included, and its answer is read here (docs/decisions/0008-transactions-on-the-loop.md).
Answers have the form of MySQL's text protocol,
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response.html, with its EOF packets.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum, auto
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from pymysql.constants import COMMAND, CR, FIELD_TYPE, SERVER_STATUS
from pymysql.err import Error, OperationalError, raise_mysql_exception

from foqs.model import limits

AFTER_ERROR_MS_MAX = 1 * limits.SECOND_MS
"""Timeout for the remaining responses after a failed statement. The host then abandons the session."""

Row = tuple[Any, ...]
Rows = list[Row]

HEADER_BYTES: Final = 4
PACKET_BYTES_MAX: Final = 0xFF_FFFF
"""A packet of this length is continued by the next one, which neither side needs here."""
_HEAD: Final = Struct("<IB").pack
"""Packs the head of a packet: its length with the command, sequence number 0, and the command."""
_RECEIVE_BYTES: Final = 64 * limits.KIB
_LEAVE_S_MAX: Final = 10.0
"""Timeout, in seconds, of a thread that waits for the event loop to leave a session."""
_WOULD_BLOCK: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
_OK: Final = 0x00
_EOF: Final = 0xFE
_EOF_BYTES_MAX: Final = 8
_ERROR: Final = 0xFF
_NULL: Final = 0xFB
_LENGTH_BYTES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""The size of a length that does not fit into one byte, by its first byte."""
_INTEGER_TYPES: Final = frozenset(
    {FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG}
)

_u16 = Struct("<H").unpack_from


def command_packet(command: int, body: bytes) -> bytes:
    """Return the packet of a command."""
    assert len(body) + 1 < PACKET_BYTES_MAX, "a statement has at most a row more than limits.STATEMENT_BYTES_MAX"
    return _HEAD(len(body) + 1, command) + body


async def run_script(
    session: Any, statements: Sequence[str], results: list[Rows] | None = None, ahead: Sequence[bytes] = ()
) -> list[Rows]:
    """Run the statements in order, limits.PACKET_BYTES_MAX per round trip; return the rows of each.

    The server stops at the first statement that fails, so a COMMIT at the end means that all earlier ones succeeded.
    `ahead`: packets of commands without rows, sent with the first statements and run before them. A failing command
    does not stop the statements, which have to check for it; its error is raised all the same.
    `results` grows as the answers come, so after a failure it has those of the earlier statements.
    Raises pymysql's errors. No other code may use the session meanwhile, and it is useless after a cancelled call.
    """
    results = [] if results is None else results
    exchange: Exchange | None = session.exchange
    if exchange is None or not exchange.is_on_this_loop:
        exchange = session.exchange = Exchange(session._sock)
    for query in _queries(statements):
        packets = [*ahead, command_packet(COMMAND.COM_QUERY, query)]
        ahead = ()
        reader = ReplyReader(len(packets))
        try:
            await exchange.run(packets, reader)
        finally:
            results += reader.results
    return results


def _queries(statements: Sequence[str]) -> Iterator[bytes]:
    start = size_bytes = 0
    for position, statement in enumerate(statements):
        if size_bytes and size_bytes + len(statement) > limits.PACKET_BYTES_MAX:
            yield ";".join(statements[start:position]).encode()
            start, size_bytes = position, 0
        size_bytes += len(statement) + 1
    if size_bytes:
        yield ";".join(statements[start:]).encode()


class Exchange:
    """Commands and their answers on the event loop, over the socket of a session that pymysql has opened.

    `run_script` makes one for a session and reuses it. The loop reads the socket from then on, until the session is
    lost, or `leave_loop` is called before another use of the session.

    A TLS socket can have bytes that no poll reports, so it is read until it would block. Any other socket is read again
    when the loop reports it, unless a read has filled the buffer. Answers are read while commands are sent, because
    otherwise the two sides could wait for each other.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.lost = ""
        """The reason why the session is lost; empty while it works."""
        self._loop = asyncio.get_running_loop()
        self._thread_id = threading.get_ident()
        self._sock = sock
        self._is_tls = isinstance(sock, ssl.SSLSocket)
        self._received = memoryview(bytearray(_RECEIVE_BYTES))
        self._unsent = memoryview(b"")
        self._awaits_room = False
        """True while the loop calls `_write` once the socket has room."""
        self._reader = ReplyReader(0)
        self._answered: asyncio.Future[None] | None = None
        """Done when the running commands are answered; None if no command runs."""
        self._timer: asyncio.TimerHandle | None = None
        self._deadline_s = 0.0
        self._unasked = select.poll()
        """Polls the socket for unasked bytes, or its end."""
        self._unasked.register(sock, select.POLLIN)
        self._sock.setblocking(False)
        self._loop.add_reader(sock, self._read)

    @property
    def is_on_this_loop(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    def has_ended(self) -> bool:
        """True if the session is lost, or its server has ended it. Ask only while no command runs."""
        # The only unasked data from a server is a notice of the session's end.
        return bool(self.lost) or bool(self._unasked.poll(0))

    async def run(self, packets: Sequence[bytes], reader: ReplyReader) -> None:
        """Send the commands, and return when `reader` has their answers.

        Raises pymysql's errors; CR_SERVER_GONE_ERROR means that nothing was sent.
        """
        if not self.lost:
            if self._sock.gettimeout() != 0:
                self._sock.setblocking(False)  # pymysql has used it meanwhile.
            if self._unasked.poll(0):
                # After a pause of this process, the loop can report the end of the session late.
                self._read()
        if self.lost:
            raise OperationalError(CR.CR_SERVER_GONE_ERROR, self.lost)
        loop = self._loop
        self._reader, self._unsent = reader, memoryview(b"".join(packets))
        self._answered = loop.create_future()
        self._deadline_s = loop.time() + limits.STATEMENT_MS_MAX / 1000
        self._timer = loop.call_later(limits.STATEMENT_MS_MAX / 1000, self._time_out)
        self._write()
        try:
            await self._answered
        except asyncio.CancelledError:
            self._lose("its caller has given up, and its answer is still to come")
            raise
        finally:
            self._answered = None
            self._timer.cancel()
            if self._awaits_room:
                self._await_room(False)

    def leave_loop(self) -> None:
        """Make the event loop leave the socket, and wait until it has; any thread may call it. Raises TimeoutError."""
        if threading.get_ident() == self._thread_id or not self._loop.is_running():
            self._leave()
            return
        has_left = threading.Event()

        def leave() -> None:
            self._leave()
            has_left.set()

        self._loop.call_soon_threadsafe(leave)
        if not has_left.wait(_LEAVE_S_MAX):
            raise TimeoutError(f"the event loop has not left the session within {_LEAVE_S_MAX} s")

    def _leave(self) -> None:
        if self._sock.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(self._sock)
            self._await_room(False)

    def _write(self) -> None:
        try:
            sent_bytes = self._sock.send(self._unsent)
            self._unsent = self._unsent[sent_bytes:]
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            self._lose(str(error))
            return
        if self._unsent or self._awaits_room:
            self._await_room(bool(self._unsent))

    def _await_room(self, wanted: bool) -> None:
        if wanted is not self._awaits_room:  # The loop makes a system call each time, even without a change.
            self._awaits_room = wanted
            if wanted:
                self._loop.add_writer(self._sock, self._write)
            else:
                self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        """Read from the socket. Data without a running command means the end of the session."""
        reader = self._reader
        try:
            while True:
                size = self._sock.recv_into(self._received)
                if not size:
                    self._lose("the server closed the session")
                    return
                if self._answered is None:
                    self._lose("the server said something that nobody had asked for")
                    return
                reader.feed(bytes(self._received[:size]))
                if reader.done:
                    break
                if reader.error is not None:
                    self._hurry_after_error()
                if size < _RECEIVE_BYTES and not self._is_tls:
                    return
        except _WOULD_BLOCK:
            return
        except (OSError, AnswerError) as error:
            self._lose(str(error))
            return
        except Error as error:
            self._end(error)
            return
        self._end(None)

    def _hurry_after_error(self) -> None:
        """Shorten the timeout, because each command behind the failed one can wait for the same lock in turn."""
        assert self._timer is not None
        self._timer.cancel()
        left_s = self._deadline_s - self._loop.time()
        self._timer = self._loop.call_later(min(left_s, AFTER_ERROR_MS_MAX / 1000), self._time_out)

    def _time_out(self) -> None:
        error = self._reader.error
        if error is None:
            self._lose(f"no answer in {limits.STATEMENT_MS_MAX} ms")
        else:
            self._lose(f"no answer in {AFTER_ERROR_MS_MAX} ms after {error}")

    def _lose(self, reason: str) -> None:
        self.lost = reason
        self._leave()
        self._end(OperationalError(CR.CR_SERVER_LOST, reason))

    def _end(self, error: Exception | None) -> None:
        """End the running commands, if any."""
        answered = self._answered
        if answered is None or answered.done():
            return
        if error is None:
            answered.set_result(None)
        else:
            answered.set_exception(error)


class AnswerError(Exception):
    """The bytes are no valid answer, so the session cannot be read any further."""


class _Next(Enum):
    RESULT = auto()
    COLUMNS = auto()
    END_OF_COLUMNS = auto()
    ROWS = auto()


class ReplyReader:
    """Collects the rows of every statement of the last answered command in `results`.

    Integers are int, NULL is None, all else bytes. A failing command does not stop those sent after it, so their
    answers are read before the first error is raised.
    """

    __slots__ = ("_column_count", "_commands_left", "_integers", "_next", "_rest", "_rows", "done", "error", "results")

    def __init__(self, command_count: int = 1) -> None:
        self.results: list[Rows] = []
        self.done = False
        self._commands_left = command_count
        self.error: Error | None = None
        """The first error that the server answered."""
        self._rest = b""
        self._next = _Next.RESULT
        self._column_count = 0
        self._integers: list[bool] = []
        """True for each column that holds integers."""
        self._rows: Rows = []

    def feed(self, chunk: bytes) -> None:
        """Parse a chunk. Raises AnswerError, or at the end the pymysql.err.Error that the server answered first."""
        data = self._rest + chunk if self._rest else chunk
        at, size = 0, len(data)
        while size - at >= HEADER_BYTES:
            length = data[at] | data[at + 1] << 8 | data[at + 2] << 16
            end = at + HEADER_BYTES + length
            if end > size:
                break
            if length == PACKET_BYTES_MAX:
                raise AnswerError(f"a packet of {length} bytes or more, which no row here has")
            try:
                self._packet(data, at + HEADER_BYTES, end)
            except (IndexError, KeyError, ValueError, struct_error) as error:
                raise AnswerError(f"a packet that is not of the protocol: {error!r}") from error
            at = end
        self._rest = data[at:]
        if self.done and self.error is not None:
            raise self.error

    def _packet(self, data: bytes, at: int, end: int) -> None:
        kind = data[at]
        if kind == _ERROR:
            self._end_failed_command(data[at:end])
        elif self._next is _Next.ROWS:
            if kind == _EOF and end - at <= _EOF_BYTES_MAX:
                self._end_result(_u16(data, at + 3)[0])
            else:
                self._rows.append(_row(data, at, self._integers))
        elif self._next is _Next.COLUMNS:
            self._integers.append(_column_type(data, at) in _INTEGER_TYPES)
            if len(self._integers) == self._column_count:
                self._next = _Next.END_OF_COLUMNS
        elif self._next is _Next.END_OF_COLUMNS:
            self._next = _Next.ROWS
        elif kind == _OK:
            # The count of rows and the id of the last one, which usually fit into a byte each; then the status.
            is_short = data[at + 1] < _NULL and data[at + 2] < _NULL
            status_at = at + 3 if is_short else _length(data, _length(data, at + 1)[1])[1]
            self._end_result(_u16(data, status_at)[0])
        elif kind >= _NULL:
            raise AnswerError("a request for a file of this machine, which no server gets, or no answer at all")
        else:
            self._column_count, self._integers = kind, []
            self._next = _Next.COLUMNS

    def _end_result(self, status: int) -> None:
        self.results.append(self._rows)
        self._rows = []
        self._next = _Next.RESULT
        if not status & SERVER_STATUS.SERVER_MORE_RESULTS_EXISTS:
            self._end_command()

    def _end_failed_command(self, answer: bytes) -> None:
        try:
            raise_mysql_exception(answer)
        except Error as error:
            self.error = self.error or error
        self._rows = []
        self._next = _Next.RESULT
        self._end_command()

    def _end_command(self) -> None:
        self._commands_left -= 1
        if self._commands_left:
            self.results.clear()
        else:
            self.done = True


def _row(data: bytes, at: int, integers: list[bool]) -> Row:
    row: list[Any] = []
    for is_integer in integers:
        length = data[at]
        at += 1
        if length >= _NULL:
            if length == _NULL:
                row.append(None)
                continue
            length, at = _length(data, at - 1)
        end = at + length
        row.append(int(data[at:end]) if is_integer else data[at:end])
        at = end
    return tuple(row)


def _column_type(data: bytes, at: int) -> int:
    """Read the type in a column's definition: six strings, a length, u16 character set, u32 width, u8 type."""
    for _ in range(6):
        length, start = _length(data, at)
        at = start + length
    return data[at + 7]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """Read a length or count at `at`; return it and its end."""
    first = data[at]
    if first < _NULL:
        return first, at + 1
    end = at + 1 + _LENGTH_BYTES[first]
    return int.from_bytes(data[at + 1 : end], "little"), end


async def in_slices(texts: Iterable[str]) -> list[str]:
    """Collect texts, each of which takes about 10 µs to make, while the event loop turns."""
    made: list[str] = []
    for text in texts:
        made.append(text)
        if len(made) % limits.SLICE_ITEMS_MAX == 0:
            await asyncio.sleep(0)
    return made
