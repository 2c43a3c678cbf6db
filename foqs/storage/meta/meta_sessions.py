"""The sessions of one process with the meta database: transactions, repeated after deadlocks, and scripts.

Each session of a host has a mark, by which other hosts end it once the host is dead. A mark is a named lock of the
server. It ends with its session, so it never points at another session. A host that hangs in the middle of a
transaction holds row locks, and other hosts wait for them until its session ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from hashlib import sha256
from typing import Concatenate, ParamSpec, Protocol, TypeVar

from pymysql.constants import CLIENT, ER
from pymysql.err import Error as DriverError
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import META_SESSIONS_MARKED_MAX, META_SILENT_MS_MAX
from foqs.storage.meta.meta_scripts import MetaScripts, RunScript
from foqs.storage.sessions.session import Session, session_arguments
from foqs.storage.sessions.session_variables import set_variables
from foqs.storage.sessions.whole_reads import WholeCursor

T = TypeVar("T")
P = ParamSpec("P")

_DEADLOCK_TRIES = 5


class MetaSessions:
    """The sessions at an SQLAlchemy URL. Connects on first use, and reconnects after an outage of the server.

    Safe for use by several threads; at most META_SESSIONS_MAX threads talk to the server at a time. Every method raises
    UnavailableError, with its cause, when the server does not answer in time; the outcome of a write is then unknown.
    """

    def __init__(self, url: str, statement_ms_max: int, process_id: str) -> None:
        """Limit the wait for the response of a statement, and of each step of a new session, to `statement_ms_max`.

        Sessions of a host are marked with its `process_id`, by which other hosts find them once it is dead.
        """
        self._url = url
        self._statement_s = statement_ms_max / 1000
        self._process_id = process_id
        self._scripts = MetaScripts(self._connect_for_scripts, statement_ms_max)
        self._engine = create_engine(
            url,
            isolation_level="READ COMMITTED",
            pool_size=limits.META_SESSIONS_MAX,
            max_overflow=0,
            pool_timeout=self._statement_s,
            pool_pre_ping=True,
            # Every transaction ends by itself, so another ROLLBACK would cost a round trip for nothing.
            pool_reset_on_return=None,
            creator=self._connect,
            # The text of an error must not have the values of a statement, one of which is the cluster's secret.
            hide_parameters=True,
        )

    @property
    def database(self) -> str:
        return make_url(self._url).database or ""

    def use_url(self, url: str) -> None:
        """Open future sessions with this URL, which must lead to the same database. Safe to call from any thread."""
        self._url = url

    def close(self) -> None:
        """Close the idle sessions; a session in use closes when its call ends."""
        self._engine.dispose()
        self._scripts.close()

    @contextmanager
    def transaction(self) -> Iterator[Connection]:
        """Open a transaction, which is committed at the end of the block, or rolled back by an error."""
        try:
            with self._engine.begin() as connection:
                yield connection
        except (OperationalError, InterfaceError, InternalError, PoolTimeoutError, DriverError) as error:
            raise UnavailableError(f"the meta database does not answer: {_cause_of(error)}") from error
        except ProgrammingError as error:
            if not _has_code(error, ER.NO_SUCH_TABLE):
                raise
            raise UnavailableError(
                f"the meta database lacks a table, as while it is being restored: {_cause_of(error)}; "
                "if it lasts, see foqs schema status"
            ) from error

    def run(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction; repeat it if the server rolled it back to resolve a deadlock."""
        for attempt in range(1, _DEADLOCK_TRIES + 1):
            try:
                with self.transaction() as connection:
                    return work(connection)
            except UnavailableError as error:
                if attempt == _DEADLOCK_TRIES or not _is_deadlock(error.__cause__):
                    raise
        raise AssertionError("unreachable")

    def script(self, work: Callable[[RunScript], T]) -> T:
        """Run `work`, which sends scripts, as `MetaScripts.run` does."""
        return self._scripts.run(work)

    def _connect(self) -> Session:
        return self._open(self._statement_s)

    def _connect_for_scripts(self, statement_s: float) -> Session:
        return self._open(statement_s, autocommit=True)

    def _open(self, statement_s: float, *, autocommit: bool = False) -> Session:
        """Open a session with its variables and a mark of this process, by which others end it after its death."""
        arguments = session_arguments(self._url)
        # The wait for a lock ends before the wait for the response, so a lock timeout proves that nothing was done.
        lock_wait_s = max(1, math.ceil(statement_s) - 1)
        wanted = {
            "cursorclass": WholeCursor,
            "client_flag": CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS,
            # A login takes several steps, each of which takes as long as a statement if the database is far away.
            "connect_timeout": min(arguments["connect_timeout"], statement_s),
            "login_timeout": arguments["connect_timeout"],
            "read_timeout": statement_s,
            "write_timeout": statement_s,
        }
        session = Session(**arguments | wanted)
        try:
            set_variables(session, lock_wait_s=lock_wait_s, silent_s=META_SILENT_MS_MAX // 1000, autocommit=autocommit)
            _mark(session, self.database, self._process_id)
        except BaseException:
            session._force_close()
            raise
        return session


class _Table(Protocol):
    @property
    def _sessions(self) -> MetaSessions: ...


Table = TypeVar("Table", bound=_Table)


def in_transaction(method: Callable[Concatenate[Table, Connection, P], T]) -> Callable[Concatenate[Table, P], T]:
    """Run a method of a table in a transaction, as `MetaSessions.run` does. Callers leave out its connection."""

    @wraps(method)
    def run(table: Table, /, *arguments: P.args, **named: P.kwargs) -> T:
        return table._sessions.run(lambda connection: method(table, connection, *arguments, **named))

    return run


def marks_of(database: str, process_id: str) -> list[str]:
    """Return the lock names for the sessions of a process, one name per session."""
    of_process = sha256(f"{database} {process_id}".encode()).hexdigest()[:32]
    return [f"foqs.meta.{of_process}.{number}" for number in range(META_SESSIONS_MARKED_MAX)]


def _mark(session: Session, database: str, process_id: str) -> None:
    """Mark a new session with the first free lock name of the process.

    A session beyond META_SESSIONS_MARKED_MAX has no mark; the server ends it after a long silence.
    """
    if process_id:
        tries = " OR ".join([f"GET_LOCK('{name}', 0)" for name in marks_of(database, process_id)])
        session.query(f"SET @foqs_mark = ({tries})")


def _cause_of(error: Exception) -> BaseException:
    """Return the driver's own error, because SQLAlchemy's text repeats the statement and its parameters at length."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _is_deadlock(error: BaseException | None) -> bool:
    return isinstance(error, OperationalError) and _has_code(error, ER.LOCK_DEADLOCK)


def _has_code(error: DBAPIError, code: int) -> bool:
    return error.orig is not None and error.orig.args[0] == code
