"""The meta database: namespaces, epochs of shards and heartbeats of hosts, shared by all hosts of a cluster.

Its methods block for at most META_STATEMENT_MS_MAX a statement: call them from a worker thread. Hosts keep
serving what they own while it is away, so nothing here stands on the path of an item.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import NamedTuple, TypeVar

from pymysql.constants import CLIENT, ER
from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Integer,
    MetaData,
    RowMapping,
    SmallInteger,
    Table,
    create_engine,
    delete,
    func,
    literal_column,
    select,
    update,
)
from sqlalchemy.dialects.mysql import VARBINARY, insert
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from foqs.core import limits
from foqs.core.errors import AlreadyExistsError, UnavailableError, UnknownNamespaceError
from foqs.core.namespace import Namespace, NamespaceSettings, check_namespace_name, with_changes
from foqs.storage.session import Session, session_arguments

T = TypeVar("T")

METADATA = MetaData()
NAMESPACE = Table(
    "namespace",
    METADATA,
    Column("number", Integer, primary_key=True, autoincrement=True),
    Column("name", VARBINARY(64), nullable=False),
    *(Column(field.name, BigInteger, nullable=False) for field in fields(NamespaceSettings)),
    Column("created_at", BigInteger, nullable=False),
)
SHARD = Table(
    "shard",
    METADATA,
    Column("shard_id", SmallInteger, primary_key=True, autoincrement=False),
    Column("epoch", BigInteger, nullable=False),
    Column("owner", VARBINARY(128), nullable=False),
    Column("owned_since", BigInteger, nullable=False),
)
HOST = Table(
    "host",
    METADATA,
    Column("name", VARBINARY(128), primary_key=True),
    Column("address", VARBINARY(255), nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("heartbeat_at", BigInteger, nullable=False),
)

_SERVER_NOW_MS = literal_column("CAST(UNIX_TIMESTAMP(NOW(3)) * 1000 AS SIGNED)", BigInteger)
"""Right only in a session in UTC: elsewhere an hour comes twice a year."""
_STATEMENT_S = math.ceil(limits.META_STATEMENT_MS_MAX / 1000)
_DEADLOCK_TRIES = 5
_SETTING_TYPES = {field.name: type(getattr(NamespaceSettings(), field.name)) for field in fields(NamespaceSettings)}
"""int, or bool for what the table holds as 0 and 1."""


class HostRow(NamedTuple):
    name: str
    address: str
    started_at: int
    heartbeat_at: int
    """By the clock of the meta database's server, which may step."""


class MetaStore:
    """The meta database at an SQLAlchemy URL. Connects on first use, and again after the server was away.

    Safe for use by several threads; at most META_SESSIONS_MAX of them talk to the server at a time. Every
    method raises UnavailableError, with its cause, when the server does not answer in time; whether a write
    happened is unknown then.
    """

    def __init__(self, url: str) -> None:
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

    # --- namespaces ---

    def list_namespaces(self) -> list[Namespace]:
        """All namespaces, by name."""
        with self._transaction() as connection:
            rows = connection.execute(select(NAMESPACE).order_by(NAMESPACE.c.name)).mappings().all()
        return [_namespace_of(row) for row in rows]

    def insert_namespace(self, name: str, settings: NamespaceSettings, now_ms: int) -> Namespace:
        """Create a namespace under a number that was never used before.

        Raises InvalidArgumentError (the name) and AlreadyExistsError.
        """
        check_namespace_name(name)
        values = {"name": name.encode(), "created_at": now_ms, **_columns_of(settings)}
        try:
            with self._transaction() as connection:
                number = connection.execute(NAMESPACE.insert().values(values)).lastrowid
        except IntegrityError as error:
            raise AlreadyExistsError(f"namespace {name} exists already") from error
        return Namespace(number, name, settings, now_ms)

    def update_namespace(self, name: str, changes: object) -> Namespace:
        """Change the settings that are not None in `changes` (see with_changes), all or none.

        Raises UnknownNamespaceError and InvalidArgumentError.
        """
        mine = NAMESPACE.c.name == name.encode()
        with self._transaction() as connection:
            row = connection.execute(select(NAMESPACE).where(mine).with_for_update()).mappings().one_or_none()
            if row is None:
                raise _unknown(name)
            before = _namespace_of(row)
            settings = with_changes(before.settings, changes)
            connection.execute(update(NAMESPACE).where(mine).values(_columns_of(settings)))
        return Namespace(before.number, name, settings, before.created_at_ms)

    def delete_namespace(self, name: str) -> None:
        """Raises UnknownNamespaceError. That the namespace holds no items is for the caller to see to."""
        with self._transaction() as connection:
            done = connection.execute(delete(NAMESPACE).where(NAMESPACE.c.name == name.encode()))
            if done.rowcount == 0:
                raise _unknown(name)

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
            values = {"address": address.encode(), "started_at": started_at_ms, "heartbeat_at": _SERVER_NOW_MS}
            connection.execute(insert(HOST).values(name=name.encode(), **values).on_duplicate_key_update(**values))
            return rows

        return self._retry_deadlocks(beat)

    def forget_hosts(self) -> None:
        """Delete rows whose last heartbeat was limits.HOST_ROW_MS ago: nobody else does so for a host that crashed.

        A host that lives all the same, beside a clock that was stepped, has its row back with its next heartbeat.
        """
        with self._transaction() as connection:
            connection.execute(delete(HOST).where(HOST.c.heartbeat_at < _SERVER_NOW_MS - limits.HOST_ROW_MS))

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


def _columns_of(settings: NamespaceSettings) -> dict[str, int]:
    return {field.name: int(getattr(settings, field.name)) for field in fields(settings)}


def _namespace_of(row: RowMapping) -> Namespace:
    settings = {field.name: _SETTING_TYPES[field.name](row[field.name]) for field in fields(NamespaceSettings)}
    return Namespace(row["number"], row["name"].decode(), NamespaceSettings(**settings), row["created_at"])


def _unknown(name: str) -> UnknownNamespaceError:
    return UnknownNamespaceError(f"namespace {name!r:.80} does not exist: create it first")


def _cause_of(error: Exception) -> BaseException:
    """The driver's own words: SQLAlchemy's are the statement and its parameters at length."""
    return error.orig if isinstance(error, DBAPIError) and error.orig is not None else error


def _is_deadlock(error: BaseException | None) -> bool:
    return isinstance(error, OperationalError) and error.orig is not None and error.orig.args[0] == ER.LOCK_DEADLOCK
