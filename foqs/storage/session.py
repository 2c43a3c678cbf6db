"""A session with a MySQL server: how it is opened by pymysql, and when it is lost."""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any, ClassVar, Final

import pymysql
from pymysql.constants import CLIENT
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.engine import URL, make_url

from foqs.model import limits
from foqs.storage.exchange import Exchange

_PORT_DEFAULT: Final = 3306

_LOST_CODES = frozenset(
    {0, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055, 4031}
) | {1243, 1615}
"""The last two: the server does not know the session's prepared statement any more."""


class Session(pymysql.connections.Connection):
    """A pymysql session, on which scripts run on the event loop in between (`run_script`).

    Where its URL names no certificates, it has the TLS context of all others: to make one takes 25 ms of the
    interpreter and more, and a server that is away is tried again and again.
    """

    _shared_context: ClassVar[ssl.SSLContext | None] = None
    _sock: Any
    _read_timeout: float | None
    exchange: Exchange | None = None
    """How the event loop uses the session; None before the first script, and after pymysql has used it."""

    def _execute_command(self, command: int, sql: str | bytes) -> None:
        if self.exchange is not None:
            self._leave_loop()
            self._sock.settimeout(self._read_timeout)
        super()._execute_command(command, sql)  # type: ignore[misc]

    def _force_close(self) -> None:
        with suppress(TimeoutError):
            self._leave_loop()
        super()._force_close()  # type: ignore[misc]

    def _leave_loop(self) -> None:
        """Have the event loop leave the socket, which only one of the two may read. Raises TimeoutError."""
        exchange, self.exchange = self.exchange, None
        if exchange is not None:
            exchange.leave_loop()

    def _create_ssl_ctx(self, sslp: dict[str, Any]) -> ssl.SSLContext:
        context = None if sslp else Session._shared_context
        if context is None:
            context = super()._create_ssl_ctx(sslp)  # type: ignore[misc]
            if not sslp:
                Session._shared_context = context
        return context


def session_arguments(url: str | URL) -> dict[str, Any]:
    """The arguments of pymysql for a URL: its server, its user and its TLS, and a bound for connecting."""
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


def connect(
    url: str, statement_ms_max: int = limits.STATEMENT_MS_MAX, silent_ms_max: int = limits.OWNER_SILENT_MS_MAX
) -> Any:
    """A pymysql session with bounded waits, READ COMMITTED, UTC, no autocommit, several statements in one query.

    A statement waits for its response for `statement_ms_max`, in whole seconds. The server ends the session, and what
    it holds, when it is silent for `silent_ms_max`, as that of a host that hangs is. Raises what pymysql raises.
    """
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
    try:
        _set_up(session, silent_ms_max)
    except BaseException:
        session._force_close()
        raise
    session._read_timeout = session._write_timeout = statement_ms_max // 1000
    return session


def _set_up(session: Any, silent_ms_max: int) -> None:
    with session.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        # A value that does not fit must be an error: nothing is cut or turned into a default.
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
        # A zone with daylight saving repeats an hour, and UNIX_TIMESTAMP(NOW()) cannot tell which one it is.
        cursor.execute("SET SESSION time_zone = '+00:00'")
        cursor.execute(
            "SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, wait_timeout = %s",
            (silent_ms_max // 1000,),
        )
    session.commit()


def is_lost(error: Exception) -> bool:
    """Whether the error means that the session is gone: then the outcome of its last statement is unknown."""
    code = error.args[0] if error.args else 0
    return code in _LOST_CODES or isinstance(error, pymysql.err.InterfaceError | OSError)


def interrupt(session: Any) -> None:
    """Make a statement of the session that is under way fail; any thread may call it."""
    # The thread that uses the session may close it in between.
    sock = session._sock if session is not None else None
    if sock is not None:
        with suppress(OSError):  # It has failed by itself meanwhile.
            sock.shutdown(socket.SHUT_RDWR)
