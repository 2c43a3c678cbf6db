"""The variables that a session relies on. It sets them if it can, and is refused if one still has another value.

A session begins with the server's global values, as changed by `init_connect` and by a proxy. Some of these change the
meaning of a statement, or cut its result short, without any error. docs/decisions/0044-what-a-session-relies-on.md has
the table of all variables that were examined.
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
"""Lock wait timeout of a shard's session, in seconds; the statement then fails."""
PACKET_BYTES_MIN: Final = 16 * limits.MIB
"""The smallest `max_allowed_packet` of a server that accepts every statement of a host."""

SET: Final[Mapping[str, str]] = {
    # These could cut a result short, or refuse a statement because of the rows that it examines.
    "sql_select_limit": str(NO_LIMIT),
    "max_join_size": str(NO_LIMIT),
    "sql_big_selects": "1",
    "sql_safe_updates": "0",
    # The beginning and end of transactions.
    "autocommit": "0",
    "completion_type": "'NO_CHAIN'",
    # The meaning of a statement, and of a value that does not fit: no value is cut or replaced by a default.
    "sql_mode": "'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION'",
    "sql_auto_is_null": "0",
    "foreign_key_checks": "1",
    "unique_checks": "1",
    # A zone with daylight saving repeats an hour, and UNIX_TIMESTAMP(NOW()) cannot distinguish the two.
    "time_zone": "'+00:00'",
    # The server's wait for the host. A shorter one ends a session during the transfer of a large result.
    "net_read_timeout": "30",
    "net_write_timeout": "60",
}
"""The common values of all sessions, in the form that SET takes; `set_variables` adds the others."""
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
    # Only a privileged user can set it. Without it replicas and backups lack acknowledged writes.
    "sql_log_bin": "1",
    # The clock of a session stands still once its time was set.
    "ABS(@@timestamp - UNIX_TIMESTAMP(SYSDATE(6))) < 60": "1",
    f"@@max_allowed_packet >= {PACKET_BYTES_MIN}": "1",
}
_TRUTHS: Final = {"ON": "1", "OFF": "0"}


class UnfitSessionError(OperationalError):
    """A variable of the session has another value than the one set, so its answers cannot be trusted."""


def set_variables(
    session: Any, *, lock_wait_s: int = LOCK_WAIT_S, silent_s: int | None = None, autocommit: bool = False
) -> None:
    """Set the variables of a new pymysql session and read them back, in one round trip.

    lock_wait_s: lock wait timeout of a statement, in seconds.
    silent_s: silence in seconds after which the server ends the session; None keeps the server's own value.
    Raises UnfitSessionError, and pymysql's errors. The session must accept several statements in one query.
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
    """Normalize a value for comparison: a text for SET, or a result of SELECT. Flags of a set have no order."""
    text = value.decode() if isinstance(value, bytes) else f"{value:g}" if isinstance(value, float) else str(value)
    return frozenset([_TRUTHS.get(flag, flag) for flag in text.strip("'").upper().split(",")])
