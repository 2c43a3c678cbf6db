"""A session with a shard's server: connecting by pymysql, and running many statements in one round trip.

A transaction is sent as a whole, its COMMIT included, and its answer is read on the event loop.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Sequence
from struct import Struct
from typing import Any, ClassVar, Final

import pymysql
from pymysql.constants import CLIENT, COMMAND, CR
from pymysql.err import OperationalError
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.engine import URL, make_url

from foqs.model import limits
from foqs.storage.replies import PACKET_BYTES_MAX, AnswerError, ReplyReader, Rows

_HEAD: Final = Struct("<IB").pack
"""Of a packet: its length, its command included, and sequence number 0; then the command."""
_PORT_DEFAULT: Final = 3306
_RECEIVE_BYTES: Final = 256 * limits.KIB
_WOULD_BLOCK: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_LOST_CODES = frozenset(
    {0, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055, 4031}
) | {1243, 1615}
"""The last two: the server does not know the session's prepared statement any more."""


class Session(pymysql.connections.Connection):
    """A pymysql session; where its URL names no certificates, it has the TLS context of all others.

    To make one takes 25 ms of the interpreter and more, and a server that is away is tried again and again.
    """

    _shared_context: ClassVar[ssl.SSLContext | None] = None

    def _create_ssl_ctx(self, sslp: dict[str, Any]) -> ssl.SSLContext:
        context = None if sslp else Session._shared_context
        if context is None:
            context = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
            if not sslp:
                Session._shared_context = context
        return context


