"""Ids that items hold until they end, on real hosts whose slots move: items stay, and their ends are still seen."""

from __future__ import annotations

import asyncio
from contextlib import closing

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.registry import slot_moves
from foqs.model import limits
from foqs.model.calls import DedupUntil
from foqs.model.cluster import ShardUse
from foqs.model.errors import FoqsError, NotFoundError, UnavailableError
from foqs.model.slots import slot_of
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from tests.integration.test_slot_moves import is_even, table_of
from tests.support.cluster import cluster
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

NAMES = [f"id-{number}" for number in range(60)]

pytestmark = [pytest.mark.database, pytest.mark.deep]


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)
    monkeypatch.setattr(slot_moves, "PROPOSE_MS", 100)
    monkeypatch.setattr(slot_moves, "HELD_IDS", 7)


async def enqueue(host: RunningHost, namespace: str, names: list[str]) -> list[str]:
    """The ids of the items, one call after the other until all have one."""
    ids: dict[int, str] = {}
    while left := [at for at in range(len(names)) if at not in ids]:
        items = [NewItem("t", names[at].encode(), dedup_id=names[at], dedup_until=DedupUntil.ACKED) for at in left]
        try:
            result = await host.client.enqueue_many(namespace, items, return_errors=True)
        except UnavailableError:
            await asyncio.sleep(0.01)
            continue
        assert all(isinstance(error, UnavailableError) for error in result.errors.values())
        ids |= {at: found for at, found in zip(left, result.ids, strict=True) if found}
    return [ids[at] for at in range(len(names))]


async def ack(host: RunningHost, namespace: str, ids: set[str]) -> None:
    """Take and ack these items, and give back all others."""
    left = set(ids)
    while left:
        items = await host.client.dequeue(namespace, "t", count=100, wait_ms=1_000)
        wanted = [item.receipt for item in items if item.id in left]
        if wanted:
            await host.client.ack(namespace, wanted)
        if others := [item.receipt for item in items if item.id not in left]:
            await host.client.release(namespace, others)
        left -= {item.id for item in items}


async def test_an_id_whose_slot_has_moved_is_taken_and_free_as_before(meta_url, shard_urls):
    two = {n: url for n, url in shard_urls.items() if n < 2}
    async with running_host(meta_url, two) as host:
        await host.admin.create_namespace("wide", key_spread=64)
        before = await enqueue(host, "wide", NAMES)
        for shard_id in (2, 3):
            with closing(MetaStore(meta_url)) as meta:
                meta.shards.add(shard_id, place_of(shard_urls[shard_id]), "")
        while not is_even(meta_url, {0, 1, 2, 3}):
            assert await enqueue(host, "wide", NAMES) == before
        first = slot_of("wide", "", 1)
        assert {2, 3} <= {table_of(meta_url).shards[(first + at) % 1024] for at in range(64)}
        await ack(host, "wide", set(before[:20]))
        after = await enqueue(host, "wide", NAMES)
        assert set(after[:20]).isdisjoint(before)
        assert after[20:] == before[20:]
        assert await enqueue(host, "wide", NAMES) == after
        # An id is forgotten wherever its slot is now.
        assert await host.admin.forget_dedup_ids("wide", NAMES[:30]) == {}
        forgotten = await enqueue(host, "wide", NAMES)
        assert set(forgotten[:30]).isdisjoint(after)
        assert forgotten[30:] == before[30:]
    async with running_host(meta_url, shard_urls) as host:
        await until(lambda: host.host.owned_count == 4)
        assert await enqueue(host, "wide", NAMES) == forgotten
        await ack(host, "wide", {*before, *after, *forgotten} - set(before[:20]))
        assert set(await enqueue(host, "wide", NAMES)).isdisjoint({*before, *after, *forgotten})


async def test_ids_of_a_shard_that_was_drained_and_removed_are_free_and_every_host_forgets(meta_url, shard_urls):
    async with cluster(meta_url, shard_urls, 2) as hosts:
        giver = table_of(meta_url).shards[slot_of("jobs", "", 1)]
        before = await enqueue(hosts[0], "jobs", NAMES)
        await hosts[0].admin.update_shard(giver, state=ShardUse.DRAINING)
        while not is_even(meta_url, set(shard_urls) - {giver}):
            assert await enqueue(hosts[1], "jobs", NAMES) == before
        for host in hosts:
            assert await enqueue(host, "jobs", NAMES) == before
        for at, host in enumerate(hosts):
            assert await host.admin.forget_dedup_ids("jobs", [NAMES[at]]) == {}
            with pytest.raises(NotFoundError):
                await hosts[1 - at].admin.forget_dedup_ids("jobs", NAMES[at])
        await ack(hosts[0], "jobs", set(before))
        for host in hosts:
            try:
                await host.admin.remove_shard(giver)
                break
            except FoqsError:
                continue
        await until(lambda: all(giver not in host.host._shards.uses for host in hosts))
        after = await enqueue(hosts[1], "jobs", NAMES)
        assert set(after).isdisjoint(before)
        assert await enqueue(hosts[0], "jobs", NAMES) == after
