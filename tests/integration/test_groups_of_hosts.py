"""Consumer groups over two hosts, each of which has some of the shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from foqs import NewItem
from foqs.model.errors import NotFoundError
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import until

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def put(host: RunningHost, *topics: str) -> None:
    result = await host.client.enqueue_many("jobs", [NewItem(topic, topic.encode()) for topic in topics])
    assert {shard_of(item_id) for item_id in result.ids} <= shards_of(host)


async def test_a_call_for_a_group_of_any_topic_gets_what_other_hosts_have(hosts: Hosts) -> None:
    for topic, group in (("a1", "audit"), ("a2", "audit"), ("a1", "stats"), ("b", "audit")):
        await hosts[0].admin.create_group("jobs", topic, group)
    consumer = hosts[0].client
    waits = asyncio.create_task(consumer.dequeue("jobs", topic_prefix="", group="audit", count=1_000, wait_ms=20_000))
    await put(hosts[1], "c")
    await put(hosts[1], "a1")
    assert [(item.topic, item.group) for item in await waits] == [("a1", "audit")]
    await put(hosts[1], "a1", "a2", "b")
    seen: list[tuple[str, str | None]] = []
    while len(seen) < 2:
        items = await consumer.dequeue("jobs", topic_prefix="a", group="audit", count=10, wait_ms=5_000)
        seen += [(item.topic, item.group) for item in items]
    assert sorted(seen) == [("a1", "audit"), ("a2", "audit")]
    items = await consumer.dequeue("jobs", topic_prefix="", group="stats", count=10, wait_ms=5_000)
    assert [(item.topic, item.group) for item in items] == [("a1", "stats")] * 2


async def test_a_wait_for_a_group_ends_when_the_group_is_deleted(hosts: Hosts) -> None:
    await hosts[0].admin.create_group("jobs", "t", "audit")
    for caller, other in (hosts, reversed(hosts)):
        await caller.admin.create_group("jobs", "t", "stats")
        waits = asyncio.create_task(caller.client.dequeue("jobs", "t", group="stats", wait_ms=30_000))
        await until(lambda caller=caller: caller.host._dispatcher.queues.waiting_count == 1)
        await other.admin.delete_group("jobs", "t", "stats")
        with pytest.raises(NotFoundError, match=r"no group 'stats'.*\(its groups: 'audit'\)"):
            await waits
