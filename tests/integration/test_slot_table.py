"""The slot table of a cluster: made once, known by all hosts, kept through whatever becomes of the meta database."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import closing

import pytest

from foqs.client.queue_items import NewItem
from foqs.dev.local_server import LocalServer
from foqs.model import limits
from foqs.model.errors import FoqsError, UnavailableError, UnknownNamespaceError
from foqs.model.ids import parse
from foqs.model.slots import NO_SLOTS, SlotTable, first_table
from foqs.storage.meta.meta_namespaces import MetaNamespaces
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.session import connect
from foqs.wire.codec import Reply, structs
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

TABLES = ("slot", "namespace", "namespace_number", "census", "census_answer", "shard", "host")

pytestmark = pytest.mark.database


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)


def empty(meta_url: str) -> None:
    """The meta database has lost all that it held, as one that was created anew."""
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        for table in TABLES:
            cursor.execute(f"DELETE FROM {table}")
        cursor.execute("INSERT INTO namespace_number VALUES (1, 0)")
        session.commit()


def in_meta(meta_url: str) -> SlotTable:
    with closing(MetaStore(meta_url)) as meta:
        return meta.namespaces.read().slots


def copies(host: RunningHost) -> list[int]:
    return [version for (version,) in host.rows("SELECT version FROM slot_copy")]


async def shard_map(host: RunningHost, namespace: str | None = None) -> Reply:
    return await host.call("getShardMap", structs.ShardMapRequest(namespace))


async def test_the_shard_map_tells_slots_addresses_and_the_spread_of_a_namespace(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("wide", key_spread=4)
        told = (await shard_map(host)).response
        table = first_table(list(shard_urls))
        assert (told.version, tuple(told.shard_by_slot)) == (1, table.shards)
        assert {one.shard_id: one.address for one in told.addresses} == dict.fromkeys(shard_urls, host.address)
        assert (told.key_spread, told.dedup_window_ms) == (None, None)
        assert (await shard_map(host, "jobs")).response.key_spread == 1
        assert (await shard_map(host, "wide")).response.key_spread == 4
        assert isinstance((await shard_map(host, "nobody")).error, UnknownNamespaceError)
        assert copies(host) == [1] * len(shard_urls)


async def test_the_items_of_a_call_keep_their_order_on_each_shard_however_many_slots_they_have(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("wide", key_spread=64)
        items = [NewItem("t", b"x", dedup_id=str(number)) for number in range(500)]
        made = (await host.client.enqueue_many("wide", items)).ids
        for shard_id in shard_urls:
            of_shard = [key for shard, key, _ in map(parse, made) if shard == shard_id]
            assert len(of_shard) > 1
            assert of_shard == sorted(of_shard)


async def test_hosts_that_need_the_table_at_once_make_it_over_the_shards_of_all(meta_url, shard_urls):
    halves = [{n: url for n, url in shard_urls.items() if n % 2 == half} for half in (0, 1)]
    async with (
        running_host(meta_url, halves[0], name="one", namespace=None) as one,
        running_host(meta_url, halves[1], name="two", namespace=None) as two,
    ):
        await until(lambda: len(list(one.host._shards.owned())) + len(list(two.host._shards.owned())) == 4)
        assert in_meta(meta_url) == NO_SLOTS
        maps = await asyncio.gather(*[shard_map(host) for host in (one, two)])
        assert {tuple(told.response.shard_by_slot) for told in maps} == {first_table(list(shard_urls)).shards}
        # Each tells where its own shards are.
        assert {one.shard_id for one in maps[0].response.addresses} == set(halves[0])


async def test_a_meta_database_that_lost_the_table_gets_it_back_from_a_host(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        made = in_meta(meta_url)
        empty(meta_url)
        await until(lambda: in_meta(meta_url) == made)
        assert tuple((await shard_map(host)).response.shard_by_slot) == made.shards


async def test_a_meta_database_that_lost_the_table_gets_it_back_from_shards(meta_url, shard_urls):
    few = {n: url for n, url in shard_urls.items() if n < 2}
    async with running_host(meta_url, few):
        made = in_meta(meta_url)
        assert made == first_table([0, 1])
    empty(meta_url)
    # With more shards than the table was made over: it must not be made anew.
    async with running_host(meta_url, shard_urls, namespace=None) as host:
        await until(lambda: in_meta(meta_url) == made)
        await host.admin.create_namespace("later")
        assert tuple((await shard_map(host)).response.shard_by_slot) == made.shards
        await until(lambda: copies(host) == [1] * 4)


async def test_no_table_is_made_while_a_shard_is_not_served(meta_url, shard_urls, monkeypatch):
    monkeypatch.setattr(limits, "CENSUS_MS_MAX", 300)
    few = {n: url for n, url in shard_urls.items() if n < 2}
    others = {n: url for n, url in shard_urls.items() if n >= 2}
    async with running_host(meta_url, others, namespace=None, name="two", tier="two") as two:
        await until(lambda: two.host.owned_count == 2)
    async with running_host(meta_url, few, namespace=None, name="one") as one:
        await until(lambda: one.host.owned_count == 2)
        error = (await shard_map(one)).error
        assert isinstance(error, UnavailableError)
        assert error.nothing_done
        assert "2, 3 has not answered" in error.message  # On a busy machine a served one is late, too.
        assert "the slot table was not made" in error.message
        assert in_meta(meta_url) == NO_SLOTS


async def test_a_host_goes_by_the_table_it_knows_while_the_meta_database_is_away(
    mysql_server: LocalServer, meta_url: str, shard_urls: Mapping[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_host(meta_url, shard_urls) as host:

        def away(_: MetaNamespaces) -> None:
            raise UnavailableError("the meta database does not answer")

        monkeypatch.setattr(MetaNamespaces, "read", away)
        with pytest.raises(FoqsError):
            await host.host._namespaces.refresh()
        assert tuple((await shard_map(host)).response.shard_by_slot) == first_table(list(shard_urls)).shards


async def test_a_shard_with_another_table_is_told_of_and_keeps_its_copy(meta_url, shard_urls):
    few = {n: url for n, url in shard_urls.items() if n < 2}
    async with running_host(meta_url, few):
        pass
    empty(meta_url)
    others = {n: url for n, url in shard_urls.items() if n >= 2}
    async with running_host(meta_url, others):
        assert in_meta(meta_url) == first_table([2, 3])
    async with running_host(meta_url, shard_urls) as host:
        await until(lambda: len(host.host._slots._kept) == 4)
        told = tuple((await shard_map(host)).response.shard_by_slot)
        assert told == first_table([2, 3]).shards
        keeping = {shard.shard_id for _, shard in host.host._shards.owned() if host.host._slots.keeps(shard)}
        assert keeping == {2, 3}, "the others take no dedup ids"
