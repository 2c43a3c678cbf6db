"""Numbered forward-only migrations of the shard and meta databases.

A migration is a file `schema/<kind>/NNNN_name.sql`; a statement ends with ';' at the end of a line. Each database keeps
its own record in `schema_migration`. MySQL commits every DDL statement on its own, so the record counts statements, and
an interrupted migration continues at the first statement not yet counted.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import pymysql
from pymysql.constants import CLIENT, CR, ER
from sqlalchemy import make_url

from foqs.model import limits
from foqs.model.errors import UnavailableError
from foqs.storage.schema.read_only import read_only_problem
from foqs.storage.sessions.passwords import shown_url
from foqs.storage.sessions.session import Session, session_arguments
from foqs.storage.sessions.session_variables import set_variables
from foqs.storage.sessions.whole_reads import complete, ended

_FILE_NAME = re.compile(r"(?P<number>\d{4})_(?P<name>[a-z0-9_]+)\.sql")
_STATEMENT_END = re.compile(r";[ \t]*$", re.MULTILINE)
_LOCK_WAIT_S = 60
_DONE_ALREADY = (ER.TABLE_EXISTS_ERROR, ER.DUP_FIELDNAME, ER.DUP_KEYNAME, ER.CANT_DROP_FIELD_OR_KEY)
"""The errors of a DDL statement that was already carried out."""
_CONNECTION_LOST = (CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST)

_CREATE_RECORD = """
CREATE TABLE IF NOT EXISTS schema_migration (
  number INT UNSIGNED NOT NULL,
  name VARBINARY(255) NOT NULL,
  checksum VARBINARY(64) NOT NULL,
  statements_done INT UNSIGNED NOT NULL,
  -- When its last statement was done; 0 before, and -1 after the server refused a statement.
  applied_at BIGINT NOT NULL,
  PRIMARY KEY (number)
) ENGINE=InnoDB"""

_READ_RECORDS = ended("SELECT number, name, checksum, statements_done, applied_at FROM schema_migration", "ussus")


class SchemaKind(StrEnum):
    SHARD = "shard"
    META = "meta"


class MigrationError(Exception):
    """The database cannot be brought to this version's schema; the message has the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class Migration:
    number: int
    name: str
    statements: tuple[str, ...]

    @property
    def checksum(self) -> str:
        """Return the checksum of the statements without comments, so that a comment can be corrected later."""
        return hashlib.sha256("\0".join(self.statements).encode()).hexdigest()

    def __str__(self) -> str:
        return f"{self.number:04d}_{self.name}"


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """Names the `applied` and `pending` migrations, and the `problems` that keep apply() from working.

    `warnings` are risks of data loss that do not affect the schema itself.
    """

    database: str
    applied: tuple[str, ...]
    pending: tuple[str, ...]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_current(self) -> bool:
        return not self.pending and not self.problems


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    checksum: str
    statements_done: int
    applied_at: int

    @property
    def is_applied(self) -> bool:
        return self.applied_at > 0

    @property
    def is_in_doubt(self) -> bool:
        """True if the process ended in between, so that the next statement was possibly carried out."""
        return self.applied_at == 0


def load_migrations(kind: SchemaKind, directory: Path | None = None) -> tuple[Migration, ...]:
    """Load the migrations of a kind in order. Raises MigrationError if they are not numbered 1, 2, 3, ..."""
    directory = directory or _schema_directory(kind)
    migrations = []
    for path in sorted(directory.glob("*.sql")):
        match = _FILE_NAME.fullmatch(path.name)
        if match is None:
            raise MigrationError(f"{path} is not named NNNN_name.sql")
        statements = tuple(split_statements(path.read_text(encoding="utf-8")))
        migrations.append(Migration(int(match["number"]), match["name"], statements))
    numbers = [migration.number for migration in migrations]
    if not numbers or numbers != list(range(1, len(numbers) + 1)):
        raise MigrationError(f"the migrations in {directory} are numbered {numbers}, not 1, 2, 3, ...")
    return tuple(migrations)


def split_statements(sql: str) -> list[str]:
    """Split a migration into statements, without comment lines."""
    code = "\n".join(line for line in sql.splitlines() if not line.lstrip().startswith("--"))
    return [statement.strip() for statement in _STATEMENT_END.split(code) if statement.strip()]


