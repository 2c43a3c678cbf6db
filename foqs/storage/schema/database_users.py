"""The privileges of two database users: one makes and changes the tables, the other one serves.

The user of the hosts gets no privilege by which it could change a schema, forge the secret or the id of the cluster, or
rewrite the audit.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from foqs.model.errors import InvalidArgumentError
from foqs.storage.schema.migrations import SchemaKind, load_migrations

_SCHEMA_PRIVILEGES: Final = "SELECT, INSERT, UPDATE, DELETE, CREATE, ALTER, INDEX, DROP"
_READ: Final = "SELECT"
_ADD: Final = "SELECT, INSERT"
_CHANGE: Final = "SELECT, INSERT, UPDATE, DELETE"
_OF_TABLE: Final = {
    (SchemaKind.META, "cluster_secret"): _ADD,
    (SchemaKind.META, "cluster_id"): _ADD,
    (SchemaKind.META, "audit"): _ADD,
}
"""The tables whose rows a host does not change. It changes the rows of all others, but those of `schema_migration`."""
_RECORDS: Final = "schema_migration"
_CREATE: Final = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?`?(\w+)`?", re.IGNORECASE)
_DROP: Final = re.compile(r"DROP TABLE (?:IF EXISTS )?`?(\w+)`?", re.IGNORECASE)
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,32}", re.ASCII)
_FROM: Final = re.compile(r"[A-Za-z0-9._%:/-]{1,255}", re.ASCII)


class DatabaseUser(NamedTuple):
    """A user of MySQL, and the machines from which it logs in."""

    name: str
    machines: str

    def __str__(self) -> str:
        return f"'{self.name}'@'{self.machines}'"


class Database(NamedTuple):
    """A database of foqs on one server."""

    kind: SchemaKind
    name: str


def account(text: str) -> DatabaseUser:
    """Return the account of NAME or NAME@MACHINES. Raises InvalidArgumentError."""
    name, _, machines = text.partition("@")
    if not _NAME.fullmatch(name) or not _FROM.fullmatch(machines or "%"):
        raise InvalidArgumentError(
            f"{text!r:.80} is no account: use NAME or NAME@MACHINES, with up to 32 of A-Z a-z 0-9 . _ - in NAME"
        )
    return DatabaseUser(name, machines or "%")


def creation(user: DatabaseUser) -> str:
    """Return the statement that makes a user. It is locked, since the password is not for a text that is printed."""
    return f"CREATE USER IF NOT EXISTS {user} ACCOUNT LOCK"


def schema_grants(user: DatabaseUser, databases: Iterable[Database]) -> Iterator[str]:
    """Yield the statements for the user that makes and changes the databases, which need not exist yet."""
    for database in databases:
        # In the name of a database, but not in that of a table, _ stands for any character.
        name = _quoted(database.name.replace("\\", "\\\\").replace("_", "\\_").replace("%", "\\%"))
        yield f"GRANT {_SCHEMA_PRIVILEGES} ON {name}.* TO {user}"


def data_grants(user: DatabaseUser, databases: Iterable[Database]) -> Iterator[str]:
    """Yield the statements for the user of the hosts. The tables must exist."""
    for kind, name in databases:
        for table in tables_of(kind):
            privileges = _READ if table == _RECORDS else _OF_TABLE.get((kind, table), _CHANGE)
            yield f"GRANT {privileges} ON {_quoted(name)}.{_quoted(table)} TO {user}"


def tables_of(kind: SchemaKind) -> list[str]:
    """Return the tables that the migrations of a kind leave, in the order of their creation."""
    tables = {_RECORDS: None}
    for migration in load_migrations(kind):
        for statement in migration.statements:
            if made := _CREATE.match(statement):
                tables[made[1]] = None
            elif dropped := _DROP.match(statement):
                tables.pop(dropped[1], None)
    return list(tables)


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
