"""The table of columns is that of the database."""

from __future__ import annotations

import re
from contextlib import closing

import pytest

from foqs.storage.schema.item_columns import ITEM_COLUMNS
from foqs.storage.sessions.session import connect

pytestmark = pytest.mark.database

READ_COLUMNS = (
    "SELECT column_name, column_type, is_nullable, column_default FROM information_schema.columns "
    "WHERE table_schema = DATABASE() AND table_name = 'item'"
)


def _sql_type(kind: str, nullable: str, default: str | None) -> str:
    """As the table writes it; servers differ in the width of integers and in what they call no default."""
    written = re.sub(r"int\(\d+\)", "int", kind) + (" NULL" if nullable == "YES" else " NOT NULL")
    if default is None or default == "NULL":
        return written
    return f"{written} DEFAULT {default or repr(default)}"


def test_the_schema_has_the_columns_of_the_table_with_their_types_and_defaults(shard_urls) -> None:
    with closing(connect(shard_urls[0])) as session, session.cursor() as cursor:
        cursor.execute(READ_COLUMNS)
        rows = [[value.decode() if isinstance(value, bytes) else value for value in row] for row in cursor.fetchall()]
    found = {name: _sql_type(kind, nullable, default) for name, kind, nullable, default in rows}
    assert found == {column.name: column.sql_type for column in ITEM_COLUMNS}