def session_arguments(url: str | URL) -> dict[str, Any]:
    """What pymysql is to be given for a URL: its server, its user and its TLS, and a bound for connecting."""
    _, arguments = MySQLDialect_pymysql().create_connect_args(make_url(url))
    if "unix_socket" in arguments:
        # On a socket of this machine nothing is encrypted, and a context costs 25 ms to make.
        arguments["ssl_disabled"] = True
    return {"connect_timeout": limits.CONNECT_MS_MAX // 1000, **arguments}


def server_of(url: str) -> str:
    """The server's address in the URL: shards that have it in common share a server."""
    found = session_arguments(url)
    return found.get("unix_socket") or f"{found.get('host', 'localhost')}:{found.get('port', _PORT_DEFAULT)}"


def without_tls_options(url: str | URL) -> URL:
    """The URL without what it says of TLS: what is left tells the database and who opens it."""
    parsed = make_url(url)
    return parsed.difference_update_query([key for key in parsed.query if key.startswith("ssl")])


def check_tls_files(url: str) -> None:
    """Read what the URL names for TLS. Raises OSError, which ssl.SSLError is, when a session could not use it."""
    Session(**session_arguments(url) | {"defer_connect": True})


def connect(url: str, statement_ms_max: int = limits.STATEMENT_MS_MAX) -> Any:
    """A pymysql session with bounded waits, READ COMMITTED, UTC, no autocommit, several statements in one query."""
    connect_s = limits.CONNECT_MS_MAX // 1000
    session: Any = Session(
        **session_arguments(url)
        | {
            "charset": "utf8mb4",
            # pymysql's connect_timeout does not cover the handshake: a server that hangs accepts and says nothing.
            "read_timeout": connect_s,
            "write_timeout": connect_s,
            "client_flag": CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            "max_allowed_packet": 64 * limits.MIB,
            "autocommit": False,
        }
    )
    with session.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        # A value that does not fit must be an error: nothing is cut or turned into a default.
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
        # A zone with daylight saving repeats an hour, and UNIX_TIMESTAMP(NOW()) cannot tell which one it is.
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, wait_timeout = 86400")
    session.commit()
    session._read_timeout = session._write_timeout = statement_ms_max // 1000
    return session


def is_lost(error: Exception) -> bool:
    """The session is gone, so that what became of the last statement is unknown."""
    code = error.args[0] if error.args else 0
    return code in _LOST_CODES or isinstance(error, pymysql.err.InterfaceError | OSError)


def command_packet(command: int, body: bytes) -> bytes:
    """A command as it goes to the server."""
    assert len(body) + 1 < PACKET_BYTES_MAX, "a statement has at most a row more than limits.STATEMENT_BYTES_MAX"
    return _HEAD(len(body) + 1, command) + body


async def run_script(
    session: Any, statements: Sequence[str], results: list[Rows] | None = None, ahead: Sequence[bytes] = ()
) -> list[Rows]:
    """Run the statements in order, limits.PACKET_BYTES_MAX in one round trip; the rows of each.

    The server stops at the first statement that fails, so a COMMIT at the end means that all went before it.
    `ahead`: packets of commands without rows, sent with the first statements and run before them. One that fails does
    not stop what follows: it is for the statements to find out. Its error is raised all the same.
    `results` grows as the answers come: after a failure it has those of the statements before.
    Raises what pymysql raises. The session must be used by nobody else meanwhile, and is of no more use when the
    call is cancelled.
    """
    results = [] if results is None else results
    for query in _queries(statements):
        exchange = _Exchange(session._sock, [*ahead, command_packet(COMMAND.COM_QUERY, query)])
        ahead = ()
        try:
            await exchange.run()
        finally:
            results += exchange.reader.results
    return results


class _Exchange:
    """Commands and their answers on the event loop, over the socket of a session that pymysql has opened.

    The socket may be one of TLS, which can have bytes that no poll tells of: so it is read until it would block.
    Answers are read while commands are sent, or else the two sides could wait for each other.
    """

    def __init__(self, sock: socket.socket, packets: Sequence[bytes]) -> None:
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._unsent = memoryview(b"".join(packets))
        self._awaits_room = False
        """The loop calls `_write` when the socket takes more."""
        self.reader = ReplyReader(len(packets))
        self._answered: asyncio.Future[None] = self._loop.create_future()
        self._timeout: asyncio.Timeout
        self._deadline_s = self._loop.time() + limits.STATEMENT_MS_MAX / 1000

    async def run(self) -> None:
        timeout_s = self._sock.gettimeout()
        self._sock.setblocking(False)
        self._loop.add_reader(self._sock, self._read)
        try:
            async with asyncio.timeout_at(self._deadline_s) as self._timeout:
                self._write()
                await self._answered
        except TimeoutError:
            raise OperationalError(CR.CR_SERVER_LOST, self._lateness()) from None
        finally:
            if self._sock.fileno() >= 0:
                self._loop.remove_reader(self._sock)
                self._await_room(False)
                self._sock.settimeout(timeout_s)

    def _lateness(self) -> str:
        if self.reader.error is None:
            return f"no answer in {limits.STATEMENT_MS_MAX} ms"
        return f"no answer in {limits.AFTER_ERROR_MS_MAX} ms after {self.reader.error}"

    def _write(self) -> None:
        try:
            self._unsent = self._unsent[self._sock.send(self._unsent) :]
        except _WOULD_BLOCK:
            pass
        except OSError as error:
            self._lose(str(error))
            return
        self._await_room(bool(self._unsent))

    def _await_room(self, wanted: bool) -> None:
        if wanted is not self._awaits_room:  # The loop asks the kernel each time, also for nothing.
            self._awaits_room = wanted
            if wanted:
                self._loop.add_writer(self._sock, self._write)
            else:
                self._loop.remove_writer(self._sock)

    def _read(self) -> None:
        try:
            while not self.reader.done:
                chunk = self._sock.recv(_RECEIVE_BYTES)
                if not chunk:
                    self._lose("the server closed the session")
                    return
                self.reader.feed(chunk)
                self._hurry_after_error()
        except _WOULD_BLOCK:
            return
        except (OSError, AnswerError) as error:
            self._lose(str(error))
            return
        except pymysql.err.Error as error:
            self._fail(error)
            return
        if not self._answered.done():
            self._answered.set_result(None)

    def _hurry_after_error(self) -> None:
        """What was sent behind a command that failed may wait as long for the same lock, each one after the other."""
        if self.reader.error is not None and not self.reader.done:
            at_s = self._loop.time() + limits.AFTER_ERROR_MS_MAX / 1000
            self._timeout.reschedule(min(self._deadline_s, at_s))

    def _lose(self, reason: str) -> None:
        self._fail(OperationalError(CR.CR_SERVER_LOST, reason))

    def _fail(self, error: Exception) -> None:
        self._loop.remove_reader(self._sock)
        if not self._answered.done():
            self._answered.set_exception(error)


def _queries(statements: Sequence[str]) -> Iterator[bytes]:
    start = size_bytes = 0
    for position, statement in enumerate(statements):
        if size_bytes and size_bytes + len(statement) > limits.PACKET_BYTES_MAX:
            yield ";".join(statements[start:position]).encode()
            start, size_bytes = position, 0
        size_bytes += len(statement) + 1
    if size_bytes:
        yield ";".join(statements[start:]).encode()