def apply(url: str, kind: SchemaKind, directory: Path | None = None) -> list[Migration]:
    """Create the database if it does not exist, and bring it to this version's schema.

    Returns the migrations that this call applied. Only one caller at a time works on a database; others wait.
    Raises MigrationError (a changed checksum, a database newer than the code, a statement that failed, a session that
    was lost) and UnavailableError (no connection).
    """
    migrations = load_migrations(kind, directory)
    _create_database_if_missing(url)
    try:
        with closing(_connect(url)) as connection, _database_lock(connection, _database_of(url)):
            return _apply_pending(connection, _database_of(url), migrations)
    except pymysql.MySQLError as error:
        raise MigrationError(f"database {_database_of(url)}: {error}") from error


def _apply_pending(
    connection: pymysql.Connection[Any], database: str, migrations: tuple[Migration, ...]
) -> list[Migration]:
    _execute(connection, _CREATE_RECORD)
    records = _read_records(connection)
    problems = _problems(migrations, records)
    if problems:
        raise MigrationError(f"database {database}: {'; '.join(problems)}")
    applied = []
    for migration in migrations:
        record = records.get(migration.number)
        if record is None or not record.is_applied:
            _apply_one(connection, migration, record)
            applied.append(migration)
    return applied


def schema_version(kind: SchemaKind) -> int:
    """Return the number of this version's newest migration. Raises MigrationError."""
    return load_migrations(kind)[-1].number


def check_current(url: str, kind: SchemaKind) -> None:
    """Raise MigrationError unless the database has exactly this version's schema."""
    found = status(url, kind)
    if kind is SchemaKind.SHARD and not found.applied and not found.problems:
        raise MigrationError(
            f"database {found.database} is not there or empty: if hosts have served this shard before, restore it, or "
            "correct its URL; if the shard is new, foqs schema apply makes its tables"
        )
    if not found.is_current:
        pending = f"{len(found.pending)} migrations are pending: run `foqs schema apply`"
        raise MigrationError(f"database {found.database}: {'; '.join(found.problems) or pending}")


