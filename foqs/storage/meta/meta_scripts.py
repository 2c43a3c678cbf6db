"""Work on the meta database in scripts of one round trip each, for operations that must be fast on a far database.

A script is a few statements, sent and answered together. Without a transaction around it each statement commits by
itself, so a host that dies at any point holds no lock.
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
from foqs.storage.sessions.session import Session, is_lost
from foqs.storage.sessions.session_variables import NO_LIMIT
from foqs.storage.sessions.whole_reads import ShortReadError, only_row

T = TypeVar("T")

Statement = tuple[str, tuple[object, ...]]
"""A statement, with %s for each of its arguments."""
Answers = list[tuple[tuple[Any, ...], ...]]
"""The rows of each statement of a script, in order; empty for a statement that finds no rows."""
RunScript = Callable[..., Answers]
_LAST: Statement = ("SELECT @@sql_select_limit", ())
"""The end of every script, because a limit set in the session by another party cuts results short without an error."""

_IDLE_S_MAX = META_SILENT_MS_MAX / 2_000
"""Idle time after which a session is not used again, because the server is about to end it."""
_ANSWERS_IN_TIME = 4
"""The statement timeout, as a multiple of the slowest script's time in the last work."""


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
        # The session's own cursor counts the rows of single statements, so do not use it here.
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
        """Make sessions with `connect`, which takes the timeout of a session's steps and statements in seconds.

        A statement waits `statement_ms_max` for its response. After a timeout the next wait is longer, up to
        limits.META_STATEMENT_MS_MAX, because a far database is not an unreachable one.
        """
        self._connect = connect
        self._least_s = statement_ms_max / 1000
        self._most_s = max(self._least_s, limits.META_STATEMENT_MS_MAX / 1000)
        self.statement_s = self._least_s
        self._idle: list[tuple[Session, float]] = []
        """Idle sessions, and the time at which each became idle."""
        self._room = threading.BoundedSemaphore(limits.META_SESSIONS_MAX)
        self._lock = threading.Lock()

    def run(self, work: Callable[[RunScript], T]) -> T:
        """Do `work`, which runs scripts, in a session that commits each statement by itself.

        If the session was lost while it was idle, the first script is sent again in a new session. `work` must allow
        for that, and must not leave a transaction open. Raises UnavailableError.
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
        """Close the idle sessions."""
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
                    # A transaction can be open, and ends with the session.
                    session._force_close()
                is_late = isinstance(error.__context__, TimeoutError) or isinstance(error, TimeoutError)
                if is_late:
                    self.statement_s = min(2 * self.statement_s, self._most_s)
                is_first = scripting is not None and scripting.scripts_count == 1
                if is_new or is_late or not is_first or not isinstance(error, Exception) or not is_lost(error):
                    raise
                self.close()  # The same cause, such as a fail-over, has ended the other sessions.
                continue
            self._give(session)
            self.statement_s = min(max(self._least_s, _ANSWERS_IN_TIME * scripting.slowest_s), self._most_s)
            return done

    def _take(self) -> Session | None:
        """Take the most recently used session, unless all have been idle for too long."""
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
