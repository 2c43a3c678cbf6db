"""Two real servers with copies of one shard's database: hosts that are led to both serve one of them at a time."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from foqs.client.queue_items import NewItem
from foqs.cluster.members import membership
from foqs.cluster.ownership import owner_word
from foqs.dev.free_port import free_port
from foqs.dev.local_access import TcpListener
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.errors import FoqsError, UnavailableError
from foqs.shard.writer import place
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.schema.migrations import SchemaKind, apply
from foqs.storage.sessions.session import connect
from foqs.storage.shard.packs.pack_index import PackBudget, PackIndex
from foqs.storage.shard.server_name import read_server
from foqs.storage.shard.shard_reader import ShardReader
from foqs.storage.shard.slot_source import SlotSource
from tests.support.databases import new_server, prepared_server
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.database, pytest.mark.deep]

SHARD = 2


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(membership, "SETTLED_MS", 0)
    monkeypatch.setattr(owner_word, "NUMBERS_MS", 50)


class Copies:
    """The server of one shard, and on demand a second one on a copy of its data directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.first = prepared_server(directory / "first", listener=listener())
        self.second: LocalServer | None = None

    def url(self, server: LocalServer) -> str:
        return server.url(f"shard_{SHARD}")

    def copy(self, *, is_started: bool = True) -> LocalServer:
        """Stop the first server, copy what it has, and start both, or leave the first one down."""
        self.first.stop()
        shutil.copytree(self._directory / "first/mysql", self._directory / "second/mysql")
        (self._directory / "second").chmod(0o700)
        self.second = new_server(self._directory / "second", listener=listener())
        self.second.start()
        if is_started:
            self.first.start()
        return self.second

    def stop(self) -> None:
        for server in (self.first, self.second):
            if server is not None:
                server.stop()


def listener() -> TcpListener:
    """Another port than that of any other server."""
    return TcpListener(free_port(), secrets.token_urlsafe())


@pytest.fixture
def copies(tmp_path: Path) -> Iterator[Copies]:
    found = Copies(tmp_path)
    found.first.start()
    found.first.create_database(f"shard_{SHARD}")
    apply(found.url(found.first), SchemaKind.SHARD)
    yield found
    found.stop()


@pytest.fixture
async def host(meta_url: str, copies: Copies) -> AsyncIterator[RunningHost]:
    """A host that serves the shard on the first server, with ten items."""
    async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-1") as host:
        await until(lambda: host.host.owned_count == 1)
        await put(host, 10)
        yield host


async def put(host: RunningHost, count: int) -> None:
    result = await host.client.enqueue_many("jobs", [NewItem("t", b"x") for _ in range(count)])
    assert not result.errors


def owned(host: RunningHost) -> bool:
    return host.host.owned_count == 1


def items_at(url: str) -> int:
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT (SELECT COUNT(*) FROM item) + (SELECT COUNT(*) FROM pack)")
        ((count,),) = cursor.fetchall()
        return int(count)


async def detail(host: RunningHost) -> tuple[str, str]:
    ((state, text),) = [(one.state, one.detail) for one in (await host.admin.host_status()).shards]
    return state, text


async def test_a_copy_is_not_served_while_the_owner_lives(host: RunningHost, copies: Copies, meta_url: str) -> None:
    """Whoever comes second is led to the copy, in whose server nobody has the shard's lock."""
    second = copies.copy()
    await until(lambda: owned(host))
    with capture_logs() as logs:
        async with running_host(meta_url, {SHARD: copies.url(second)}, name="host-2", namespace=None) as other:
            await host.host._membership._refresh()
            await try_to_take(other)
            assert not owned(other)
            state, text = await detail(other)
            assert (state, "on another server" in text, "/second/" in text) == ("lost", True, True)
            await put(host, 1)
            assert owned(host), "a slow machine may have given it a later epoch, and nobody else"
    (told,) = [log for log in logs if log["event"] == "shard_on_another_server"]
    assert told["log_level"] == "error"


async def begin_to_take(host: RunningHost) -> None:
    if SHARD not in host.host.shards_run:
        await host.host.gain_shard(SHARD, "")


async def try_to_take(host: RunningHost) -> None:
    """Have the host open the shard, though no plan says so, and return when it was refused."""
    await begin_to_take(host)
    await until(lambda: "on another server" in host.host._shards.writers[SHARD].detail)


async def test_whoever_is_led_to_the_first_one_waits_while_the_copy_is_served(copies: Copies, meta_url: str) -> None:
    async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-1") as before:
        await until(lambda: owned(before))
        await put(before, 10)
    second = copies.copy()
    async with running_host(meta_url, {SHARD: copies.url(second)}, name="host-2") as one:
        await until(lambda: owned(one))
        async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-3", namespace=None) as other:
            await try_to_take(other)
            assert (owned(one), owned(other)) == (True, False)


