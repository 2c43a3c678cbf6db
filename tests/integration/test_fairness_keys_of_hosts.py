"""Fairness keys over two hosts, each of which has some of the shards."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from foqs import NewItem
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.deep]

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def put(host: RunningHost, key: str | None, count: int) -> set[int]:
    """Enqueue items of a key, and return the shards that have them."""
    items = [NewItem("t", f"{key}:{number}".encode(), fairness_key=key) for number in range(count)]
    return {shard_of(item_id) for item_id in (await host.client.enqueue_many("jobs", items)).ids}


async def consume(host: RunningHost, seen: Counter[str], count: int, **options: object) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while seen.total() < count:
            items = await host.client.dequeue("jobs", count=5, wait_ms=500, **options)  # type: ignore[arg-type]
            for item in items:
                key, _ = item.payload.decode().split(":")
                assert (item.topic, str(item.fairness_key)) == ("t", key)
                seen[item.payload.decode()] += 1
            await host.client.ack("jobs", items)


@pytest.mark.parametrize("way", ["topic", "any", "prefix"])
async def test_consumers_of_one_host_get_the_items_of_all_keys_of_all_hosts(hosts: Hosts, way: str) -> None:
    shards: set[int] = set()
    for key in ("a", "b", None):
        shards |= await put(hosts[1], key, 20)
    while not shards & shards_of(hosts[1]):
        shards |= await put(hosts[1], "more", 1)
    total = sum([one.ready async for one in hosts[0].client.topics("jobs")])
    options = {"topic": {"topics": "t"}, "any": {"topic_prefix": ""}, "prefix": {"topic_prefix": "t"}}[way]
    seen: Counter[str] = Counter()
    await asyncio.gather(*[consume(hosts[0], seen, total, **options) for _ in range(2)])
    assert set(seen.values()) == {1}


async def test_a_call_that_waits_gets_the_first_item_of_a_new_key_of_any_host(hosts: Hosts) -> None:
    for number in range(6):
        waits = asyncio.create_task(hosts[0].client.dequeue("jobs", "t", 10, wait_ms=20_000))
        queues = hosts[0].host._dispatcher.queues
        await until(lambda queues=queues: queues.waiting_count == 1)
        key = f"new {number}"
        await hosts[number % 2].client.enqueue("jobs", "t", key.encode(), fairness_key=key)
        items = await waits
        assert [(item.payload, item.fairness_key) for item in items] == [(key.encode(), key)]
        await hosts[0].client.ack("jobs", items)


async def test_an_item_that_fails_keeps_its_key_also_after_a_hand_over(hosts: Hosts) -> None:
    await put(hosts[0], "a", 4)
    items = await hosts[0].client.dequeue("jobs", "t", 4, wait_ms=5_000)
    while len(items) < 4:
        items += await hosts[0].client.dequeue("jobs", "t", 4, wait_ms=5_000)
    await hosts[0].client.nack("jobs", items)
    for shard_id in list(shards_of(hosts[1])):
        await hosts[1].host.lose_shard(shard_id)
    found: list[tuple[bytes, str | None, int]] = []
    async with asyncio.timeout(PATIENCE_S):
        while len(found) < 4:
            again = await hosts[0].client.dequeue("jobs", "t", 4, wait_ms=1_000)
            found += [(item.payload, item.fairness_key, item.attempt) for item in again]
            await hosts[0].client.ack("jobs", again)
    assert sorted(found) == [(f"a:{number}".encode(), "a", 2) for number in range(4)]


async def test_keys_without_items_are_forgotten_and_their_ring_with_them(hosts: Hosts) -> None:
    for key in range(20):
        await put(hosts[0], f"k{key}", 1)
    seen: Counter[str] = Counter()
    await consume(hosts[0], seen, 20, topics="t")

    def rows() -> int:
        return sum([count for (count,) in hosts[0].rows("SELECT COUNT(*) FROM topic WHERE name LIKE 't%'")])

    await until(lambda: not rows())
    for host in hosts:
        queues = host.host._dispatcher.queues
        await until(lambda queues=queues: not any(queue.base_queue is not None for queue in queues.by_topic.values()))
        host.host._dispatcher.rings.forget_prefixes()
        assert not any(queue.keyed_ring is not None for queue in queues.by_topic.values())


async def test_items_in_flight_of_keys_on_all_hosts_have_one_limit(hosts: Hosts) -> None:
    await hosts[0].admin.set_topic_policy("jobs", "t", in_flight_max=4)
    number = hosts[0].host._namespaces.number_by_name[b"jobs"]
    settings = [host.host._namespaces.settings for host in hosts]
    await until(lambda: all(one.policy(number, "t").in_flight_max == 4 for one in settings))
    for key in ("a", "b", None):
        await put(hosts[0], key, 20)
    out = most = done = 0

    async def work(host: RunningHost) -> None:
        nonlocal out, most, done
        async with asyncio.timeout(PATIENCE_S):
            while done < 60:
                items = await host.client.dequeue("jobs", "t", 3, wait_ms=200)
                out += len(items)
                most = max(most, out)
                await asyncio.sleep(0)
                out -= len(items)  # Before the ack, whose answer can come after the next delivery.
                await host.client.ack("jobs", items)
                done += len(items)

    await asyncio.gather(*[work(host) for host in hosts for _ in range(3)])
    assert (most <= 4, done) == (True, 60)
