"""Sessions that end while they are idle, by the server's timeout, an operator or a fail-over: no call fails for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing

import pytest
from pymysql.err import OperationalError

from foqs.dev.local_server import LocalServer
from foqs.model import order
from foqs.model.errors import UnavailableError
from foqs.storage.sessions.session import connect
from foqs.storage.shard.packs.budget import PackBudget
from foqs.storage.shard.packs.pack_index import PackIndex
from foqs.storage.shard.shard_reader import ShardReader
from tests.support.running_host import RunningHost, running_host

pytestmark = pytest.mark.database


@pytest.fixture
async def running(meta_url: str, shard_urls: Mapping[int, str]) -> AsyncIterator[RunningHost]:
    async with running_host(meta_url, {0: shard_urls[0]}) as running:
        yield running


@pytest.fixture
def reader(shard_urls: Mapping[int, str]) -> Iterator[ShardReader]:
    """With an open session."""
    with closing(ShardReader(0, shard_urls[0], PackIndex(PackBudget(0)))) as reader:
        assert reader.page(1, order.FIRST, 10)() == ([], False)
        yield reader


def cut_sessions(server: LocalServer, shard_id: int = 0) -> int:
    """KILL whatever is connected to the shard's database; returns how many sessions there were."""
    with closing(server.connect()) as session, session.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (f"shard_{shard_id}",))
        found = cursor.fetchall()
        for (session_id,) in found:
            cursor.execute(f"KILL CONNECTION {session_id}")
    return len(found)


async def test_items_are_peeked_at_over_a_session_that_was_killed(running: RunningHost, mysql_server: LocalServer):
    item_id = await running.client.enqueue("jobs", "t", b"one")
    for _ in range(3):
        page = await running.admin.peek_items("jobs", "t")
        assert [item.id for item in page.items] == [item_id]
        assert cut_sessions(mysql_server) >= 1, "the reader's"
        # A server that ends sessions while they are opened again is sick.
        await running.client.enqueue("jobs", "other", b"over a new one of the owner")


async def test_an_item_is_looked_up_over_a_session_that_was_killed(running: RunningHost, mysql_server: LocalServer):
    item_id = await running.client.enqueue("jobs", "t", b"one")
    for _ in range(3):
        assert cut_sessions(mysql_server) >= 1
        assert (await running.admin.get_item("jobs", item_id)).payload == b"one"


async def test_an_item_goes_its_way_over_sessions_that_were_killed(running: RunningHost, mysql_server: LocalServer):
    for n in range(3):
        cut_sessions(mysql_server)
        item_id = await running.client.enqueue("jobs", "t", b"%d" % n)
        cut_sessions(mysql_server)
        (item,) = await running.client.dequeue("jobs", "t", wait_ms=20_000)
        assert (item.id, item.attempt) == (item_id, 1)
        cut_sessions(mysql_server)
        assert await running.client.extend("jobs", item.receipt, 60_000) == {}
        cut_sessions(mysql_server)
        assert await running.client.ack("jobs", item.receipt) == {}
    assert running.items_stored() == 0


def test_a_reader_asks_once_more_and_not_twice(mysql_server, reader, monkeypatch):
    opened = []

    def killed_at_once(url):
        session = connect(url)
        opened.append(session)
        with closing(mysql_server.connect()) as other, other.cursor() as cursor:
            cursor.execute(f"KILL CONNECTION {session.thread_id()}")
        return session

    cut_sessions(mysql_server)
    monkeypatch.setattr("foqs.storage.shard.shard_reader.connect", killed_at_once)
    with pytest.raises(UnavailableError):
        reader.page(1, order.FIRST, 10)()
    assert len(opened) == 1


def test_a_reader_that_was_interrupted_opens_no_other_session(reader, monkeypatch):
    reader.interrupt()
    monkeypatch.setattr("foqs.storage.shard.shard_reader.connect", lambda url: pytest.fail("a session was opened"))
    with pytest.raises(UnavailableError):
        reader.page(1, order.FIRST, 10)()


def test_a_read_that_takes_too_long_is_not_repeated(mysql_server, reader, monkeypatch):
    reader._session._read_timeout = 1
    monkeypatch.setattr("foqs.storage.shard.shard_reader.connect", lambda url: pytest.fail("a session was opened"))
    with closing(mysql_server.connect("shard_0")) as other, other.cursor() as cursor:
        cursor.execute("LOCK TABLES item WRITE")
        with pytest.raises(UnavailableError, match="timed out"):
            reader.page(1, order.FIRST, 10)()


def test_a_read_that_the_server_refuses_is_not_repeated(reader, monkeypatch):
    refused = []

    def refuse(*_):
        refused.append(1)
        raise OperationalError(1969, "Query execution was interrupted (max_statement_time exceeded)")

    monkeypatch.setattr("pymysql.cursors.Cursor.execute", refuse)
    with pytest.raises(UnavailableError):
        reader.page(1, order.FIRST, 10)()
    assert len(refused) == 1
