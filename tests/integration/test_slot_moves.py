"""Slots move between the shards of real hosts: to a shard that was added, and from one that drains and is removed."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import closing

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.registry import slot_moves
from foqs.model import limits
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.slots import SlotTable, slot_of
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from tests.support.cluster import cluster
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

IDS_COUNT = 300

pytestmark = [pytest.mark.database, pytest.mark.deep]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(slot_moves, "PROPOSE_MS", 100)
    monkeypatch.setattr(slot_moves, "MOVED_IDS", 100)


def table_of(meta_url: str) -> SlotTable:
    with closing(MetaStore(meta_url)) as meta:
        return meta.namespaces.read().slots


def is_even(meta_url: str, shards: set[int]) -> bool:
    with closing(MetaStore(meta_url)) as meta:
        told = meta.namespaces.read()
    counts = Counter(told.slots.shards)
    return told.slot_move is None and counts.keys() == shards and max(counts.values()) - min(counts.values()) <= 1


async def enqueue(host: RunningHost, namespace: str, names: list[str]) -> list[str]:
    """The ids of the items, one call after the other until all have one."""
    ids: dict[int, str] = {}
    while left := [at for at in range(len(names)) if at not in ids]:
        items = [NewItem("t", names[at].encode(), dedup_id=names[at]) for at in left]
        try:
            result = await host.client.enqueue_many(namespace, items, return_errors=True)
        except UnavailableError:
            await asyncio.sleep(0.01)
            continue
        assert all(isinstance(error, UnavailableError) for error in result.errors.values())
        ids |= {at: found for at, found in zip(left, result.ids, strict=True) if found}
    return [ids[at] for at in range(len(names))]


async def test_a_shard_that_is_added_gets_its_part_and_knows_the_ids_of_before(meta_url, shard_urls):
    first = {n: url for n, url in shard_urls.items() if n < 3}
    names = [f"id-{number}" for number in range(IDS_COUNT)]
    async with running_host(meta_url, first) as host:
        await host.admin.create_namespace("wide", key_spread=64)
        before = {name: await enqueue(host, name, names) for name in ("jobs", "wide")}
        with closing(MetaStore(meta_url)) as meta:
            meta.shards.add(3, place_of(shard_urls[3]), "")
        while not is_even(meta_url, {0, 1, 2, 3}):
            for name, ids in before.items():
                assert await enqueue(host, name, names) == ids
        first = slot_of("wide", "", 1)
        assert 3 in {table_of(meta_url).shards[(first + at) % 1024] for at in range(64)}
        for name, ids in before.items():
            assert await enqueue(host, name, names) == ids
        assert host.items_stored() == 2 * IDS_COUNT
    # And whoever owns them next.
    async with running_host(meta_url, shard_urls) as host:
        await until(lambda: host.host.owned_count == 4)
        for name, ids in before.items():
            assert await enqueue(host, name, names) == ids


async def test_a_shard_that_drains_gives_its_slots_away_and_can_be_removed(meta_url, shard_urls):
    names = [f"id-{number}" for number in range(IDS_COUNT)]
    async with cluster(meta_url, shard_urls, 2) as hosts:
        giver = table_of(meta_url).shards[slot_of("jobs", "", 1)]
        before = await enqueue(hosts[0], "jobs", names)
        await hosts[0].admin.update_shard(giver, state=ShardUse.DRAINING)
        rest = set(shard_urls) - {giver}
        while not is_even(meta_url, rest):
            assert await enqueue(hosts[1], "jobs", names) == before
        for host in hosts:
            assert await enqueue(host, "jobs", names) == before
        left = set(before)
        while left:
            taken = await hosts[0].client.dequeue("jobs", "t", count=100, wait_ms=1_000)
            left -= {item.id for item in taken}
            await hosts[0].client.ack("jobs", [item.receipt for item in taken])
        for host in hosts:
            try:
                await host.admin.remove_shard(giver)
                break
            except FoqsError:
                continue
        await until(lambda: all(giver not in host.host._shards.uses for host in hosts))
        for host in hosts:
            assert await enqueue(host, "jobs", names) == before
