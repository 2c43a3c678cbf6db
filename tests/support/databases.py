"""The private MySQL server of a test process and its databases.

Databases are created and migrated once; between tests every session is ended and every table that was used is
brought back to what the migrations left in it, which takes milliseconds.
"""

from __future__ import annotations

import fcntl
import inspect
import os
import shutil
from contextlib import closing
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

import pymysql
from pymysql.constants import ER

from foqs.dev import local_server
from foqs.dev.local_access import TcpListener
from foqs.dev.local_server import LocalServer, LocalServerError, ServerBinary, find_server_binary
from foqs.storage.schema.migrations import SchemaKind, apply

SHARD_COUNT = 4
_DELETED_ROWS_MAX = 2_000
BINARY_VARIABLE = "FOQS_TEST_MYSQLD"
_TEMPLATES = Path(__file__).parents[2] / "build/test-servers"


def server_binary() -> ServerBinary:
    """The server that tests run against: FOQS_TEST_MYSQLD, else what foqs itself would find."""
    try:
        return find_server_binary(os.environ.get(BINARY_VARIABLE))
    except LocalServerError as error:
        raise LocalServerError(f"tests of the database need a MySQL server ({BINARY_VARIABLE}): {error}") from error


def new_server(data_dir: Path, *options: str, listener: TcpListener | None = None) -> LocalServer:
    """A private server that is not started yet, for tests that kill, pause or misconfigure it."""
    return LocalServer(
        data_dir,
        binary=server_binary().path,
        buffer_pool_mib=64,
        log_file_mib=16,
        options=options,
        listener=listener,
    )


def prepared_server(data_dir: Path, *options: str, listener: TcpListener | None = None) -> LocalServer:
    """The same on a copy of system tables that were made once, which takes a third of the time."""
    server = new_server(data_dir, *options, listener=listener)
    data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    data_dir.chmod(0o700)
    shutil.copytree(_system_tables(), data_dir / "mysql")
    return server


def _system_tables() -> Path:
    """The directory of a server that was initialised and stopped. All test processes and later runs share it."""
    binary = server_binary()
    key = sha256(f"{binary.version} {binary.path} {inspect.getsource(local_server)}".encode()).hexdigest()[:16]
    directory = _TEMPLATES / key
    _TEMPLATES.mkdir(parents=True, exist_ok=True)
    with (_TEMPLATES / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            with TemporaryDirectory(dir=_TEMPLATES) as scratch:
                with new_server(Path(scratch) / "data"):
                    pass
                # Two servers must not have one identity.
                (Path(scratch) / "data/mysql/auto.cnf").unlink(missing_ok=True)
                (Path(scratch) / "data/mysql").rename(directory)
    return directory


@dataclass(frozen=True, slots=True)
class _Table:
    database: str
    name: str
    first_rows: tuple[tuple[object, ...], ...]

    @property
    def qualified(self) -> str:
        return f"{self.database}.{self.name}"


class Databases:
    """One meta database and the shard databases of one server, migrated."""

    def __init__(self, server: LocalServer) -> None:
        self.server = server
        self.meta_url = server.url("meta")
        self.shard_urls = {shard_id: server.url(f"shard_{shard_id}") for shard_id in range(SHARD_COUNT)}
        apply(self.meta_url, SchemaKind.META)
        for url in self.shard_urls.values():
            apply(url, SchemaKind.SHARD)
        self._tables = self._read_tables()

    def wipe(self) -> None:
        """End all sessions and bring every table back to what the migrations left in it."""
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'"
            )
            for (session_id,) in cursor.fetchall():
                self._kill(cursor, session_id)
            for table, count in self._changed(cursor):
                # A truncation makes a new file, which takes longer than to delete some rows.
                cursor.execute(f"{'TRUNCATE TABLE' if count > _DELETED_ROWS_MAX else 'DELETE FROM'} {table.qualified}")
                for row in table.first_rows:
                    cursor.execute(f"INSERT INTO {table.qualified} VALUES ({', '.join(['%s'] * len(row))})", row)
            connection.commit()

    def _changed(self, cursor: pymysql.cursors.Cursor) -> list[tuple[_Table, int]]:
        """The tables that have other rows than the migrations left in them, each with a count of rows up to a bound."""
        counts = " UNION ALL ".join(
            [
                f"SELECT {number}, COUNT(*) FROM (SELECT 1 FROM {table.qualified} LIMIT {_DELETED_ROWS_MAX + 1}) AS t"
                for number, table in enumerate(self._tables)
            ]
        )
        cursor.execute(counts)
        changed = []
        for number, count in cursor.fetchall():
            table = self._tables[number]
            if count == len(table.first_rows) > 0:
                cursor.execute(f"SELECT * FROM {table.qualified}")
                if cursor.fetchall() == table.first_rows:
                    continue
            if count or table.first_rows:
                changed.append((table, count))
        return changed

    @staticmethod
    def _kill(cursor: pymysql.cursors.Cursor, session_id: int) -> None:
        try:
            cursor.execute(f"KILL {session_id}")
        except pymysql.err.MySQLError as error:
            if error.args[0] != ER.NO_SUCH_THREAD:  # it ended by itself meanwhile
                raise

    def _read_tables(self) -> list[_Table]:
        databases = ["meta", *(f"shard_{shard_id}" for shard_id in self.shard_urls)]
        with closing(self.server.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT table_schema, table_name FROM information_schema.tables WHERE table_schema IN %s",
                (databases,),
            )
            names = cursor.fetchall()
            tables = []
            for database, name in names:
                cursor.execute(f"SELECT * FROM {database}.{name}")
                tables.append(_Table(database, name, cursor.fetchall()))
            return tables
