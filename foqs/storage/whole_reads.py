"""Reads that show whether they are whole: what a server or a proxy leaves out of a result must not look like absence.

Nothing in the protocol tells that rows were left out: a result of ten rows is well formed, whether there are ten or
three hundred. So a read of rows that nobody can count beforehand returns one row more, which is its end, and a read of
rows that are known by their keys returns each of them. docs/decisions/0044-what-a-session-relies-on.md.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from pymysql.constants import CR
from pymysql.cursors import Cursor
from pymysql.err import OperationalError

from foqs.storage.session_variables import NO_LIMIT

_THEN_COUNT: Final = "; SELECT FOUND_ROWS(), @@sql_select_limit"
_BEFORE_END: Final = ") UNION ALL (SELECT "
_NULLS: Final = {"u": "CAST(NULL AS UNSIGNED)", "s": "NULL"}


class ShortReadError(OperationalError):
    """Fewer rows came than there are, so nothing follows from what is missing."""

    def __init__(self, problem: str) -> None:
        super().__init__(
            CR.CR_UNKNOWN_ERROR,
            f"{problem}: something between this host and the tables leaves rows out, as a limit on what a session may "
            "select or a proxy, or somebody has changed the tables by hand",
        )


def ended(statement: str, columns: str) -> str:
    """The SELECT with one more row at its end, which has NULL in its first column, as no row before it has.

    columns: a letter for each of its columns, `u` for an unsigned integer and `s` for all else: with a NULL that has
    another type, a server returns decimals.
    """
    if " LIMIT " not in statement:
        statement += f" LIMIT {NO_LIMIT}"  # Without one the order within a UNION is nobody's.
    nulls = ", ".join([_NULLS[column] for column in columns])
    first = _NULLS[columns[0]]
    return f"({statement}) UNION ALL (SELECT {first} AS ended{nulls[len(first) :]})"


def is_ended(statement: str) -> bool:
    """Whether `ended` has made the statement."""
    return _BEFORE_END in statement


def without_end(rows: Collection[Any]) -> list[Any]:
    """The rows before the end of a read that has one. Raises ShortReadError when that is missing."""
    found = [row for row in rows if row[0] is not None]
    if len(found) != len(rows) - 1:
        raise ShortReadError(f"a read came to no end, after {len(found)} rows")
    return found


def complete(statement: str, rows: Any) -> Any:
    """What the statement has found, without the row that is its end, if it has one. Raises ShortReadError."""
    return without_end(rows) if is_ended(statement) else rows


def check_found(what: str, wanted: Collection[int], found: Mapping[int, Any]) -> None:
    """Raise ShortReadError unless each of the keys was found. They are of rows that are there."""
    if len(found) < len(wanted) and (missing := [key for key in wanted if key not in found]):
        raise ShortReadError(f"{len(missing)} of {len(wanted)} {what} did not come, the first being {missing[0]:x}")


def only_row(rows: Any, what: str) -> Any:
    """The one row of a read that has always one. Raises ShortReadError."""
    if len(rows) != 1:
        raise ShortReadError(f"{what} has {len(rows)} rows where there is always one")
    return rows[0]


class WholeCursor(Cursor):
    """A pymysql cursor that has the server count the rows of every SELECT, in the same round trip.

    It is for sessions with many kinds of reads, of few rows each: none of them can be forgotten. A SELECT with a LIMIT
    of its own is not judged by the count, which some servers make without that. The session must take several
    statements in one query.
    """

    def execute(self, query: Any, args: Any = None) -> int:
        """Run one statement. Raises ShortReadError when fewer rows came than the server has found."""
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
