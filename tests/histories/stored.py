"""The items of a shard as its tables have them, read past any host."""

from __future__ import annotations

from contextlib import closing

from foqs.shard.port import ItemRow
from foqs.storage.schema import statements as sql
from foqs.storage.schema.item_columns import stored_row
from foqs.storage.sessions.session import connect
from foqs.storage.sessions.whole_reads import without_end
from foqs.storage.shard.formats import unpack_entries, unpack_items, unpack_keys
from tests.histories.history import uid_of


def item_rows(url: str) -> list[ItemRow]:
    """All of one moment: those with rows of their own, in the order of their keys, and then those in packs."""
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute(sql.REPEATABLE)
        cursor.execute(sql.SNAPSHOT)
        cursor.execute(sql.READ_ITEMS.format("TRUE"))
        rows = [stored_row(row) for row in without_end(cursor.fetchall())]
        cursor.execute(sql.READ_TOMBSTONES)
        gone = {key for _, packed in without_end(cursor.fetchall()) for key in unpack_keys(packed)}
        cursor.execute("SELECT items FROM pack ORDER BY id")
        return rows + [row for (packed,) in cursor.fetchall() for row in unpack_items(packed) if row.key not in gone]


def topic_names(url: str) -> dict[int, str]:
    """The hidden names of the topics of a shard by number."""
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT number, name FROM topic")
        return {number: name.decode() for number, name in cursor.fetchall()}


def at_most_once_claims(url: str) -> dict[str, set[int]]:
    """Of a shard whose owner was killed: by uid, deliveries of items that come once at most, claimed for calls.

    A call may have ended without its item by then, as the owner alone knew; the next one takes it for delivered.
    """
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute(sql.READ_CLAIMS, (0,))
        found = [unpack_entries(packed) for _, _, is_ahead, packed in without_end(cursor.fetchall()) if not is_ahead]
    claimed = {entry for entries in found for entry in entries}
    return {
        uid_of(row.content.payload): {row.deliveries + 1}
        for row in item_rows(url)
        if row.at_most_once and (row.key, row.deliveries + 1) in claimed
    }
