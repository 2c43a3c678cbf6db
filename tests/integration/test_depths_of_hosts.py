"""Several hosts that enqueue items of one topic keep the limit on its depth together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial

import pytest

from foqs import NewItem
from foqs.cluster.homes import other_depths
from foqs.cluster.peers.guarded_peers import GuardedPeer
from foqs.model.errors import PausedError, UnavailableError
from foqs.model.stocks import Topic
from tests.support.cluster import cluster
from tests.support.running_host import RunningHost
from tests.support.waiting import eventually

pytestmark = [pytest.mark.deep]

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def limit(hosts: Hosts, topic: str, depth_max: int, group: str | None = None) -> None:
    """Set the limit, and wait until all hosts know it."""
    await hosts[0].admin.set_topic_policy("jobs", topic, group=group, depth_max=depth_max)
    for host in hosts:
        read = partial(host.admin.get_topic_policy, "jobs", topic, group=group)
        await eventually(read, lambda policy: policy.depth_max == depth_max)


async def enqueue(host: RunningHost, topic: str, count: int, dedup: str = "") -> int:
    """How many were taken. The others were refused because the topic is full."""
    items = [NewItem(topic, b"x", dedup_id=f"{dedup}{at}" if dedup else None) for at in range(count)]
    result = await host.client.enqueue_many("jobs", items, return_errors=True)
    assert {type(error) for error in result.errors.values()} <= {PausedError}
    return count - len(result.errors)


async def test_a_host_counts_the_items_of_others_before_it_takes_its_first_one(hosts: Hosts) -> None:
    await limit(hosts, "t", 10)
    assert await enqueue(hosts[0], "t", 7) == 7
    assert await enqueue(hosts[1], "t", 7) == 3
    assert await enqueue(hosts[1], "t", 1) == 0
    items = await hosts[0].client.dequeue("jobs", "t", count=10, wait_ms=5_000)
    assert items
    await hosts[0].client.ack("jobs", items)
    for _ in items:
        await eventually(partial(enqueue, hosts[1], "t", 1), lambda taken: taken == 1)
    assert await enqueue(hosts[1], "t", 1) == 0


async def test_items_with_ids_of_shards_elsewhere_and_groups_are_limited_as_well(hosts: Hosts) -> None:
    await hosts[0].admin.create_group("jobs", "t", "audit")
    await limit(hosts, "t", 6, group="audit")
    assert await enqueue(hosts[0], "t", 4, "a") == 4
    assert await enqueue(hosts[1], "t", 4, "b") == 2
    # They are repeats, and not refused.
    assert await enqueue(hosts[1], "t", 4, "a") == 4
    for group, count in ((None, 6), ("audit", 6)):
        found = 0
        for host in hosts:
            while items := await host.client.dequeue("jobs", "t", count=10, group=group, wait_ms=500):
                found += len(items)
        assert found == count


async def test_calls_of_one_host_at_the_same_time_never_exceed_the_limit(hosts: Hosts) -> None:
    await limit(hosts, "t", 25)
    taken = await asyncio.gather(*[enqueue(hosts[0], "t", 4) for _ in range(20)])
    assert sum(taken) == 25


async def test_a_host_that_does_not_answer_delays_enqueues_once_and_keeps_its_last_count(
    hosts: Hosts, monkeypatch: pytest.MonkeyPatch
) -> None:
    await limit(hosts, "t", 10)
    assert await enqueue(hosts[0], "t", 4) == 4
    assert await enqueue(hosts[1], "t", 1) == 1
    asked = 0

    async def refuse(self: GuardedPeer, topics: list[Topic]) -> dict[Topic, int]:
        nonlocal asked
        asked += 1
        raise UnavailableError("it does not answer")

    monkeypatch.setattr(GuardedPeer, "depths", refuse)
    monkeypatch.setattr(other_depths, "FRESH_MS", 0)
    monkeypatch.setattr(other_depths, "STALE_MS", 0)
    assert await enqueue(hosts[1], "t", 9) == 5
    assert asked


async def test_nothing_is_asked_about_topics_without_a_limit(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    await limit(hosts, "t", 10)

    async def fail(self: GuardedPeer, topics: list[Topic]) -> dict[Topic, int]:
        raise AssertionError(f"asked about {topics}")

    monkeypatch.setattr(GuardedPeer, "depths", fail)
    assert await enqueue(hosts[0], "else", 20) == 20
