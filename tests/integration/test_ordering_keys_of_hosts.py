"""Ordering keys over two hosts, each of which has some of the shards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from foqs import NewItem
from foqs.model.errors import NotFoundError, PausedError
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.deep]

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


async def test_other_hosts_hear_of_the_next_item_of_a_key_once_it_is_free_and_not_before(hosts: Hosts) -> None:
    (shard,) = await put(hosts[0], 1, 6)
    owner = next(host for host in hosts if shard in shards_of(host))
    topic = owner.host._namespaces.number_by_name[b"jobs"], "t"
    stocks, queues = owner.host._routing._local, owner.host._dispatcher.queues
    told, tell = list[int](), queues.on_changed

    def changed(about: tuple[int, str]) -> None:
        if about == topic:
            told.append(stocks.stock(topic).ready_count)
        tell(about)

    queues.on_changed = changed
    for _ in range(5):
        (item,) = await owner.client.dequeue("jobs", "t", wait_ms=5_000)
        assert stocks.stock(topic).ready_count == 0
        assert not await owner.client.dequeue("jobs", "t")
        told.clear()
        await owner.client.ack("jobs", item)
        await until(lambda: bool(told))
        assert told[-1] == 1


async def test_a_pause_ends_the_calls_that_wait_for_keys(hosts: Hosts) -> None:
    await put(hosts[0], 3, 1)
    items = await hosts[0].client.dequeue("jobs", "t", 10, wait_ms=5_000)
    while len(items) < 3:
        items += await hosts[0].client.dequeue("jobs", "t", 10, wait_ms=5_000)
    for host in hosts:
        waits = asyncio.create_task(host.client.dequeue("jobs", "t", 10, wait_ms=30_000))
        await until(lambda host=host: host.host._dispatcher.queues.waiting_count == 1)
        await hosts[0].admin.set_topic_policy("jobs", "t", dequeue_paused=True)
        with pytest.raises(PausedError, match="topic 't' are paused"):
            await waits
        await hosts[0].admin.set_topic_policy("jobs", "t", dequeue_paused=False)
        number = host.host._namespaces.number_by_name[b"jobs"]
        settings = [one.host._namespaces.settings for one in hosts]
        await until(
            lambda settings=settings, number=number: not any(one.policy(number, "t").dequeue_paused for one in settings)
        )


async def test_a_wait_for_keys_of_a_group_ends_when_the_group_is_deleted(hosts: Hosts) -> None:
    await hosts[0].admin.create_group("jobs", "t", "audit")
    await put(hosts[0], 2, 1)
    taken = 0
    while taken < 2:
        taken += len(await hosts[1].client.dequeue("jobs", "t", 10, group="audit", wait_ms=5_000))
    waits = asyncio.create_task(hosts[1].client.dequeue("jobs", "t", group="audit", wait_ms=30_000))
    await until(lambda: hosts[1].host._dispatcher.queues.waiting_count == 1)
    await hosts[0].admin.delete_group("jobs", "t", "audit")
    with pytest.raises(NotFoundError):
        await waits


async def test_keys_without_items_are_forgotten_and_their_ring_with_them(hosts: Hosts) -> None:
    await put(hosts[0], 20, 1)
    done = 0
    while done < 20:
        items = await hosts[0].client.dequeue("jobs", "t", 10, wait_ms=5_000)
        done += len(items)
        await hosts[0].client.ack("jobs", items)

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
    await put(hosts[0], 30, 2)
    out = most = done = 0

    async def consume(host: RunningHost) -> None:
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

    await asyncio.gather(*[consume(host) for host in hosts for _ in range(3)])
    assert (most <= 4, done) == (True, 60)
