"""Several hosts keep the limit of items in flight of a topic together."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest

from foqs.shard import mysql_server
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.deep]

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def limit(hosts: Hosts, in_flight_max: int) -> None:
    await hosts[0].admin.set_topic_policy("jobs", "t", in_flight_max=in_flight_max)
    number = hosts[0].host._namespaces.number_by_name[b"jobs"]
    settings = [host.host._namespaces.settings for host in hosts]
    await until(lambda: all(one.policy(number, "t").in_flight_max == in_flight_max for one in settings))


async def fill(hosts: Hosts, count: int) -> None:
    """Items on the shards of all hosts, so many on each host."""
    with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
        for host in hosts:
            ids = [await host.client.enqueue("jobs", "t", b"x") for _ in range(count)]
            assert {shard_of(item_id) for item_id in ids} <= shards_of(host)


class InWork:
    """Consumers of all hosts, and the items that they have in work."""

    def __init__(self) -> None:
        self.count = self.most = self.done = 0
        self.by_host: Counter[str] = Counter()

    async def consume(self, host: RunningHost, count: int) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.done < count:
                items = await host.client.dequeue("jobs", "t", count=5, wait_ms=200)
                self.count += len(items)
                self.most = max(self.most, self.count)
                await asyncio.sleep(0)
                for item in items:
                    self.count -= 1  # Before the ack, whose answer can come after the next delivery.
                    await host.client.ack("jobs", item.receipt)
                    self.done += 1
                    self.by_host[host.host.id] += shard_of(item.id) in shards_of(host)


@pytest.mark.parametrize("in_flight_max", [1, 3])
async def test_hosts_keep_a_limit_together_and_each_has_its_turns(hosts: Hosts, in_flight_max: int) -> None:
    await limit(hosts, in_flight_max)
    await fill(hosts, 8)
    work = InWork()
    await asyncio.gather(*[work.consume(host, 16) for host in hosts])
    assert work.most <= in_flight_max
    assert work.done == 16


async def test_leases_of_a_host_that_ends_count_on_the_next_owner_of_its_shards(hosts: Hosts) -> None:
    await limit(hosts, 2)
    await fill(hosts, 3)
    first, second = hosts
    held = await second.client.dequeue("jobs", "t", count=2, lease_ms=60_000, wait_ms=5_000)
    while len(held) < 2:
        held += await second.client.dequeue("jobs", "t", count=2 - len(held), lease_ms=60_000, wait_ms=5_000)
    await second.host.stop()
    await until(lambda: shards_of(first) == set(first.shard_urls))
    assert await first.client.dequeue("jobs", "t", count=5, wait_ms=1_000) == []
    await first.client.ack("jobs", held[0].receipt)
    assert len(await first.client.dequeue("jobs", "t", count=5, wait_ms=5_000)) == 1
    assert await first.client.dequeue("jobs", "t", count=5, wait_ms=300) == []


async def test_items_of_a_host_without_consumers_come_within_the_limit(hosts: Hosts) -> None:
    await limit(hosts, 1)
    first, second = hosts
    ids = [await second.client.enqueue("jobs", "t", b"x") for _ in range(3)]
    assert {shard_of(item_id) for item_id in ids} <= shards_of(second)
    for _ in ids:
        (item,) = await first.client.dequeue("jobs", "t", count=5, wait_ms=10_000)
        assert await first.client.dequeue("jobs", "t", count=5, wait_ms=200) == []
        await first.client.ack("jobs", item.receipt)
