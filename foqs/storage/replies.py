"""What a MySQL server answers to a query of many statements, and to commands before it, out of its bytes as they come.

pymysql reads an answer on a thread that blocks, and that thread wants the interpreter's lock back for every piece:
up to 5 ms each on a busy host, several times a transaction. So the answers of the hot path are read on the event
loop (docs/decisions/0008-transactions-on-the-loop.md). The form is that of MySQL's text protocol,
https://dev.mysql.com/doc/dev/mysql-server/latest/page_protocol_com_query_response.html, with its EOF packets.
"""

from __future__ import annotations

from enum import Enum, auto
from struct import Struct
from struct import error as struct_error
from typing import Any, Final

from pymysql.constants import FIELD_TYPE, SERVER_STATUS
from pymysql.err import Error, raise_mysql_exception

Row = tuple[Any, ...]
Rows = list[Row]

HEADER_BYTES: Final = 4
PACKET_BYTES_MAX: Final = 0xFF_FFFF
"""A packet of this length is continued by the next one, which neither side needs here."""
_OK: Final = 0x00
_EOF: Final = 0xFE
_EOF_BYTES_MAX: Final = 8
_ERROR: Final = 0xFF
_NULL: Final = 0xFB
_LENGTH_BYTES: Final = {0xFC: 2, 0xFD: 3, 0xFE: 8}
"""Of a length that does not fit into one byte, by that byte."""
_INTEGER_TYPES: Final = frozenset(
    {FIELD_TYPE.TINY, FIELD_TYPE.SHORT, FIELD_TYPE.INT24, FIELD_TYPE.LONG, FIELD_TYPE.LONGLONG}
)

_u16 = Struct("<H").unpack_from


class AnswerError(Exception):
    """These bytes are no answer: nothing more can be read from the session."""


class _Next(Enum):
    RESULT = auto()
    COLUMNS = auto()
    END_OF_COLUMNS = auto()
    ROWS = auto()


class ReplyReader:
    """`results` has the rows of every statement of the last command that is answered.

    Integers are int, NULL is None, all else bytes. A command that fails does not stop those that were sent after it:
    their answers are read before the first error is raised.
    """

    __slots__ = ("_column_count", "_commands_left", "_integers", "_next", "_rest", "_rows", "done", "error", "results")

    def __init__(self, command_count: int = 1) -> None:
        self.results: list[Rows] = []
        self.done = False
        """The last command is answered."""
        self._commands_left = command_count
        self.error: Error | None = None
        """The first one that the server answered."""
        self._rest = b""
        self._next = _Next.RESULT
        self._column_count = 0
        self._integers: list[bool] = []
        """By column, whether it is one of integers."""
        self._rows: Rows = []

    def feed(self, chunk: bytes) -> None:
        """Read on. Raises AnswerError, or at the end the pymysql.err.Error that the server answered first."""
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
            affected_end = _length(data, at + 1)[1]
            self._end_result(_u16(data, _length(data, affected_end)[1])[0])
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
    """Of a column's definition: six strings, a length, u16 character set, u32 width, u8 type."""
    for _ in range(6):
        length, start = _length(data, at)
        at = start + length
    return data[at + 7]


def _length(data: bytes, at: int) -> tuple[int, int]:
    """A length or count at `at`, and where it ends."""
    first = data[at]
    if first < _NULL:
        return first, at + 1
    end = at + 1 + _LENGTH_BYTES[first]
    return int.from_bytes(data[at + 1 : end], "little"), end
