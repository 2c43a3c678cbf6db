"""Items inserted by a prepared statement: the same rows as by SQL text, and all of a transaction or nothing."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace

import pytest
from pymysql.constants import COMMAND
from pymysql.err import IntegrityError
from structlog.testing import capture_logs

from foqs.model import limits
from foqs.shard.port import (
    DeadlockError,
    OwnershipLostError,
    SessionLostError,
    Transaction,
    TransactionFailedError,
)
from foqs.storage.schema import statements as sql
from foqs.storage.schema.item_columns import stored_row
from foqs.storage.sessions import exchange
from foqs.storage.sessions.exchange import ReplyReader, command_packet, run_script
from foqs.storage.sessions.session import connect
from foqs.storage.shard.formats import pack_items
from foqs.storage.shard.packs import pack_index
from foqs.storage.shard.prepared import PREPARED_INSERT_ROWS, PreparedInserts
from tests.contract.owner import new_item, new_topic
from tests.support.other_session import until_somebody_waits
from tests.support.stores import open_store
from tests.support.waiting import until

pytestmark = pytest.mark.database

PART = PREPARED_INSERT_ROWS
ROWS = sql.READ_ITEMS.format("TRUE")
SIZES = [0, 1, 250, 251, 252, 65_535, 65_536, 70_000]
HOSTILE = [b"\x00", b"\xff" * 9, b"\xfb\xfc\xfd\xfe", b"';--\\", "ü€😀".encode(), b"?,?", b'\n\r\x1a"`%s']


@pytest.fixture
def store(shard_urls):
    with open_store(shard_urls[0]) as store:
        yield store


def run(store, number, **parts):
    return asyncio.run(store.run(Transaction(number, **parts)))


def rows(store):
    found = list(store._rows(ROWS))
    store._session.commit()
    return found


def hostile_items():
    payloads = [b"p" * size for size in SIZES] + HOSTILE
    extremes = {"priority": [-(2**31), 2**31 - 1], "lease_ms": [0, 2**32 - 1], "expires_at": [0, 2**63 - 1]}
    items = []
    for number, payload in enumerate(payloads * 5):
        metadata = HOSTILE[number % len(HOSTILE)] if number % 3 else b"m" * SIZES[number % 6]
        item = new_item(2**63 + number, payload=payload, metadata=metadata)
        item.at_most_once = number % 2 == 1
        for name, values in extremes.items():
            setattr(item, name, values[number % 2])
        if number % 5 == 0:
            item.due_at = item.enqueued_at + 1
        items.append(item)
    return items


def test_rows_are_the_same_as_those_of_sql_text(store):
    items = hostile_items()
    assert len(items) > 2 * PART
    assert len(items) % PART
    assert len(store._inserts.ahead(items).packets) == 2 * (len(items) // PART)
    run(store, 1, inserts=items, topics_new=[new_topic(1)])
    prepared = rows(store)
    run(store, 2, deletes=[item.key for item in items])
    store._inserts = None
    run(store, 3, inserts=items)
    assert rows(store) == prepared
    assert [stored_row(row).content for row in prepared] == [item.content for item in items]


def test_rows_that_are_large_together_go_as_text(store):
    items = [new_item(key, payload=b"x" * limits.PAYLOAD_BYTES_MAX) for key in range(1, 5)]
    items += [new_item(key, payload=b"x" * 100) for key in range(5, 5 + 2 * PART)]
    ahead = store._inserts.ahead(items)
    assert (len(ahead.packets), len(ahead.rest)) == (2, len(items) - PART)
    run(store, 1, inserts=items, topics_new=[new_topic(1)])
    assert [(row[0], stored_row(row).content) for row in rows(store)] == [(item.key, item.content) for item in items]


@pytest.mark.parametrize("taken", [1, PART + 5, 2 * PART, 3 * PART, 3 * PART + 1])
def test_nothing_of_a_transaction_is_done_when_one_of_its_inserts_fails(store, taken):
    run(store, 1, inserts=[new_item(taken), new_item(10**6)], topics_new=[new_topic(1)])
    before = rows(store)
    with pytest.raises(TransactionFailedError, match="Duplicate"):
        run(store, 2, inserts=[new_item(key) for key in range(1, 3 * PART + 2)], deletes=[10**6])
    assert rows(store) == before
    assert store._rows("SELECT transaction_number FROM writer") == ((1,),)
    run(store, 2, inserts=[new_item(key) for key in range(1_000, 1_000 + 3 * PART)], deletes=[10**6])
    assert len(rows(store)) == 1 + 3 * PART


@pytest.mark.interpreted
def test_a_count_that_another_transaction_left_behind_lets_nothing_be_committed(store, monkeypatch):
    """As when the server refuses the command that is to count, and what was inserted is rolled back."""
    items = [new_item(key) for key in range(1, PART + 1)]
    run(store, 1, inserts=items, topics_new=[new_topic(1)])
    ahead = PreparedInserts.ahead

    def without_its_rows(self, items, packs, seen):
        found = ahead(self, items, packs, seen)
        return replace(found, packets=[])

    monkeypatch.setattr(PreparedInserts, "ahead", without_its_rows)
    with pytest.raises(OwnershipLostError, match="does not have all rows"):
        run(store, 2, inserts=[new_item(key) for key in range(1_000, 1_000 + PART)])
    assert len(rows(store)) == PART


def test_another_owner_fences_inserts_that_are_prepared(store, shard_urls):
    run(store, 1, topics_new=[new_topic(1)])
    with closing(connect(shard_urls[0])) as other, other.cursor() as cursor:
        cursor.execute("UPDATE writer SET epoch = epoch + 1")
        other.commit()
    with pytest.raises(OwnershipLostError, match="another epoch"):
        run(store, 2, inserts=[new_item(key) for key in range(1, 2 * PART + 2)])
    assert rows(store) == []


def test_a_deadlock_in_the_middle_of_the_inserts_undoes_those_before_and_after_it(store, shard_urls, mysql_server):
    """The server undoes the whole transaction, and the inserts behind that one are in another one already."""
    run(store, 1, inserts=[new_item(PART + 1)], topics_new=[new_topic(1)])
    items = [new_item(key) for key in range(1, 3 * PART + 1)]
    with closing(connect(shard_urls[0])) as other, other.cursor() as cursor, ThreadPoolExecutor(1) as thread:
        # Heavier than ours, so that ours is the one that the server ends: its own rows, then ours' first.
        cursor.executemany("UPDATE item SET urgency = %s WHERE id = %s", [(n, PART + 1) for n in range(1, 500)])
        waiting = thread.submit(run, store, 2, inserts=items)
        until_somebody_waits(mysql_server)
        cursor.execute("DELETE FROM item WHERE id <= %s", (PART,))
        with pytest.raises(DeadlockError):
            waiting.result()
        other.rollback()
    assert [row[0] for row in rows(store)] == [PART + 1]
    run(store, 2, inserts=[item for item in items if item.key != PART + 1])
    assert len(rows(store)) == 3 * PART


def test_a_number_that_its_column_cannot_hold_is_refused_by_the_server(store):
    run(store, 1, topics_new=[new_topic(1)])
    items = [new_item(key) for key in range(1, PART + 1)]
    items[5].priority = 1 << 31
    with pytest.raises(TransactionFailedError, match="Out of range"):
        run(store, 2, inserts=items)
    assert rows(store) == []


def test_a_table_that_is_locked_fails_a_transaction_without_a_wait_for_each_of_its_inserts(
    store, shard_urls, monkeypatch
):
    monkeypatch.setattr(exchange, "AFTER_ERROR_MS_MAX", 50)
    run(store, 1, topics_new=[new_topic(1)])
    store._rows("SET SESSION lock_wait_timeout = 1")
    with closing(connect(shard_urls[0])) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES item WRITE")
        with pytest.raises(SessionLostError, match=r"no answer in 50 ms after .*Lock wait timeout"):
            run(store, 2, inserts=[new_item(key) for key in range(1, 10 * PART)])
        cursor.execute("UNLOCK TABLES")

    def is_reopened():
        try:
            return store.reopen() == 1
        except SessionLostError:
            return False

    asyncio.run(until(is_reopened))
    assert rows(store) == []
    run(store, 2, inserts=[new_item(key) for key in range(1, 10 * PART)])
    assert len(rows(store)) == 10 * PART - 1


@pytest.mark.parametrize("prepared", [True, False])
def test_packs_are_the_same_as_those_of_sql_text(store, prepared, monkeypatch):
    monkeypatch.setattr(pack_index, "PACK_ITEM_BYTES_MAX", 1 << 30)
    monkeypatch.setattr(pack_index, "PACK_BYTES_MAX", 1 << 30)
    monkeypatch.setattr(limits, "PACKS_OF_SHARD_BYTES_MAX", 1 << 30)
    packs = []
    for number, size in enumerate(SIZES):
        items = [new_item(1_000 * number + n, payload=HOSTILE[n % len(HOSTILE)] + b"x" * size) for n in range(9)]
        packs.append(items)
    rest = [new_item(10**7 + n) for n in range(PART + 1)]
    if not prepared:
        store._inserts = None
    run(store, 1, topics_new=[new_topic(1)], inserts=rest)
    for number, items in enumerate(packs, start=2):
        run(store, number, inserts_short_lived=items)
    stored = store._rows("SELECT items FROM pack ORDER BY id")
    assert list(stored) == [(pack_items(items),) for items in packs]
    assert [row[0] for row in rows(store)] == [item.key for item in rest]


def test_a_pack_that_is_refused_takes_the_whole_transaction_with_it(store):
    run(store, 1, inserts_short_lived=[new_item(n) for n in range(1, 9)], topics_new=[new_topic(1)])
    with pytest.raises(TransactionFailedError, match="Duplicate"):  # The number gives the pack's id.
        run(
            store, 1, inserts_short_lived=[new_item(n) for n in range(10, 18)],
            inserts=[new_item(n) for n in range(20, 20 + 2 * PART)],
        )  # fmt: skip
    assert rows(store) == []
    assert store._rows("SELECT COUNT(*) FROM pack") == ((1,),)


def test_a_server_with_no_room_for_a_prepared_statement_gets_sql_text(shard_urls, mysql_server):
    with closing(mysql_server.connect()) as admin, admin.cursor() as cursor:
        cursor.execute("SELECT @@max_prepared_stmt_count")
        (most,) = cursor.fetchone()
        cursor.execute("SET GLOBAL max_prepared_stmt_count = 0")
        try:
            with capture_logs() as logs, open_store(shard_urls[0]) as store:
                assert store._inserts is None
                assert [line["event"] for line in logs] == ["inserts_not_prepared"]
                run(store, 1, inserts=[new_item(key) for key in range(1, 100)], topics_new=[new_topic(1)])
                assert len(rows(store)) == 99
        finally:
            cursor.execute(f"SET GLOBAL max_prepared_stmt_count = {most}")


def test_answers_to_several_commands_may_come_in_any_pieces_and_the_first_error_is_raised(store):
    """An insert that works, one that does not, and a script that runs all the same."""
    sound = store._inserts.ahead([new_item(key) for key in range(1, 2 * PART + 1)])
    query = command_packet(COMMAND.COM_QUERY, f"SELECT {sound.guard};SELECT nothing;SELECT 5".encode())
    packets = [*sound.packets[:2], sound.packets[0], *sound.packets[2:], query]
    store._session._sock.sendall(b"".join(packets))
    answer = b""

    def read(reader, size):
        nonlocal answer
        at = 0
        while not reader.done:
            if at == len(answer):
                answer += store._session._sock.recv(1 << 20)
            at, start = min(at + size, len(answer)), at
            reader.feed(answer[start:at])

    for size in (1 << 20, 1, 2, 3, 7, 1_000):
        reader = ReplyReader(len(packets))
        with pytest.raises(IntegrityError, match="Duplicate"):
            read(reader, size)
        assert reader.done
        assert reader.results == [[(1,)]]
    assert asyncio.run(run_script(store._session, ["ROLLBACK", "SELECT COUNT(*) FROM item"])) == [[], [(0,)]]
