"""A session with a MySQL server: opened by pymysql, and judged lost by its errors."""

from __future__ import annotations

import select
import socket
import ssl
from contextlib import suppress
from typing import Any, ClassVar, Final

import pymysql
from pymysql.constants import CLIENT
from sqlalchemy.dialects.mysql.pymysql import MySQLDialect_pymysql
from sqlalchemy.engine import URL, make_url

from foqs.model import limits
from foqs.storage.sessions.exchange import Exchange
from foqs.storage.sessions.login import GuardedConnection
from foqs.storage.sessions.passwords import FILE, KEPT, password_of
from foqs.storage.sessions.places import NAMED_BY
from foqs.storage.sessions.session_variables import set_variables

_PORT_DEFAULT: Final = 3306

_LOST_CODES = frozenset(
    {0, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055, 4031}
) | {1243, 1615}
"""The last two mean that the server no longer knows the session's prepared statements."""


class Session(GuardedConnection):
    """A session with a guarded login, on which scripts run on the event loop in between (`run_script`).

    If its URL names no certificates, it shares the TLS context of all such sessions, because making one takes the
    interpreter 25 ms or more, and a host retries an unreachable server repeatedly.
    """

    _shared_context: ClassVar[ssl.SSLContext | None] = None
    _read_timeout: float | None
    exchange: Exchange | None = None
    """The event loop's use of the session; None before the first script, and after pymysql has used it."""

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
        """Make the event loop leave the socket, because only one side can read it. Raises TimeoutError."""
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
    """Return pymysql's arguments for a URL: its server, its user and its TLS, and a connect timeout."""
    parsed = make_url(url)
    named_by = parsed.query.get(NAMED_BY)
    bare = parsed._replace(password=None).difference_update_query([NAMED_BY, KEPT, FILE])
    _, arguments = MySQLDialect_pymysql().create_connect_args(bare)
    arguments["password"] = password_of(parsed)
    if named_by is not None:
        arguments["named_by"] = named_by
    if "unix_socket" in arguments:
        # A local socket is not encrypted, and a context takes 25 ms to make.
        arguments["ssl_disabled"] = True
    return {"connect_timeout": limits.CONNECT_MS_MAX // 1000, **arguments}


def server_of(url: str) -> str:
    """Return the server's address in the URL, which is the same for all shards on one server."""
    found = session_arguments(url)
    return found.get("unix_socket") or f"{found.get('host', 'localhost')}:{found.get('port', _PORT_DEFAULT)}"


def database_and_user(url: str | URL) -> URL:
    """Return the URL without its password and TLS options, so that it identifies the database and its user only."""
    parsed = make_url(url)
    changing = [key for key in parsed.query if key.startswith("ssl") or key in (FILE, KEPT)]
    bare = parsed.difference_update_query(changing)
    return bare._replace(password=None)


def check_tls_files(url: str) -> None:
    """Read the URL's TLS files. Raises OSError, or its subclass ssl.SSLError, if a session could not use them."""
    Session(**session_arguments(url) | {"defer_connect": True})


def connect(
    url: str, statement_ms_max: int = limits.STATEMENT_MS_MAX, silent_ms_max: int = limits.OWNER_SILENT_MS_MAX
) -> Any:
    """Open a pymysql session: bounded waits, READ COMMITTED, UTC, no autocommit, several statements in one query.

    A statement waits up to `statement_ms_max` for its response, in whole seconds. The server ends the session, and
    frees its locks, after `silent_ms_max` of silence, as from a host that hangs. Raises pymysql's errors.
    """
    connect_s = limits.CONNECT_MS_MAX // 1000
    session: Any = Session(
        **session_arguments(url)
        | {
            "charset": "utf8mb4",
            # pymysql's connect_timeout does not cover the handshake, but a hanging server accepts and then stays
            # silent.
            "read_timeout": connect_s,
            "write_timeout": connect_s,
            "client_flag": CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            "max_allowed_packet": 64 * limits.MIB,
            "autocommit": False,
        }
    )
    try:
        set_variables(session, silent_s=silent_ms_max // 1000)
    except BaseException:
        session._force_close()
        raise
    session._read_timeout = session._write_timeout = statement_ms_max // 1000
    return session


def has_ended(session: Any) -> bool:
    """True if the server has ended the session, or if it is None. Ask only when no call is under way."""
    if session is None or session._sock is None:
        return True
    if session.exchange is not None:
        return bool(session.exchange.has_ended())
    poll = select.poll()
    poll.register(session._sock, select.POLLIN)
    # The only unasked data from a server is a notice of the session's end.
    return bool(poll.poll(0))


def is_lost(error: Exception) -> bool:
    """True if the error means that the session is lost, so that the outcome of its last statement is unknown."""
    code = error.args[0] if error.args else 0
    return code in _LOST_CODES or isinstance(error, pymysql.err.InterfaceError | OSError)


def interrupt(session: Any) -> None:
    """Make the running statement of the session fail; any thread may call it."""
    # The thread that uses the session can close it in between.
    sock = session._sock if session is not None else None
    if sock is not None:
        with suppress(OSError):  # It has failed by itself meanwhile.
            sock.shutdown(socket.SHUT_RDWR)
