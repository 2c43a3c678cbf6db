"""A server that answers COMMIT with an error: the error alone does not say whether the transaction happened."""

from __future__ import annotations

import asyncio
import time
from contextlib import closing
from dataclasses import replace

import pytest

from foqs.shard.port import SessionLostError, Transaction
from foqs.storage.sessions.session import connect
from foqs.storage.shard import prepared, shard_store
from tests.contract.owner import new_item
from tests.support.stores import open_store
from tests.support.waiting import PATIENCE_S

pytestmark = pytest.mark.database

FAILS = "SIGNAL SQLSTATE '45000'"
COUNTS = (1, 2 * prepared.PREPARED_INSERT_ROWS + 1)


@pytest.fixture
def store(shard_urls):
    with open_store(shard_urls[0]) as store:
        yield store


@pytest.fixture
def procedure(shard_urls):
    """COMMIT that is answered with an error."""
    with closing(connect(shard_urls[0])) as session, session.cursor() as cursor:
        cursor.execute(f"CREATE PROCEDURE commits_and_fails() BEGIN COMMIT; {FAILS}; END")
        yield "CALL commits_and_fails()"
        cursor.execute("DROP PROCEDURE commits_and_fails")


def run_with_another_commit(store, monkeypatch, commit, count):
    write_script = shard_store.write_script

    def replaced(*arguments):
        writes = write_script(*arguments)
        assert writes.statements[-1] == "COMMIT"
        return replace(writes, statements=[*writes.statements[:-1], commit])

    monkeypatch.setattr(shard_store, "write_script", replaced)
    with pytest.raises(SessionLostError):
        asyncio.run(store.run(Transaction(1, inserts=[new_item(key) for key in range(1, count + 1)], look_ups=[1])))


def reopened(store):
    deadline_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return store.reopen()
        except SessionLostError:
            if time.monotonic() > deadline_s:
                raise


@pytest.mark.parametrize("count", COUNTS)
def test_a_commit_that_happened_and_failed_is_known_to_have_happened(store, procedure, monkeypatch, count):
    run_with_another_commit(store, monkeypatch, procedure, count)
    assert reopened(store) == 1


@pytest.mark.parametrize("count", COUNTS)
def test_a_commit_that_failed_is_known_not_to_have_happened(store, monkeypatch, count):
    run_with_another_commit(store, monkeypatch, FAILS, count)
    assert reopened(store) == 0
