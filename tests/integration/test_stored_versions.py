"""A host reads what the versions before it wrote, and leaves a shard with a later version to a host that knows it."""

from __future__ import annotations

from contextlib import closing

import pytest

from foqs.model.calls import ItemContent
from foqs.shard.port import ClaimEntries, OwnershipLostError, Transaction
from foqs.storage.sessions.session import connect
from foqs.storage.shard.formats import CLAIM_VERSIONS, PACK_VERSIONS, TOMBSTONE_VERSIONS
from tests.contract.owner import new_item, new_topic
from tests.support.stores import open_store
from tests.unit.test_formats import TOP_64, golden

pytestmark = pytest.mark.database

ROWS = {
    "pack": ("items", PACK_VERSIONS),
    "tombstone": ("entries", TOMBSTONE_VERSIONS),
    "claim": ("entries", CLAIM_VERSIONS),
}


async def _fill(url):
    with open_store(url) as store:
        items = [new_item(key) for key in range(1, 9)]
        await store.run(Transaction(1, topics_new=[new_topic(1)], inserts_short_lived=items))
        claims = [ClaimEntries(102, 5_000, items[1:3])]
        await store.run(Transaction(2, deletes=[1], claims=claims))


def _change(url, statement, version):
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute(statement, (version,))
        session.commit()


@pytest.mark.parametrize("table", ROWS)
async def test_a_shard_with_a_row_of_a_later_version_is_not_served_and_nothing_in_it_changes(shard_urls, table):
    url, (column, versions) = shard_urls[0], ROWS[table]
    await _fill(url)
    change = f"UPDATE {table} SET {column} = CONCAT(%s, SUBSTRING({column}, 2))"
    _change(url, change, b"\x09")
    message = rf"shard 0: row \d+ of table {table} has version 9 .* reads .*: upgrade this host"
    with pytest.raises(OwnershipLostError, match=message), open_store(url):
        pass
    _change(url, change, bytes([versions[-1]]))
    with open_store(url) as store:
        found = await store.run(Transaction(3, look_ups=list(range(1, 9))))
        assert sorted(found.looked_up) == list(range(2, 9))


INSERT_BEFORE_TRACE_CONTEXT = (
    "INSERT INTO item (id, lane, urgency, due_at, topic, priority, enqueued_at, expires_at, lease_ms, at_most_once, "
    "payload, metadata) VALUES (77, 1, 0, 5, 1, 0, 5, 9, 0, 0, %s, 'm')"
)


async def test_a_row_and_a_pack_that_an_owner_of_the_version_before_wrote_are_read(shard_urls):
    """As one does that had the shard before the migration, and continues until it ends."""
    url = shard_urls[0]
    _change(url, INSERT_BEFORE_TRACE_CONTEXT, b"of a row")
    _change(url, "INSERT INTO pack (id, items) VALUES (9, %s)", golden("pack", 1))
    with open_store(url) as store:
        found = await store.run(Transaction(1, look_ups=[1, 2, TOP_64, 77], look_ups_with_payload=True))
    contents = {key: row.content for key, row in found.looked_up.items()}
    assert contents[1] == ItemContent(b"payload", b"meta", b"")
    assert contents[77] == ItemContent(b"of a row", b"m", b"")
    assert sorted(contents) == [1, 2, 77, TOP_64]
