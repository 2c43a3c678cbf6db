"""Work on the meta database in scripts of one round trip each, for what must be fast though the database is far.

A script is some statements, sent and answered together. Without a transaction around it each of them commits by itself,
so that a host which dies holds no lock, whenever that is.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar

import pymysql
from pymysql.constants import ER
from pymysql.cursors import Cursor

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import META_SILENT_MS_MAX
from foqs.storage.session import Session, is_lost
from foqs.storage.session_variables import NO_LIMIT
from foqs.storage.whole_reads import ShortReadError, only_row

T = TypeVar("T")

Statement = tuple[str, tuple[object, ...]]
"""A statement, with %s for each of its arguments."""
Answers = list[tuple[tuple[Any, ...], ...]]
"""The rows of each statement of a script, in order; none for one that finds no rows."""
RunScript = Callable[..., Answers]
_LAST: Statement = ("SELECT @@sql_select_limit", ())
"""A script ends with it: a limit that somebody else has set in the session leaves rows out without a word."""

_IDLE_S_MAX = META_SILENT_MS_MAX / 2_000
"""A session that was idle for longer is not used again: the server is about to end it."""
_ANSWERS_IN_TIME = 4
"""A statement may take so many times what the last one took."""


class _Scripting:
    """The scripts of one piece of work."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self.scripts_count = 0
        self.slowest_s = 0.0

    def __call__(self, *statements: Statement) -> Answers:
        self.scripts_count += 1
        began_s = time.monotonic()
        answers: Answers = []
        # Not by the session's own cursor, which counts the rows of single statements.
        with self._session.cursor(Cursor) as cursor:
            text = [cursor.mogrify(statement, arguments) for statement, arguments in (*statements, _LAST)]
            cursor.execute(";".join(text))
            answers.append(cursor.fetchall())
            while cursor.nextset():
                answers.append(cursor.fetchall())
        self.slowest_s = max(self.slowest_s, time.monotonic() - began_s)
        *answers, last = answers
        if only_row(last, "the end of a script") != (NO_LIMIT,):
            raise ShortReadError("this session selects some rows only")
        return answers


class MetaScripts:
    """The sessions for scripts. Safe for use by several threads, each of which gets a session of its own meanwhile."""

    def __init__(self, connect: Callable[[float], Session], statement_ms_max: int) -> None:
        """`connect` makes a session whose steps and statements wait for so many seconds.

        A statement waits for its response for `statement_ms_max`. Where that is short, and was too short, it waits
        longer the next time, for limits.META_STATEMENT_MS_MAX at most: a database that is far is not away.
        """
        self._connect = connect
        self._least_s = statement_ms_max / 1000
        self._most_s = max(self._least_s, limits.META_STATEMENT_MS_MAX / 1000)
        self.statement_s = self._least_s
        self._idle: list[tuple[Session, float]] = []
        """Sessions that nobody uses now, and since when."""
        self._room = threading.BoundedSemaphore(limits.META_SESSIONS_MAX)
        self._lock = threading.Lock()

    def run(self, work: Callable[[RunScript], T]) -> T:
        """Do `work`, which runs scripts, in a session that commits each statement by itself.

        A session that was lost while it was idle costs the work nothing but a new one: its first script is sent once
        more. `work` must allow for that, and must not leave a transaction open. Raises UnavailableError.
        """
        if not self._room.acquire(timeout=self._most_s):
            raise UnavailableError(
                f"the meta database does not answer: {limits.META_SESSIONS_MAX} sessions wait for it, the limit"
            )
        try:
            return self._run(work)
        except (pymysql.err.OperationalError, pymysql.err.InterfaceError, pymysql.err.InternalError, OSError) as error:
            raise UnavailableError(f"the meta database does not answer: {error}") from error
        except pymysql.err.ProgrammingError as error:
            if error.args[0] != ER.NO_SUCH_TABLE:
                raise
            raise UnavailableError(
                f"the meta database lacks a table, as while it is being restored: {error}; "
                "if it lasts, see foqs schema status"
            ) from error
        finally:
            self._room.release()

    def close(self) -> None:
        """Close the sessions that are not in use."""
        with self._lock:
            idle, self._idle = self._idle, []
        for session, _ in idle:
            session._force_close()

    def _run(self, work: Callable[[RunScript], T]) -> T:
        while True:
            session = self._take()
            is_new = session is None
            scripting: _Scripting | None = None
            try:
                if session is None:
                    session = self._connect(self.statement_s)
                session._read_timeout = session._write_timeout = self.statement_s
                scripting = _Scripting(session)
                done = work(scripting)
            except BaseException as error:
                if session is not None:
                    # It may be in the middle of a transaction, which ends with it.
                    session._force_close()
                is_late = isinstance(error.__context__, TimeoutError) or isinstance(error, TimeoutError)
                if is_late:
                    self.statement_s = min(2 * self.statement_s, self._most_s)
                is_first = scripting is not None and scripting.scripts_count == 1
                if is_new or is_late or not is_first or not isinstance(error, Exception) or not is_lost(error):
                    raise
                self.close()  # What ended this one has ended the others as well, as a fail-over does.
                continue
            self._give(session)
            self.statement_s = min(max(self._least_s, _ANSWERS_IN_TIME * scripting.slowest_s), self._most_s)
            return done

    def _take(self) -> Session | None:
        """The session that was used last, unless all were idle for too long."""
        with self._lock:
            found = self._idle.pop() if self._idle else None
        if found is None:
            return None
        if time.monotonic() - found[1] < _IDLE_S_MAX:
            return found[0]
        with suppress(OSError):
            found[0]._force_close()
        self.close()
        return None

    def _give(self, session: Session) -> None:
        with self._lock:
            self._idle.append((session, time.monotonic()))
