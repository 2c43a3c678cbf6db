"""Reads that prove that they are complete, so that rows left out by a server or a proxy do not look absent.

The protocol does not report rows left out: a result of ten rows is well formed even if three hundred exist. So a read
of an unknown number of rows returns one more row as its end mark, and a read of rows with known keys has to return each
key. docs/decisions/0044-what-a-session-relies-on.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from pymysql.constants import CR
from pymysql.cursors import Cursor
from pymysql.err import OperationalError

from foqs.storage.sessions.session_variables import NO_LIMIT

_THEN_COUNT: Final = "; SELECT FOUND_ROWS(), @@sql_select_limit"
_BEFORE_END: Final = ") UNION ALL (SELECT "
_NULLS: Final = {"u": "CAST(NULL AS UNSIGNED)", "s": "NULL"}


class ShortReadError(OperationalError):
    """Fewer rows came than exist, so a missing row proves nothing."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            CR.CR_UNKNOWN_ERROR,
            f"{problem}: something between this host and the tables leaves rows out, as a limit on what a session may "
            "select or a proxy, or somebody has changed the tables by hand",
        )


def ended(statement: str, columns: str) -> str:
    """Return the SELECT with one more row at its end, the only one with NULL in its first column.

    columns: a letter for each column, `u` for an unsigned integer and `s` for all else. A NULL of another type makes a
    server return decimals.
    """
    if " LIMIT " not in statement:
        statement += f" LIMIT {NO_LIMIT}"  # Without a LIMIT the order within a UNION is undefined.
    nulls = ", ".join([_NULLS[column] for column in columns])
    first = _NULLS[columns[0]]
    return f"({statement}) UNION ALL (SELECT {first} AS ended{nulls[len(first) :]})"


def is_ended(statement: str) -> bool:
    """True if `ended` has made the statement."""
    return _BEFORE_END in statement


def without_end(rows: Collection[Any]) -> list[Any]:
    """Return the rows before the end mark. Raises ShortReadError if the mark is missing."""
    found = [row for row in rows if row[0] is not None]
    if len(found) != len(rows) - 1:
        raise ShortReadError(f"a read came to no end, after {len(found)} rows")
    return found


def complete(statement: str, rows: Any) -> Any:
    """Return the statement's rows, without the end mark if it has one. Raises ShortReadError."""
    return without_end(rows) if is_ended(statement) else rows


def check_found(what: str, wanted: Collection[int], found: Mapping[int, Any]) -> None:
    """Raise ShortReadError unless each key of these existing rows was found."""
    if len(found) < len(wanted) and (missing := [key for key in wanted if key not in found]):
        raise ShortReadError(f"{len(missing)} of {len(wanted)} {what} did not come, the first being {missing[0]:x}")


def only_row(rows: Any, what: str) -> Any:
    """Return the row of a read that always has exactly one. Raises ShortReadError."""
    if len(rows) != 1:
        raise ShortReadError(f"{what} has {len(rows)} rows where there is always one")
    return rows[0]


class WholeCursor(Cursor):
    """A pymysql cursor that makes the server count the rows of every SELECT, in the same round trip.

    It suits sessions with many kinds of small reads, because it checks every one. It ignores the count of a SELECT with
    its own LIMIT, because some servers count without regard to that. The session must accept several statements in one
    query.
    """

    def execute(self, query: Any, args: Any = None) -> int:
        """Run one statement. Raises ShortReadError if fewer rows came than the server has found."""
        if query[:6] not in ("SELECT", b"SELECT"):  # The driver makes bytes of an insert of many rows.
            return int(super().execute(query, args))
        is_text = isinstance(query, str)
        is_limited = (" LIMIT " if is_text else b" LIMIT ") in query
        super().execute(query + (_THEN_COUNT if is_text else _THEN_COUNT.encode()), args)
        rows, rows_count, description = self.fetchall(), self.rowcount, self.description
        self.nextset()
        found_count, select_limit = only_row(self.fetchall(), "the count of a read")
        while self.nextset():
            pass
        if select_limit < NO_LIMIT or (not is_limited and rows_count < found_count):
            raise ShortReadError(
                f"{rows_count} of {found_count} rows came, in a session that selects {select_limit} at most"
            )
        self._rows, self.rowcount, self.description = rows, rows_count, description
        self.rownumber = 0
        return rows_count