def status(url: str, kind: SchemaKind, directory: Path | None = None) -> SchemaStatus:
    """Return the applied and pending migrations. All are pending for a database that does not exist.

    Raises UnavailableError without a connection.
    """
    migrations = load_migrations(kind, directory)
    records: dict[int, _Record] = {}
    warning = ""
    try:
        # Use a short timeout, because a starting host must not wait for a hanging server; only migrations can take
        # long.
        with closing(_connect(url, read_timeout=limits.CONNECT_MS_MAX // 1000)) as connection:
            warning = _read_only_warning(connection)
            records = _read_records(connection)
    except pymysql.MySQLError as error:
        if _code(error) not in (ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE):
            raise MigrationError(f"database {_database_of(url)}: {error}") from error
    done = {number for number, record in records.items() if record.is_applied}
    return SchemaStatus(
        database=_database_of(url),
        applied=tuple(f"{number:04d}_{records[number].name}" for number in sorted(done)),
        pending=tuple(str(migration) for migration in migrations if migration.number not in done),
        problems=tuple(_problems(migrations, records)),
        warnings=(warning,) if warning else (),
    )


def _read_only_warning(connection: Any) -> str:
    def rows(statement: str) -> Any:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchall()

    return read_only_problem(rows)


def _schema_directory(kind: SchemaKind) -> Path:
    packaged = Path(__file__).parent / kind
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "schema" / kind


def _database_of(url: str) -> str:
    database = make_url(url).database
    if not database:
        raise MigrationError("the URL names no database: end it with /NAME")
    return database


def _connect(url: str, **arguments: Any) -> pymysql.Connection[Any]:
    parsed = make_url(url)
    try:
        session = Session(
            **session_arguments(parsed) | {"client_flag": CLIENT.FOUND_ROWS | CLIENT.MULTI_STATEMENTS} | arguments
        )
        try:
            # An ALTER TABLE waits for earlier transactions.
            set_variables(session, lock_wait_s=_LOCK_WAIT_S)
        except BaseException:
            session._force_close()
            raise
        return session
    except pymysql.err.OperationalError as error:
        if _code(error) == ER.BAD_DB_ERROR:
            raise
        raise UnavailableError(f"no connection to {shown_url(parsed)}: {error}") from error


def _create_database_if_missing(url: str) -> None:
    database = _database_of(url)
    try:
        _connect(url).close()
    except pymysql.err.OperationalError:
        bare = make_url(url).set(database="").render_as_string(hide_password=False)
        quoted = "`" + database.replace("`", "``") + "`"
        with closing(_connect(bare)) as connection:
            _execute(connection, f"CREATE DATABASE IF NOT EXISTS {quoted} CHARACTER SET utf8mb4")


@contextmanager
def _database_lock(connection: pymysql.Connection[Any], database: str) -> Iterator[None]:
    # Named locks belong to the whole server and have at most 64 characters.
    name = "foqs.schema." + hashlib.sha256(database.encode()).hexdigest()[:32]
    with connection.cursor() as cursor:
        cursor.execute("SELECT GET_LOCK(%s, %s)", (name, _LOCK_WAIT_S))
        row = cursor.fetchone()
        if row is None or row[0] != 1:
            raise MigrationError(f"database {database}: another migration has run for over {_LOCK_WAIT_S} s")
        # Closing the session frees the lock in any case.
        yield


def _read_records(connection: pymysql.Connection[Any]) -> dict[int, _Record]:
    with connection.cursor() as cursor:
        cursor.execute(_READ_RECORDS)
        return {
            number: _Record(name.decode(), checksum.decode(), done, applied_at)
            for number, name, checksum, done, applied_at in complete(_READ_RECORDS, cursor.fetchall())
        }


def _problems(migrations: tuple[Migration, ...], records: dict[int, _Record]) -> list[str]:
    known = {migration.number: migration for migration in migrations}
    problems = []
    for number, record in sorted(records.items()):
        migration = known.get(number)
        if migration is None:
            problems.append(f"it has migration {number:04d}_{record.name}, which this version does not know")
        elif migration.checksum != record.checksum:
            problems.append(
                f"migration {migration} was changed after it was applied: another version of foqs made the database, "
                "and can use it"
            )
    return problems


def _apply_one(connection: pymysql.Connection[Any], migration: Migration, record: _Record | None) -> None:
    if record is None:
        _execute(
            connection,
            "INSERT INTO schema_migration (number, name, checksum, statements_done, applied_at)"
            " VALUES (%s, %s, %s, 0, 0)",
            (migration.number, migration.name, migration.checksum),
        )
    done = record.statements_done if record else 0
    _note_progress(connection, migration, done, 0)
    for position in range(done, len(migration.statements)):
        try:
            _execute(connection, migration.statements[position], commit=False)
        except MigrationError as error:
            in_doubt = record is not None and record.is_in_doubt and position == done
            if not in_doubt or _code(error.__cause__) not in _DONE_ALREADY:
                if _code(error.__cause__) not in _CONNECTION_LOST:
                    _note_progress(connection, migration, position, -1)
                raise MigrationError(f"migration {migration}, statement {position + 1}: {error}") from error
        _note_progress(connection, migration, position + 1, 0)
    _note_progress(connection, migration, len(migration.statements), time.time_ns() // 1_000_000)


def _note_progress(
    connection: pymysql.Connection[Any], migration: Migration, statements_done: int, applied_at: int
) -> None:
    """Record the progress; this also commits the last statement, unless it was DDL, so both or neither take effect."""
    _execute(
        connection,
        "UPDATE schema_migration SET statements_done = %s, applied_at = %s WHERE number = %s",
        (statements_done, applied_at, migration.number),
    )


def _execute(
    connection: pymysql.Connection[Any],
    statement: str,
    arguments: tuple[object, ...] | None = None,
    *,
    commit: bool = True,
) -> None:
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement, arguments)
        if commit:
            connection.commit()
    except pymysql.MySQLError as error:
        raise MigrationError(str(error)) from error


def _code(error: BaseException | None) -> int | None:
    return error.args[0] if error is not None and error.args and isinstance(error.args[0], int) else None
