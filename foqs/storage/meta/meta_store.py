"""The meta database: namespaces, epochs of shards and heartbeats of hosts, shared by all hosts of a cluster.

Each statement of its methods blocks for a bounded time, so call them from a worker thread. Hosts keep serving the
shards they own while the database is unreachable, so no item waits for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from pymysql.constants import CLIENT, ER
from pymysql.err import Error as DriverError
from sqlalchemy import Connection, create_engine
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.model.meta_bounds import META_SILENT_MS_MAX
from foqs.storage.meta.meta_cluster import MetaCluster
from foqs.storage.meta.meta_jobs import MetaJobs
from foqs.storage.meta.meta_namespaces import MetaNamespaces
from foqs.storage.meta.meta_policies import MetaPolicies
from foqs.storage.meta.meta_quotas import MetaQuotas
from foqs.storage.meta.meta_scripts import MetaScripts, RunScript
from foqs.storage.meta.meta_sessions import MetaSessions, mark
from foqs.storage.sessions.durability import check_durable
from foqs.storage.sessions.session import Session, session_arguments
from foqs.storage.sessions.session_variables import set_variables
from foqs.storage.sessions.whole_reads import WholeCursor

T = TypeVar("T")

_DEADLOCK_TRIES = 5


class MetaStore(MetaCluster, MetaNamespaces, MetaPolicies, MetaJobs, MetaQuotas, MetaSessions):
    """The meta database at an SQLAlchemy URL. Connects on first use, and reconnects after an outage of the server.

    Safe for use by several threads; at most META_SESSIONS_MAX threads talk to the server at a time. Every method raises
    UnavailableError, with its cause, when the server does not answer in time; the outcome of a write is then unknown.
    """

    def __init__(self, url: str, statement_ms_max: int = limits.META_STATEMENT_MS_MAX, process_id: str = "") -> None:
        """Limit the wait for the response of a statement, and of each step of a new session, to `statement_ms_max`.

        Sessions of a host are marked with its `process_id`, by which other hosts find them once it is dead.
        """
        super().__init__()
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
        )

    def use_url(self, url: str) -> None:
        """Open future sessions with this URL, which must lead to the same database. Safe to call from any thread."""
        self._url = url

    def close(self) -> None:
        """Close the idle sessions; a session in use closes when its call ends."""
        self._engine.dispose()
        self._scripts.close()

    def check_durable(self) -> list[str]:
        """Return the settings by which the server could lose acknowledged writes; empty if it is durable."""
        with self._transaction() as connection:
            session = connection.connection.driver_connection
            assert isinstance(session, Session)
            return check_durable(session)

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
            mark(session, self._database, self._process_id)
        except BaseException:
            session._force_close()
            raise
        return session

    @property
    def _database(self) -> str:
        return make_url(self._url).database or ""

    def _run_scripts(self, work: Callable[[RunScript], T]) -> T:
        return self._scripts.run(work)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
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

    def _retry_deadlocks(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction; repeat it if the server rolled it back to resolve a deadlock."""
        for attempt in range(1, _DEADLOCK_TRIES + 1):
            try:
                with self._transaction() as connection:
                    return work(connection)
            except UnavailableError as error:
                if attempt == _DEADLOCK_TRIES or not _is_deadlock(error.__cause__):
                    raise
        raise AssertionError("unreachable")


def _cause_of(error: Exception) -> BaseException:
    """Return the driver's own error, because SQLAlchemy's text repeats the statement and its parameters at length."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _is_deadlock(error: BaseException | None) -> bool:
    return isinstance(error, OperationalError) and _has_code(error, ER.LOCK_DEADLOCK)


def _has_code(error: DBAPIError, code: int) -> bool:
    return error.orig is not None and error.orig.args[0] == code
