"""The variables that a session relies on: it sets what it may, and is refused where one has another value all the same.

A session begins with the server's global values, with what `init_connect` has changed of them, and with what a proxy
makes of it. Some of them change what a statement means, or how much of its result comes back, and no error tells.
docs/decisions/0044-what-a-session-relies-on.md has the table of all that were looked at.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from pymysql.constants import CR
from pymysql.err import OperationalError

from foqs.model import limits

NO_LIMIT: Final = (1 << 64) - 1
"""More rows than any table has."""
LOCK_WAIT_S: Final = 5
"""A statement of a shard's session waits so long for a lock, and fails."""
PACKET_BYTES_MIN: Final = 16 * limits.MIB
"""The smallest `max_allowed_packet` of a server that takes every statement of a host."""

SET: Final[Mapping[str, str]] = {
    # What could make a result short, or refuse a statement for the rows that it looks at.
    "sql_select_limit": str(NO_LIMIT),
    "max_join_size": str(NO_LIMIT),
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    # How transactions begin and end.
    "autocommit": "0",
    "completion_type": "'NO_CHAIN'",
    # The meaning of a statement, and of a value that does not fit: nothing is cut or turned into a default.
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "sql_auto_is_null": "0",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    # A zone with daylight saving repeats an hour, and UNIX_TIMESTAMP(NOW()) cannot tell which one it is.
    "time_zone": "'+00:00'",
    # How long the server waits for the host. Shorter ones end a session while a large result is on its way.
    "net_read_timeout": "30",
    "net_write_timeout": "60",
}
"""What every session is given, as SET takes it; `set_variables` adds what differs among sessions."""
SET_OF_MARIADB: Final[Mapping[str, str]] = {
    "tx_isolation": "'READ-COMMITTED'",
    "tx_read_only": "0",
    "max_statement_time": "0",
    "check_constraint_checks": "1",
}
SET_OF_MYSQL: Final[Mapping[str, str]] = {
    "transaction_isolation": "'READ-COMMITTED'",
    "transaction_read_only": "0",
    "max_execution_time": "0",
}
CHECKED: Final[Mapping[str, str]] = {
    # A user of few rights must not set it. Without it replicas and backups lack what was acknowledged.
    "sql_log_bin": "1",
    # A session whose time was set stands still.
    "ABS(@@timestamp - UNIX_TIMESTAMP(SYSDATE(6))) < 60": "1",
    f"@@max_allowed_packet >= {PACKET_BYTES_MIN}": "1",
}
_TRUTHS: Final = {"ON": "1", "OFF": "0"}


class UnfitSessionError(OperationalError):
    """The session has another value of a variable than it was given, so its answers are not to be trusted."""


def set_variables(
    session: Any, *, lock_wait_s: int = LOCK_WAIT_S, silent_s: int | None = None, autocommit: bool = False
) -> None:
    """Give a new pymysql session what it relies on, and read it back, in one round trip.

    lock_wait_s: a statement waits so long for a lock.
    silent_s: the server ends the session after so long without a word; None leaves that to the server.
    Raises UnfitSessionError, and what pymysql raises. The session must take several statements in one query.
    """
    wanted = {**SET, **(SET_OF_MARIADB if is_mariadb(session) else SET_OF_MYSQL)}
    wanted |= {"autocommit": str(int(autocommit)), "innodb_lock_wait_timeout": str(lock_wait_s)}
    wanted["lock_wait_timeout"] = str(lock_wait_s)
    if silent_s is not None:
        wanted["wait_timeout"] = str(silent_s)
    assignments = ", ".join([f"{name} = {value}" for name, value in wanted.items()])
    wanted |= CHECKED
    names = ", ".join([name if "@@" in name else f"@@{name}" for name in wanted])
    with session.cursor() as cursor:
        cursor.execute(f"SET SESSION {assignments}; SELECT {names}")
        cursor.nextset()
        rows = cursor.fetchall()
    session.commit()
    if len(rows) != 1:
        problem = f"this session leaves rows out: {len(rows)} came where there is always one"
        raise UnfitSessionError(CR.CR_UNKNOWN_ERROR, problem)
    for (name, value), found in zip(wanted.items(), rows[0], strict=True):
        if _plain(found) != _plain(value):
            raise UnfitSessionError(CR.CR_UNKNOWN_ERROR, _problem(name, value, found))


def is_mariadb(session: Any) -> bool:
    """Whether the server of a pymysql session says that it is MariaDB."""
    return "MariaDB" in session.get_server_info()


def _problem(name: str, wanted: str, found: object) -> str:
    if "max_allowed_packet" in name:
        return f"max_allowed_packet is less than {PACKET_BYTES_MIN}, which a host needs: set it to 16M or more"
    if "timestamp" in name:
        return "the time of this session stands still: something, as init_connect or a proxy, has set its timestamp"
    return (
        f"{name} is {found} in this session, and not {wanted}, which foqs relies on: something between here and the "
        "server, as init_connect or a proxy, changes sessions"
    )


def _plain(value: object) -> frozenset[str]:
    """A value as it may be compared: text that SET takes or that SELECT returns. Flags of a set have no order."""
    text = value.decode() if isinstance(value, bytes) else f"{value:g}" if isinstance(value, float) else str(value)
    return frozenset([_TRUTHS.get(flag, flag) for flag in text.strip("'").upper().split(",")])
