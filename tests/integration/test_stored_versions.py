"""A host that does not know the version of a stored format leaves the shard to one that does."""

from __future__ import annotations

from contextlib import closing

import pytest

from foqs.shard.port import ClaimEntries, NewPack, OwnershipLostError, Tombstone, Transaction
from foqs.storage.formats import CLAIM_VERSIONS, PACK_VERSIONS, TOMBSTONE_VERSIONS
from foqs.storage.session import connect
from tests.contract.owner import new_item, new_topic
from tests.support.stores import open_store

pytestmark = pytest.mark.database

ROWS = {
    "pack": ("items", 100, PACK_VERSIONS),
    "tombstone": ("entries", 101, TOMBSTONE_VERSIONS),
    "claim": ("entries", 102, CLAIM_VERSIONS),
}


async def _fill(url):
    with open_store(url) as store:
        items = [new_item(key) for key in range(1, 9)]
        await store.run(Transaction(1, topics_new=[new_topic(1)], packs_new=[NewPack(100, items)]))
        claims = [ClaimEntries(102, 5_000, items[1:3])]
        await store.run(Transaction(2, tombstone=Tombstone(101, [1]), claims=claims))


def _change(url, statement, version):
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute(statement, (version,))
        session.commit()


@pytest.mark.parametrize("table", ROWS)
async def test_a_shard_with_a_row_of_a_later_version_is_not_served_and_nothing_in_it_changes(shard_urls, table):
    url, (column, row_id, versions) = shard_urls[0], ROWS[table]
    await _fill(url)
    change = f"UPDATE {table} SET {column} = CONCAT(%s, SUBSTRING({column}, 2)) WHERE id = {row_id}"
    _change(url, change, b"\x09")
    message = rf"shard 0: row {row_id} of table {table} has version 9 .* reads .*: upgrade this host"
    with pytest.raises(OwnershipLostError, match=message), open_store(url):
        pass
    _change(url, change, bytes([versions[-1]]))
    with open_store(url) as store:
        found = await store.run(Transaction(3, look_ups=list(range(1, 9))))
        assert sorted(found.looked_up) == list(range(2, 9))
