"""The items of a shard as its tables have them, read past any host."""

from __future__ import annotations

from contextlib import closing

from foqs.shard.port import ItemRow
from foqs.storage import statements as sql
from foqs.storage.columns import stored_row
from foqs.storage.formats import unpack_items, unpack_keys
from foqs.storage.session import connect


def item_rows(url: str) -> list[ItemRow]:
    """All of one moment: those with rows of their own, in the order of their keys, and then those in packs."""
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute(sql.REPEATABLE)
        cursor.execute(sql.SNAPSHOT)
        cursor.execute(sql.READ_ITEMS.format("TRUE"))
        rows = [stored_row(row) for row in cursor.fetchall()]
        cursor.execute(sql.READ_TOMBSTONES)
        gone = {key for _, packed in cursor.fetchall() for key in unpack_keys(packed)}
        cursor.execute("SELECT items FROM pack ORDER BY id")
        return rows + [row for (packed,) in cursor.fetchall() for row in unpack_items(packed) if row.key not in gone]
