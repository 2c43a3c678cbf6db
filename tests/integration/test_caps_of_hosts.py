"""Several hosts that deliver the items of one topic or namespace keep its cap together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest

from foqs.model.caps import shared_burst_of
from foqs.model.limits import HEARTBEAT_MS
from foqs.shard import mysql_server
from tests.support.cluster import cluster, shards_of
from tests.support.late_pull import LatePull
from tests.support.running_host import RunningHost, has_read, shard_of
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.deep]

Hosts = list[RunningHost]
HOLDS_MS_MAX = 2_000


@pytest.fixture(params=[2, pytest.param(3, marks=pytest.mark.slow)])
async def hosts(meta_url: str, shard_urls: dict[int, str], request: pytest.FixtureRequest) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, request.param) as hosts:
        yield hosts


async def fill(hosts: Hosts, count: int, *topics: str) -> None:
    """Items of these topics on the shards of all hosts, so many on each."""
    with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
        for host in hosts:
            ids = [await host.client.enqueue("jobs", topic, b"x") for _ in range(count) for topic in topics]
            assert {shard_of(item_id) for item_id in ids} <= shards_of(host)


class Consumers:
    """One on each of some hosts, until so many items have come; and when each of them came."""

    def __init__(self, rate: float, hosts_count: int) -> None:
        self.times_s: list[float] = []
        self.topics: list[str] = []
        self._bound = shared_burst_of(rate, hosts_count)
        self._rate = rate

    async def consume(self, hosts: Hosts, count: int, *topics: str) -> None:
        async with asyncio.timeout(PATIENCE_S):
            tasks = [asyncio.create_task(self._take(host, count, topics)) for host in hosts]
            await asyncio.gather(*tasks)

    async def _take(self, host: RunningHost, count: int, topics: tuple[str, ...]) -> None:
        while len(self.times_s) < count:
            items = await host.client.dequeue("jobs", topics, count=10, wait_ms=300)
            self.times_s += [time.monotonic()] * len(items)
            self.topics += [item.topic for item in items]
            await host.client.ack("jobs", [item.receipt for item in items])

    def check(self) -> None:
        """In any time no more came than the cap lets through in it."""
        level = at_s = 0.0
        for now_s in self.times_s:
            level = max(0.0, level - self._rate * (now_s - at_s)) + 1
            at_s = now_s
            assert level <= self._bound, f"{level} beyond {self._rate} a second"


async def test_hosts_keep_the_cap_of_a_topic_together(hosts: Hosts) -> None:
    await hosts[0].admin.set_topic_policy("jobs", "t", deliveries_per_second_max=25.0)
    await fill(hosts, 60, "t")
    await all_follow(hosts, "t", 25.0)
    consumers = Consumers(25, len(hosts))
    await consumers.consume(hosts, 100, "t")
    consumers.check()


async def test_hosts_keep_the_cap_of_a_prefix_together_for_each_topic_by_itself(hosts: Hosts) -> None:
    topics = ("p/1", "p/2")
    await hosts[0].admin.set_topic_policy("jobs", "p/", is_prefix=True, deliveries_per_second_max=25.0)
    for topic in topics:
        await fill(hosts, 60, topic)
        await all_follow(hosts, topic, 25.0)
    several = [Consumers(25, len(hosts)) for _ in topics]
    pairs = zip(several, topics, strict=True)
    await asyncio.gather(*[consumers.consume(hosts, 100, topic) for consumers, topic in pairs])
    for consumers in several:
        consumers.check()


async def test_a_consumer_of_one_host_gets_what_a_cap_lets_through_on_the_others(hosts: Hosts) -> None:
    await hosts[0].admin.set_topic_policy("jobs", "t", deliveries_per_second_max=40.0)
    await fill(hosts, 30, "t")
    await all_follow(hosts, "t", 40.0)
    consumers = Consumers(40, len(hosts))
    await consumers.consume(hosts[1:2], 30 * len(hosts), "t")
    consumers.check()


async def test_an_item_that_reached_nobody_is_delivered_by_the_same_token(hosts: Hosts) -> None:
    await hosts[0].admin.set_topic_policy("jobs", "t", deliveries_per_second_max=0.001)
    await all_follow(hosts, "t", 0.001)
    pull = LatePull()
    item_id = await pull.begin(
        lambda: hosts[0].client.dequeue("jobs", "t", wait_ms=200),
        lambda: hosts[1].client.enqueue("jobs", "t", b"x"),
    )
    pull.arrive()
    (item,) = await hosts[1].client.dequeue("jobs", "t", wait_ms=20_000)
    assert (item.id, item.attempt) == (item_id, 1)


async def test_hosts_keep_the_cap_of_a_namespace_together(hosts: Hosts) -> None:
    await hosts[0].admin.update_namespace("jobs", deliveries_per_second_max=25.0)
    await fill(hosts, 20, "a", "b", "c")
    await all_follow(hosts, "", 25.0)
    consumers = Consumers(25, len(hosts))
    await consumers.consume(hosts, 90, "a", "b", "c")
    consumers.check()
    assert {*consumers.topics} == {"a", "b", "c"}


async def test_a_cap_that_is_lifted_holds_nothing_back(hosts: Hosts) -> None:
    await hosts[0].admin.set_topic_policy("jobs", "t", deliveries_per_second_max=0.001)
    await fill(hosts, 20, "t")
    await all_follow(hosts, "t", 0.001)
    consumers = Consumers(0.001, len(hosts))
    taking = asyncio.create_task(consumers.consume(hosts, 20 * len(hosts), "t"))
    await hosts[1].admin.set_topic_policy("jobs", "t", deliveries_per_second_max=0.0)
    await taking


@pytest.mark.parametrize("topic", ["t", ""])
async def test_another_cap_holds_on_all_hosts_after_they_have_read_once_more(hosts: Hosts, topic: str) -> None:
    """They read twice a second, so that it holds within two seconds however slow a reading is."""
    assert HEARTBEAT_MS * 2 <= HOLDS_MS_MAX
    for rate in (25.0, 5.0, 50.0):
        if topic:
            await hosts[0].admin.set_topic_policy("jobs", topic, deliveries_per_second_max=rate)
        else:
            await hosts[0].admin.update_namespace("jobs", deliveries_per_second_max=rate)
        await asyncio.gather(*[has_read(host) for host in hosts])
        for host in hosts:
            number = host.host._namespaces.number_by_name[b"jobs"]
            assert host.host._routing._local.cap_rate((number, topic)) == rate


async def test_a_cap_is_kept_when_a_host_leaves(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        await hosts[0].admin.set_topic_policy("jobs", "t", deliveries_per_second_max=25.0)
        await fill(hosts, 40, "t")
        await all_follow(hosts, "t", 25.0)
        consumers = Consumers(25 * 2, 2)
        taking = asyncio.create_task(consumers.consume(hosts[:1], 80, "t"))
        await asyncio.sleep(0)
        await hosts[1].host.drain()
        await hosts[1].host.stop()
        await taking
        consumers.check()


async def all_follow(hosts: Hosts, topic: str, rate: float) -> None:
    """Return when all hosts know the cap."""
    async with asyncio.timeout(PATIENCE_S):
        for host in hosts:
            number = host.host._namespaces.number_by_name[b"jobs"]
            while host.host._routing._local.cap_rate((number, topic)) != rate:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
