"""Items with dedup ids go to the shards that their slots lead to, through real hosts and clients."""

from __future__ import annotations

from contextlib import closing

import pytest

import foqs
from foqs.client.aio import AsyncClient
from foqs.client.queue_items import NewItem
from foqs.model.errors import UnavailableError
from foqs.model.namespace import DedupWhenAway, NamespaceSettings
from foqs.model.slots import NO_SLOTS, first_table, slot_of
from foqs.storage.meta.meta_store import MetaStore
from foqs.wire.codec import structs
from tests.support.running_host import ONCE, RunningHost, running_host, shard_of

pytestmark = pytest.mark.database


def with_ids(count: int) -> list[NewItem]:
    return [NewItem("t", b"%d" % number, dedup_id=f"id-{number}") for number in range(count)]


def shards_by_id(host: RunningHost, name: str, spread: int, items: list[NewItem]) -> list[int]:
    table = first_table(list(host.shard_urls))
    return [table.shards[slot_of(name, item.dedup_id or "", spread)] for item in items]


async def away(host: RunningHost, shard_id: int) -> None:
    """The host gives the shard up: nobody has it from now on."""
    await host.host._sharing.stop()  # On a slow machine it would take the shard again before the test is over.
    await host.host.lose_shard(shard_id)


@pytest.mark.parametrize("spread", [1, 2, 4])
async def test_each_item_is_stored_where_its_slot_leads_and_a_repeat_finds_it_there(meta_url, shard_urls, spread):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("wide", key_spread=spread)
        items = with_ids(60)
        mixed = [*items[:30], NewItem("t", b"plain"), *items[30:], items[7]]
        result = await host.call("enqueue", foqs_request("wide", mixed))
        told = result.response
        assert dict(told.errors) == {}
        assert list(told.duplicates) == [61]
        assert told.ids[61] == told.ids[7]
        own = [told.ids[at] for at in range(61) if at != 30]
        assert [shard_of(item_id) for item_id in own] == shards_by_id(host, "wide", spread, items)
        again = await host.client.enqueue_many("wide", list(reversed(items)))
        assert again.ids == list(reversed(own))
        assert again.duplicates == list(range(60))
        assert host.items_stored() == 61


async def test_a_shard_that_is_away_costs_its_own_positions_alone(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("wide", key_spread=4)
        items = with_ids(40)
        shards = shards_by_id(host, "wide", 4, items)
        assert len(set(shards)) == 4
        await away(host, 2)
        result = await host.client.enqueue_many("wide", items, return_errors=True)
        assert [not item_id for item_id in result.ids] == [shard_id == 2 for shard_id in shards]
        for error in result.errors.values():
            assert isinstance(error, UnavailableError)
            assert error.nothing_done
            assert error.retry_after_ms
        await host.admin.update_namespace("wide", dedup_when_away=DedupWhenAway.ACCEPT)
        accepted = await host.client.enqueue_many("wide", items)
        assert accepted.duplicates == [at for at, shard_id in enumerate(shards) if shard_id != 2]
        assert all(shard_of(item_id) != 2 for item_id in accepted.ids)


async def test_quota_is_charged_for_items_that_were_made(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("small", key_spread=4, enqueues_per_minute_max=45)
        items = with_ids(20)
        for _ in range(5):
            await host.client.enqueue_many("small", items)
        await host.client.enqueue_many("small", [NewItem("t", b"")] * 25)
        with pytest.raises(foqs.RateLimitedError):
            await host.client.enqueue("small", "t", b"")


async def test_an_idempotent_client_and_single_enqueues_with_ids(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.create_namespace("wide", key_spread=4)
        async with AsyncClient(host.address, retry=ONCE, idempotent=True) as client:
            item = NewItem("t", b"x")
            result = await client.enqueue_many("wide", [item] * 30)
            assert len(set(result.ids)) == 30
            assert result.duplicates == []
            assert len({await client.enqueue("wide", "t", b"x") for _ in range(3)}) == 3
            ids = {await client.enqueue("wide", "t", b"x", dedup_id="same") for _ in range(3)}
            assert len(ids) == 1
            told = await client.shard_map("wide")
            assert (told.version, told.key_spread) == (1, 4)


async def test_the_first_id_of_a_cluster_that_had_namespaces_before_brings_the_slot_table(meta_url, shard_urls):
    with closing(MetaStore(meta_url)) as meta:
        meta.namespaces.insert("jobs", NamespaceSettings(), 1)
    async with running_host(meta_url, shard_urls) as host:
        assert host.host._slots.table == NO_SLOTS
        await host.client.enqueue("jobs", "t", b"x", dedup_id="a")
        assert host.host._slots.table == first_table(list(shard_urls))


def foqs_request(name: str, items: list[NewItem]) -> object:
    return structs.EnqueueRequest(name, items)
