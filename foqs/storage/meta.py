"""The meta database: namespaces, epochs of shards and heartbeats of hosts, shared by all hosts of a cluster.

Its methods block for at most META_STATEMENT_MS_MAX a statement: call them from a worker thread. Hosts keep
serving what they own while it is away, so nothing here stands on the path of an item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

from pymysql.constants import CLIENT, ER
from sqlalchemy import Connection, create_engine, delete, func, select
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.storage.durability import check_durable
from foqs.storage.meta_jobs import MetaJobs
from foqs.storage.meta_namespaces import MetaNamespaces
from foqs.storage.meta_policies import MetaPolicies
from foqs.storage.meta_quotas import MetaQuotas
from foqs.storage.meta_tables import HOST, SERVER_NOW_MS, SHARD
from foqs.storage.session import Session, session_arguments

HOST_ROW_MS = limits.DAY_MS
"""The next host that starts deletes the rows of hosts whose last heartbeat is older than this."""

T = TypeVar("T")

_STATEMENT_S = math.ceil(limits.META_STATEMENT_MS_MAX / 1000)
_DEADLOCK_TRIES = 5


class HostRow(NamedTuple):
    name: str
    address: str
    started_at: int
    heartbeat_at: int
    """The time of the last heartbeat on the clock of the meta database's server, which may step."""


class MetaStore(MetaNamespaces, MetaPolicies, MetaJobs, MetaQuotas):
    """The meta database at an SQLAlchemy URL. Connects on first use, and again after the server was away.

    Safe for use by several threads; at most META_SESSIONS_MAX of them talk to the server at a time. Every
    method raises UnavailableError, with its cause, when the server does not answer in time; whether a write
    happened is unknown then.
    """

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url = url
        self._engine = create_engine(
            url,
            isolation_level="READ COMMITTED",
            pool_size=limits.META_SESSIONS_MAX,
            max_overflow=0,
            pool_timeout=_STATEMENT_S,
            pool_pre_ping=True,
            creator=self._connect,
        )

    def use_url(self, url: str) -> None:
        """The next sessions are opened by this one, which leads to the same database; any thread may call it."""
        self._url = url

    def close(self) -> None:
        """Close the sessions that are not in use; those in use close when their call ends."""
        self._engine.dispose()

    def check_durable(self) -> list[str]:
        """Why the server could lose what it acknowledged; empty when it cannot."""
        with self._transaction() as connection:
            session = connection.connection.driver_connection
            assert isinstance(session, Session)
            return check_durable(session)

    # --- epochs ---

    def take_shard_epoch(self, shard_id: int, owner: str, now_ms: int, at_least: int) -> int:
        """Make `owner` the owner of the shard and return its epoch: above all before it and above `at_least`.

        `at_least` is the epoch found in the shard, in case this database lost its own. No epoch is returned
        twice; one whose answer was lost is never used.
        """

        def take(connection: Connection) -> int:
            values = {"owner": owner.encode(), "owned_since": now_ms}
            statement = insert(SHARD).values(shard_id=shard_id, epoch=at_least + 1, **values)
            raised = func.greatest(SHARD.c.epoch, at_least) + 1
            connection.execute(statement.on_duplicate_key_update(epoch=raised, **values))
            # The row is locked by the statement before: nobody raised it further.
            epoch: int = connection.execute(select(SHARD.c.epoch).where(SHARD.c.shard_id == shard_id)).scalar_one()
            return epoch

        return self._retry_deadlocks(take)

    def shard_owner(self, shard_id: int) -> str | None:
        """The host that took the last epoch of the shard, alive or not; None when nobody ever did."""
        with self._transaction() as connection:
            owner = connection.execute(select(SHARD.c.owner).where(SHARD.c.shard_id == shard_id)).scalar()
        return None if owner is None else owner.decode()

    # --- hosts ---

    def beat(self, name: str, address: str, started_at_ms: int) -> list[HostRow]:
        """Say that the host is alive now, by the clock of this database's server. Returns all rows as they were before.

        The caller's own row among them is of its last heartbeat, or of another process that has the same name.
        """

        def beat(connection: Connection) -> list[HostRow]:
            statement = select(HOST).order_by(HOST.c.heartbeat_at.desc()).limit(limits.HOSTS_MAX + 1)
            rows = [
                HostRow(row.name.decode(), row.address.decode(), row.started_at, row.heartbeat_at)
                for row in connection.execute(statement)
            ]
            if len(rows) > limits.HOSTS_MAX:
                # Those that are left out would look as if they had ended.
                raise UnavailableError(
                    f"the meta database has more than {limits.HOSTS_MAX} hosts, which is the limit: "
                    "delete rows of its table host whose heartbeat_at is long ago"
                )
            values = {"address": address.encode(), "started_at": started_at_ms, "heartbeat_at": SERVER_NOW_MS}
            connection.execute(insert(HOST).values(name=name.encode(), **values).on_duplicate_key_update(**values))
            return rows

        return self._retry_deadlocks(beat)

    def forget_hosts(self) -> None:
        """Delete rows whose last heartbeat was HOST_ROW_MS ago: nobody else does so for a host that crashed.

        A host that lives all the same, beside a clock that was stepped, has its row back with its next heartbeat.
        """
        with self._transaction() as connection:
            connection.execute(delete(HOST).where(HOST.c.heartbeat_at < SERVER_NOW_MS - HOST_ROW_MS))

    def remove_host(self, name: str) -> None:
        """The host ended in order. Does nothing when there is no such host."""
        with self._transaction() as connection:
            connection.execute(delete(HOST).where(HOST.c.name == name.encode()))

    def _connect(self) -> Session:
        wanted = {
            "client_flag": CLIENT.FOUND_ROWS,
            "read_timeout": _STATEMENT_S,
            "write_timeout": _STATEMENT_S,
            "init_command": f"SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = {_STATEMENT_S}",
        }
        return Session(**session_arguments(self._url) | wanted)

    @contextmanager
    def _transaction(self) -> Iterator[Connection]:
        try:
            with self._engine.begin() as connection:
                yield connection
        except (OperationalError, InterfaceError, InternalError, PoolTimeoutError) as error:
            raise UnavailableError(f"the meta database does not answer: {_cause_of(error)}") from error

    def _retry_deadlocks(self, work: Callable[[Connection], T]) -> T:
        """Run `work` in a transaction; again when the server rolled it back to resolve a deadlock."""
        for attempt in range(1, _DEADLOCK_TRIES + 1):
            try:
                with self._transaction() as connection:
                    return work(connection)
            except UnavailableError as error:
                if attempt == _DEADLOCK_TRIES or not _is_deadlock(error.__cause__):
                    raise
        raise AssertionError("unreachable")


def _cause_of(error: Exception) -> BaseException:
    """The driver's own words: SQLAlchemy's are the statement and its parameters at length."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _is_deadlock(error: BaseException | None) -> bool:
    return isinstance(error, OperationalError) and error.orig is not None and error.orig.args[0] == ER.LOCK_DEADLOCK
