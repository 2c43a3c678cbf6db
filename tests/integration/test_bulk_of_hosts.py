"""Bulk jobs over two hosts, each of which has some of the shards, and over shards that move or are not served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from functools import partial
from typing import Any

import pytest

from foqs import BulkAction, BulkState, ItemFilter, ItemState, Job, JobState, NewItem
from foqs.host.verbs.bulk_acts import BulkActs
from foqs.model.cluster import ShardUse
from foqs.storage.meta import meta_bulk
from foqs.storage.meta.meta_store import MetaStore
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import PATIENCE_S, eventually
from tests.support.waiting import until as until_all

Hosts = list[RunningHost]
COUNT = 40
"""Items of each shard."""


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


def bulk(job: Job) -> BulkState:
    assert job.bulk is not None
    return job.bulk


async def until(host: RunningHost, job: Job, is_it: Callable[[Job], bool]) -> Job:
    return await eventually(partial(host.admin.get_job, "jobs", job.id), is_it)


def is_over(job: Job) -> bool:
    return job.state is not JobState.RUNNING


async def bury(hosts: Hosts) -> None:
    """Make dead letters on all shards, half of which have one reason."""
    count = 0
    for host in hosts:
        for _ in range(COUNT):
            result = await host.client.enqueue_many("jobs", [NewItem("t", b"") for _ in range(len(shards_of(host)))])
            count += len(result.ids)
    await kill_all(hosts[0], count)


async def kill_all(host: RunningHost, count: int) -> None:
    while count:
        items = await host.client.dequeue("jobs", "t", 1_000, wait_ms=1_000)
        for some, reason in ((items[::2], "a timeout"), (items[1::2], "no card")):
            if some:
                await host.client.nack("jobs", some, dead_letter=True, reason=reason)
        count -= len(items)


async def reasons(host: RunningHost) -> dict[tuple[ItemState, str], int]:
    found: dict[tuple[ItemState, str], int] = {}
    async for item in host.admin.iterate_items("jobs"):
        key = (item.state, item.errors[0].reason)
        found[key] = found.get(key, 0) + 1
    return found


async def test_a_job_is_done_by_the_owners_of_all_shards_and_seen_by_each_host(hosts: Hosts) -> None:
    await bury(hosts)
    before = await reasons(hosts[0])
    timeouts = before[ItemState.DEAD, "a timeout"]
    job = await hosts[1].admin.create_bulk_job("jobs", BulkAction.REDRIVE, ItemFilter(error_contains="timeout"))
    for host in hosts:
        ended = await until(host, job, is_over)
        assert (ended.state, bulk(ended).matched, bulk(ended).done) == (JobState.SUCCEEDED, timeouts, timeouts)
        assert (bulk(ended).shards_done, bulk(ended).is_recounted) == (len(host.shard_urls), False)
    assert await reasons(hosts[1]) == {
        (ItemState.READY, "a timeout"): timeouts,
        (ItemState.DEAD, "no card"): before[ItemState.DEAD, "no card"],
    }


@pytest.mark.deep
async def test_a_shard_that_moves_in_the_midst_is_done_to_the_end(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It moves behind the first step of a page."""
    await bury(hosts)
    count = sum((await reasons(hosts[0])).values())
    moved, change, stepped = min(shards_of(hosts[0])), BulkActs.change, asyncio.Event()

    async def change_and_tell(self: BulkActs, namespace: Any, shard: Any, *arguments: Any) -> Any:
        outcome = await change(self, namespace, shard, *arguments)
        if shard.shard_id == moved:
            stepped.set()
        return outcome

    monkeypatch.setattr(BulkActs, "change", change_and_tell)
    job = await hosts[0].admin.create_bulk_job("jobs", BulkAction.REDRIVE, items_per_second_max=count // 8)
    await asyncio.wait_for(stepped.wait(), PATIENCE_S)
    await hosts[0].host.lose_shard(moved)
    await hosts[0].admin.update_job("jobs", job.id, items_per_second_max=10_000)
    ended = await until(hosts[1], job, is_over)
    assert (ended.state, bulk(ended).matched, bulk(ended).done) == (JobState.SUCCEEDED, count, count)
    assert (bulk(ended).is_recounted, bulk(ended).examined) == (False, count), "it was handed over between two steps"
    assert {state for state, _ in await reasons(hosts[1])} == {ItemState.READY}


@pytest.mark.deep
async def test_the_page_in_work_of_a_host_that_fails_is_counted_once(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host dies behind the changes of a page, and before it has reported them."""
    change, died = BulkActs.change, 0

    async def change_and_die(self: BulkActs, *arguments: object) -> object:
        nonlocal died
        outcome = await change(self, *arguments)  # type: ignore[arg-type]
        if not died:
            died += 1
            await asyncio.Event().wait()
        return outcome

    monkeypatch.setattr(BulkActs, "change", change_and_die)
    async with running_host(meta_url, shard_urls) as host:
        await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"")] * COUNT for _ in shard_urls])
        await kill_all(host, COUNT * len(shard_urls))
        count = sum((await reasons(host)).values())
        job = await host.admin.create_bulk_job("jobs", BulkAction.REDRIVE, items_per_second_max=10_000)
        await until_all(lambda: died == 1)
    monkeypatch.setattr(BulkActs, "change", change)
    async with running_host(meta_url, shard_urls, name="other") as host:
        ended = await until(host, job, is_over)
        assert (ended.state, bulk(ended).matched, bulk(ended).done) == (JobState.SUCCEEDED, count, count)
        assert bulk(ended).is_recounted
        assert {state for state, _ in await reasons(host)} == {ItemState.READY}


@pytest.mark.deep
async def test_the_part_of_a_shard_that_nobody_serves_waits_and_is_named(
    meta_url: str, shard_urls: dict[int, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meta_bulk, "TOUCH_MS", 100)
    monkeypatch.setattr(meta_bulk, "WAITING_MS", 1_500)
    lost = 77
    with closing(MetaStore(meta_url)) as meta:
        async with running_host(meta_url, shard_urls) as host:
            await bury([host])
            meta.shards.add(lost, "mysql://127.0.0.1:1/none", "")
            count = sum((await reasons(host)).values())
            job = await host.admin.create_bulk_job("jobs", BulkAction.REDRIVE, items_per_second_max=10_000)
            waits = await until(host, job, lambda job: bulk(job).done == count and bool(bulk(job).waiting_shards))
            assert (waits.state, bulk(waits).waiting_shards) == (JobState.RUNNING, [lost])
            assert bulk(waits).shards_done == len(shard_urls)
            meta.shards.update(lost, ShardUse.DRAINING, None, None)
            meta.shards.remove(lost, 0)
            ended = await until(host, job, is_over)
            assert (ended.state, bulk(ended).done, bulk(ended).waiting_shards) == (JobState.SUCCEEDED, count, [])


async def test_a_host_that_hands_its_shards_over_has_reported_each_item_before(hosts: Hosts) -> None:
    await bury(hosts)
    count = sum((await reasons(hosts[0])).values())
    job = await hosts[0].admin.create_bulk_job("jobs", BulkAction.REDRIVE, items_per_second_max=count // 8)
    await until(hosts[0], job, lambda job: bulk(job).matched > 0)
    for host in hosts:
        for shard_id in shards_of(host):
            await host.host._bulk_walker.leave(shard_id)
    left = await hosts[1].admin.get_job("jobs", job.id)
    done = sum([number for (state, _), number in (await reasons(hosts[0])).items() if state is ItemState.READY])
    assert (bulk(left).matched, bulk(left).done) == (done, done)
    assert done < count
