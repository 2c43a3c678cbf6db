"""Ordering keys over two hosts, each of which has some of the shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from foqs import NewItem
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import PATIENCE_S, until

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def put(host: RunningHost, keys_count: int, items_count: int, topic: str = "t") -> set[int]:
    """Enqueue items of several keys, and return the shards that have them."""
    items = [
        NewItem(topic, f"{key}:{number}".encode(), ordering_key=f"k{key}")
        for number in range(items_count)
        for key in range(keys_count)
    ]
    result = await host.client.enqueue_many("jobs", items)
    return {shard_of(item_id) for item_id in result.ids}


class Consumers:
    """Checks the order of the items of each key, and that one of them is out at a time."""

    def __init__(self, items_count: int) -> None:
        self._items_count = items_count
        self.seen: dict[str, list[int]] = {}
        self._out: set[str] = set()

    @property
    def count(self) -> int:
        return sum(map(len, self.seen.values()))

    async def consume(self, host: RunningHost, **options: object) -> None:
        async with asyncio.timeout(PATIENCE_S):
            while self.count < self._items_count:
                items = await host.client.dequeue("jobs", wait_ms=500, **options)  # type: ignore[arg-type]
                for item in items:
                    key, number = item.payload.decode().split(":")
                    assert (item.topic, item.group, item.ordering_key) == ("t", None, f"k{key}")
                    assert key not in self._out, "two items of a key are out"
                    self._out.add(key)
                    assert int(number) == len(self.seen.setdefault(key, []))
                    self.seen[key].append(int(number))
                await asyncio.sleep(0)
                for item in items:
                    self._out.discard(item.payload.decode().split(":")[0])
                    await host.client.ack("jobs", item)


@pytest.mark.parametrize("way", ["topic", "any", "prefix"])
async def test_consumers_of_one_host_get_the_items_of_all_keys_in_order(hosts: Hosts, way: str) -> None:
    assert await put(hosts[1], 12, 4) & shards_of(hosts[0])
    consumers = Consumers(48)
    options = {"topic": {"topics": "t"}, "any": {"topic_prefix": ""}, "prefix": {"topic_prefix": "t"}}[way]
    await asyncio.gather(*[consumers.consume(hosts[0], count=5, **options) for _ in range(2)])
    assert consumers.seen == {str(key): [0, 1, 2, 3] for key in range(12)}


async def test_consumers_of_all_hosts_share_the_keys(hosts: Hosts) -> None:
    await put(hosts[0], 8, 5)
    consumers = Consumers(40)
    await asyncio.gather(*[consumers.consume(host, topics="t", count=3) for host in hosts for _ in range(2)])
    assert consumers.seen == {str(key): [0, 1, 2, 3, 4] for key in range(8)}


async def test_a_call_that_waits_gets_the_first_item_of_a_new_key_of_any_host(hosts: Hosts) -> None:
    for number in range(6):
        waits = asyncio.create_task(hosts[0].client.dequeue("jobs", "t", 10, wait_ms=20_000))
        queues = hosts[0].host._dispatcher.queues
        await until(lambda queues=queues: queues.waiting_count == 1)
        key = f"new {number}"
        await hosts[number % 2].client.enqueue("jobs", "t", key.encode(), ordering_key=key)
        items = await waits
        assert [(item.payload, item.ordering_key) for item in items] == [(key.encode(), key)]
        await hosts[0].client.ack("jobs", items)