async def test_a_copy_is_taken_as_soon_as_the_living_owner_has_lost_its_server(
    host: RunningHost, copies: Copies, meta_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place, "LEAVE_SERVER_MS", 200)
    second = copies.copy(is_started=False)
    async with running_host(meta_url, {SHARD: copies.url(second)}, name="host-2", namespace=None) as other:
        await begin_to_take(other)
        await until(lambda: owned(other))
        copies.first.start()
        await until(lambda: not owned(host))
        await put(other, 1)
        await until(lambda: "another server" in host.host._shards.writers[SHARD].detail)
        assert items_at(copies.url(copies.first)) < items_at(copies.url(second))


async def test_an_owner_whose_address_leads_to_a_copy_goes_on_there_under_a_new_epoch(
    host: RunningHost, copies: Copies, meta_url: str
) -> None:
    """As behind a name that moves: nobody else can have the shard on the first server then."""
    writer = host.host._shards.writers[SHARD]
    shard = writer.held
    assert shard is not None
    epoch = shard.epoch
    second = copies.copy(is_started=False)
    host.host._shards.by_id[SHARD].use_url(copies.url(second))
    await put_again(host)
    assert writer.held is shard, "it has lost no state"
    await until(lambda: shard.epoch > epoch)
    with closing(MetaStore(meta_url)) as meta:
        (row,) = meta.shards.read_all()
    assert "/second/" in row.server
    assert row.epoch == shard.epoch


async def put_again(host: RunningHost) -> None:
    """Once the breaker has closed."""

    async def tried() -> bool:
        try:
            await put(host, 1)
        except (FoqsError, AssertionError):
            return False
        return True

    async with asyncio.timeout(PATIENCE_S):
        while not await tried():
            pass


async def test_a_copy_that_is_behind_is_served_after_a_death_and_tells_what_it_lacks(
    copies: Copies, meta_url: str
) -> None:
    async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-1") as before:
        await until(lambda: owned(before))
        await put(before, 10)
    second = copies.copy()
    async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-1") as before:
        await until(lambda: owned(before))
        await put(before, 1)
        writer = before.host._shards.writers[SHARD]
        number = writer._ownership.committed_number
        await until(lambda: writer._ownership.place.reported_number == number)
    with capture_logs() as logs:
        async with running_host(meta_url, {SHARD: copies.url(second)}, name="host-2") as after:
            await until(lambda: owned(after))
            found = after.host._shards.writers[SHARD]._ownership.place.lost_count
            assert found > 0
            state, text = await detail(after)
            assert (state, f"{found} committed transactions were lost" in text) == ("owned", True)
    (told,) = [log for log in logs if log["event"] == "shard_went_back"]
    assert (told["lost_transactions"], told["log_level"]) == (found, "error")


async def test_a_host_that_was_killed_is_followed_at_once_on_the_same_server(copies: Copies, meta_url: str) -> None:
    """Nobody waits for its death, though its heartbeat is fresh."""
    async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-1") as one:
        await until(lambda: owned(one))
        with closing(MetaStore(meta_url)) as meta:
            (row,) = meta.shards.read_all()
            async with running_host(meta_url, {SHARD: copies.url(copies.first)}, name="host-2", namespace=None) as two:
                await begin_to_take(two)
                await one.host._shards.writers[SHARD].stop()
                await until(lambda: owned(two))
                assert not two.host._membership.is_dead(row.owner, row.epoch)


async def test_a_reader_that_is_led_to_a_copy_reads_nothing_there(host: RunningHost, copies: Copies) -> None:
    second = copies.copy()
    await until(lambda: owned(host))
    page = await host.admin.peek_items("jobs", "t")
    shard = host.host._shards.by_id[SHARD]
    shard.reader.use_url(copies.url(second))
    shard.reader.close()
    with capture_logs() as logs, pytest.raises(UnavailableError, match="leads this host to a copy of its database"):
        await host.admin.peek_items("jobs", "t")
    (told,) = [log for log in logs if log["event"] == "read_led_to_a_copy"]
    assert ("/second/" in told["server"], "/first/" in told["served_on"]) == (True, True)
    shard.reader.use_url(copies.url(copies.first))
    assert await host.admin.peek_items("jobs", "t") == page


def test_a_reader_follows_the_owner_to_another_server(copies: Copies) -> None:
    second = copies.copy()
    served_on = name_of(copies.url(copies.first))
    with closing(ShardReader(SHARD, copies.url(copies.first), PackIndex(PackBudget(0)), lambda: served_on)) as reader:
        reader.expired_page(0, 0)()
        served_on = name_of(copies.url(second))
        with pytest.raises(UnavailableError):
            reader.expired_page(0, 0)()
        reader.use_url(copies.url(second))
        reader.expired_page(0, 0)()
        assert reader._server == served_on


def test_slots_are_not_copied_from_a_copy(copies: Copies) -> None:
    second = copies.copy()
    served_on = name_of(copies.url(copies.first))
    with closing(SlotSource(SHARD, copies.url(copies.first), served_on)) as source:
        source.slots()
    with closing(SlotSource(SHARD, copies.url(second), served_on)) as source, pytest.raises(UnavailableError):
        source.slots()


def name_of(url: str) -> str:
    """The server to which this URL leads."""
    with closing(connect(url)) as session, session.cursor() as cursor:

        def rows(statement: str) -> Any:
            cursor.execute(statement)
            return cursor.fetchall()

        return read_server(rows)
