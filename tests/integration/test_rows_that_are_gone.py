"""A transaction that names a row which is gone changes nothing, wherever the row stands among those that it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from foqs.shard.port import OwnershipLostError, Rewrite, Transaction
from foqs.storage.sessions.session import connect
from tests.contract.owner import new_item
from tests.support.stores import open_store

pytestmark = pytest.mark.database

GONE = 3
MOVED, GONE_MOVED = Rewrite(1, -1, 0, 3_000, 1, 1), Rewrite(GONE, -1, 0, 3_000, 1, 1)
RECOUNTED, GONE_RECOUNTED = replace(MOVED, is_in_place=True), replace(GONE_MOVED, is_in_place=True)
CHANGES: dict[str, dict[str, Any]] = {
    "the only statement": {"deletes": [1, 2, GONE]},
    "the first of two": {"wakes": [1, GONE], "deletes": [2]},
    "a wake in place": {"wakes": [1], "wakes_in_place": [2, GONE]},
    "the last of two": {"wakes": [1], "deletes": [2, GONE]},
    "before look-ups": {"deletes": [1, GONE], "look_ups": [2]},
    "the only rewrite": {"rewrites": [GONE_MOVED]},
    "a rewrite before a deletion": {"rewrites": [MOVED, GONE_MOVED], "deletes": [2]},
    "a deletion after a rewrite": {"rewrites": [MOVED], "deletes": [2, GONE]},
    "the only rewrite in place": {"rewrites": [GONE_RECOUNTED]},
    "a deletion after a rewrite in place": {"rewrites": [RECOUNTED], "deletes": [2, GONE]},
    "a claim": {"claims_gone": [1]},
    "a claim after a deletion": {"deletes": [1, 2], "claims_gone": [1]},
}


@pytest.mark.parametrize("changes", CHANGES.values(), ids=CHANGES)
def test_a_transaction_that_names_a_row_which_is_gone_changes_nothing(
    shard_urls: Mapping[int, str], changes: dict[str, Any]
) -> None:
    with open_store(shard_urls[0]) as store, closing(connect(shard_urls[0])) as other, other.cursor() as cursor:
        asyncio.run(store.run(Transaction(1, inserts=[new_item(key) for key in (1, 2, GONE)])))
        cursor.execute(f"DELETE FROM item WHERE id = {GONE}")
        other.commit()
        before = rows(cursor)
        with pytest.raises(OwnershipLostError, match="of those that a transaction was to change or delete it has"):
            asyncio.run(store.run(Transaction(2, **changes)))
        other.commit()
        assert rows(cursor) == before


def test_a_transaction_whose_rows_are_all_there_changes_them_after_one_that_failed(
    shard_urls: Mapping[int, str],
) -> None:
    with open_store(shard_urls[0]) as store:
        asyncio.run(store.run(Transaction(1, inserts=[new_item(key) for key in (1, 2, GONE)])))
        for number in (2, 3):
            with pytest.raises(OwnershipLostError):
                asyncio.run(store.run(Transaction(2, deletes=[1, 2, 99])))
            asyncio.run(store.run(Transaction(number, deletes=[number - 1])))


def rows(cursor: Any) -> tuple[tuple[Any, ...], ...]:
    cursor.execute("SELECT * FROM item ORDER BY id")
    return tuple(cursor.fetchall())
