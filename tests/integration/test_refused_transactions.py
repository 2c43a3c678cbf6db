"""What the host makes of a server that refuses its transactions: deadlocks, lock waits, read-only, a full disk."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any

import pytest
from pymysql.err import OperationalError
from structlog.testing import capture_logs

from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import ids
from foqs.model.errors import FoqsError
from foqs.shard.writer import keeper
from foqs.storage.shard.packs import pack_index
from tests.support.other_session import deadlock, row_locked
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database

TOLD_RATIO = 3
"""So many failures there are at least to each that is told: one a minute of each reason is."""


@pytest.fixture
async def running(
    meta_url: str, shard_urls: Mapping[int, str], monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[RunningHost]:
    """All items have rows."""
    monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", 1_000)
    async with running_host(meta_url, {0: shard_urls[0]}) as running:
        yield running


async def delivered(running: RunningHost, count: int) -> list[str]:
    """The receipts of new items."""
    await running.client.enqueue_many("jobs", [NewItem("t", b"x") for _ in range(count)])
    receipts: list[str] = []
    while len(receipts) < count:
        items = await running.client.dequeue("jobs", "t", count, wait_ms=20_000, lease_ms=600_000)
        assert items
        receipts += [item.receipt for item in items]
    return receipts


def key_of(receipt: str) -> int:
    return ids.parse(receipt)[1]


async def test_nobody_is_told_of_a_deadlock(running: RunningHost, mysql_server: LocalServer) -> None:
    receipts = await delivered(running, 20)
    with capture_logs() as logs, deadlock(mysql_server, "shard_0", key_of(receipts[0])):
        answers = await asyncio.gather(
            running.client.ack("jobs", receipts),
            running.client.enqueue("jobs", "other", b"beside"),
        )
    assert answers[0] == {}
    assert [log["event"] for log in logs if "shard" in log] == ["transaction_deadlocked"]
    assert running.rows("SELECT COUNT(*) FROM item") == [(1,)]
    assert running.rows("SELECT COUNT(*) FROM claim WHERE id >= 1 << 62") == [(0,)]


async def test_a_lock_that_is_held_for_long_fails_the_whole_transaction(
    running: RunningHost, mysql_server: LocalServer
) -> None:
    receipts = await delivered(running, 20)
    (shortened,) = running.host._shards.writers.values()
    shortened._store._rows("SET SESSION innodb_lock_wait_timeout = 1")
    with row_locked(mysql_server, "shard_0", key_of(receipts[-1])), capture_logs() as logs:
        errors = await running.client.ack("jobs", receipts, return_errors=True)
        assert errors.keys() == set(range(20))
        assert running.rows("SELECT COUNT(*) FROM item") == [(20,)], "not a part of it is done"
    assert "transaction_failed" in [log["event"] for log in logs]
    assert await running.client.ack("jobs", receipts) == {}
    assert running.items_stored() == 0


@pytest.fixture
def unprivileged_urls(mysql_server: LocalServer, shard_urls: dict[int, str]) -> Iterator[dict[int, str]]:
    """The shards by an account that may not write to a server that is read-only, as it should be in production."""
    with closing(mysql_server.connect()) as session, session.cursor() as cursor:
        cursor.execute("CREATE USER plain@localhost")
        for shard_id in shard_urls:
            cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON shard_{shard_id}.* TO plain@localhost")
        yield {shard_id: url.replace("root@", "plain@") for shard_id, url in shard_urls.items()}
        cursor.execute("DROP USER plain@localhost")


@contextmanager
def read_only(server: LocalServer) -> Iterator[None]:
    with closing(server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")
        try:
            yield
        finally:
            cursor.execute("SET GLOBAL read_only = 0")


def failed_count(running: RunningHost) -> float:
    labels = {"shard": "0", "outcome": "failed"}
    return running.host.metrics.registry.get_sample_value("foqs_transactions_total", labels) or 0.0


def most_told(logs: Sequence[Mapping[str, Any]]) -> int:
    return max(sum(log["event"] == event for log in logs) for event in ("transaction_failed", "session_lost"))


async def test_a_server_that_is_read_only_opens_the_breaker_and_is_tried_at_leisure_by_new_sessions(
    meta_url: str, unprivileged_urls: dict[int, str], mysql_server: LocalServer
) -> None:
    async with running_host(meta_url, {0: unprivileged_urls[0]}) as running:
        (writer,) = running.host._shards.writers.values()
        receipts = await delivered(running, 2)
        await running.client.enqueue("jobs", "later", b"x", delay_ms=300)
        session_id = writer._store._owning_session_id
        began_s = time.monotonic()
        with capture_logs() as logs:
            with read_only(mysql_server):
                assert (await running.client.ack("jobs", receipts[:1], return_errors=True)).keys() == {0}
                await until(lambda: not writer.health.healthy)
                with pytest.raises(FoqsError):
                    await running.client.enqueue("jobs", "t", b"x")
                await until(lambda: failed_count(running) >= max(8, TOLD_RATIO * most_told(logs)))
                assert time.monotonic() - began_s > 3 * keeper.BREAKER_PROBE_MS / 1000, "it is asked without a pause"
            await until(lambda: writer.health.healthy)
        assert writer._store._owning_session_id != session_id
        assert await running.client.ack("jobs", receipts) == {}
        (item,) = await running.client.dequeue("jobs", "later", wait_ms=20_000)
        assert await running.client.ack("jobs", item.receipt) == {}
        assert running.items_stored() == 0


async def test_a_privilege_that_is_missing_opens_the_breaker_until_it_is_granted_again(
    meta_url: str, unprivileged_urls: dict[int, str], mysql_server: LocalServer
) -> None:
    """A session keeps the privileges that it began with, so the host has to open a new one."""
    async with running_host(meta_url, {0: unprivileged_urls[0]}) as running:
        (writer,) = running.host._shards.writers.values()
        receipts = await delivered(running, 2)
        with closing(mysql_server.connect()) as session, session.cursor() as cursor:
            cursor.execute("REVOKE DELETE ON shard_0.* FROM plain@localhost")
            cursor.execute(f"KILL {writer._store._owning_session_id}")
            errors = await running.client.ack("jobs", receipts, return_errors=True)
            assert "DELETE command denied" in str(errors[0])
            assert "DELETE command denied" in writer.health.reason
            cursor.execute("GRANT DELETE ON shard_0.* TO plain@localhost")
        await until(lambda: writer.health.healthy)
        while errors := await running.client.ack("jobs", receipts, return_errors=True):
            # The host had opened its new session before the grant. It opens another one now.
            assert all("DELETE command denied" in str(error) for error in errors.values())
            await until(lambda: writer.health.healthy)
        assert running.items_stored() == 0


@contextmanager
def no_room(server: LocalServer) -> Iterator[None]:
    """Every insert of an item meets a table that is full."""
    with closing(server.connect("shard_0")) as session, session.cursor() as cursor:
        cursor.execute("SET max_heap_table_size = 16384")
        cursor.execute("CREATE TABLE full (filling CHAR(250) NOT NULL) ENGINE = MEMORY")
        with pytest.raises(OperationalError, match="is full"):
            cursor.execute("INSERT INTO full VALUES ('')" + ", ('')" * 1_000)
        for table in ("item", "pack", "tombstone"):
            trigger = f"CREATE TRIGGER no_room_{table} BEFORE INSERT ON {table}"
            cursor.execute(f"{trigger} FOR EACH ROW INSERT INTO full VALUES ('')")
        try:
            yield
        finally:
            for table in ("item", "pack", "tombstone"):
                cursor.execute(f"DROP TRIGGER no_room_{table}")
            cursor.execute("DROP TABLE full")


async def test_a_server_without_room_opens_the_breaker_by_its_first_refusal_and_its_items_go_elsewhere(
    meta_url: str, shard_urls: dict[int, str], mysql_server: LocalServer
) -> None:
    async with running_host(meta_url, {0: shard_urls[0], 1: shard_urls[1]}) as running:
        full = running.host._shards.writers[0]
        with no_room(mysql_server), capture_logs() as logs:
            result = await running.client.enqueue_many("jobs", [NewItem("t", b"x") for _ in range(3_000)])
            assert {ids.parse(item_id)[0] for item_id in result.ids} == {1}
            (failed, *_), (opened, *_) = [
                [log for log in logs if log["event"] == event] for event in ("transaction_failed", "breaker_opened")
            ]
            assert "is full" in failed["error"]
            assert "is full" in opened["reason"]
        await until(lambda: full.health.healthy)
        assert running.items_stored() == 3_000
