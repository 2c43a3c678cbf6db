"""A session with a shard's server: connecting, and running many statements in one round trip.

A round trip costs the thread the interpreter lock twice, which on a busy host is far more than the statement
itself: so a transaction is sent as a whole, its COMMIT included (loadtest/README.md tells how it was measured).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pymysql
from pymysql.constants import CLIENT
from sqlalchemy.engine import make_url

from foqs.core import limits

Rows = tuple[tuple[Any, ...], ...]

_LOST_CODES = frozenset(
    {0, 1053, 1077, 1078, 1079, 1080, 1152, 1158, 1159, 1160, 1161, 1927, 2003, 2006, 2013, 2014, 2055}
)


def connect(url: str, statement_ms_max: int = limits.STATEMENT_MS_MAX) -> Any:
    """A pymysql session with bounded waits, READ COMMITTED, no autocommit, several statements in one query."""
    parsed = make_url(url)
    query = dict(parsed.query)
    session = pymysql.connect(
        host=parsed.host or "localhost",
        port=parsed.port or 3306,
        user=parsed.username or "root",
        password=parsed.password or "",
        database=parsed.database,
        unix_socket=str(query["unix_socket"]) if "unix_socket" in query else None,
        # On a socket of this machine nothing is encrypted, and a context costs 25 ms to make.
        ssl_disabled="unix_socket" in query,
        charset="utf8mb4",
        connect_timeout=limits.CONNECT_MS_MAX // 1000,
        read_timeout=statement_ms_max // 1000,
        write_timeout=statement_ms_max // 1000,
        client_flag=CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
        max_allowed_packet=64 * limits.MIB,
        autocommit=False,
    )
    with session.cursor() as cursor:
        cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        # A value that does not fit must be an error: nothing is cut or turned into a default.
        cursor.execute("SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'")
        cursor.execute("SET SESSION innodb_lock_wait_timeout = 5, lock_wait_timeout = 5, wait_timeout = 86400")
    session.commit()
    return session


def is_lost(error: Exception) -> bool:
    """The session is gone, so that what became of the last statement is unknown."""
    code = error.args[0] if error.args else 0
    return code in _LOST_CODES or isinstance(error, pymysql.err.InterfaceError | OSError)


def run_script(session: Any, statements: Sequence[str]) -> list[Rows]:
    """Run the statements in order, in as few round trips as limits.PACKET_BYTES_MAX allows; the rows of each.

    The server stops at the first statement that fails, so a COMMIT at the end means that all went before it.
    Raises what pymysql raises.
    """
    results: list[Rows] = []
    with session.cursor() as cursor:
        for packet in _packets(statements):
            cursor.execute(packet)
            results.append(cursor.fetchall())
            while cursor.nextset():
                results.append(cursor.fetchall())
    return results


def _packets(statements: Sequence[str]) -> Iterator[str]:
    start = size_bytes = 0
    for position, statement in enumerate(statements):
        if size_bytes and size_bytes + len(statement) > limits.PACKET_BYTES_MAX:
            yield ";".join(statements[start:position])
            start, size_bytes = position, 0
        size_bytes += len(statement) + 1
    if size_bytes:
        yield ";".join(statements[start:])
