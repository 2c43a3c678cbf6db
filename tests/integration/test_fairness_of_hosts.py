"""Topics get their turns by their weights, whichever hosts their items and their consumers are on."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from foqs import NewItem
from foqs.model.stocks import ANY_TOPIC, weight_of
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import PATIENCE_S, until

Hosts = list[RunningHost]
CALL_ITEMS = 20
OPEN_ITEMS = 4 * CALL_ITEMS
"""What calls of all consumers bring that begin in a window and end after it, or the other way round."""
WINDOW_ITEMS = 800
"""Fewer than consumers take in 10 s, so that what holds of any of them holds of any 10 s."""
SHARE_TOLERANCE = 0.05


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def weigh(hosts: Hosts, weights: Mapping[str, int]) -> None:
    """Return when all hosts know the weights."""
    for topic, weight in weights.items():
        await hosts[0].admin.set_topic_policy("jobs", topic, weight=weight)
    for host in hosts:
        number = host.host._namespaces.number_by_name[b"jobs"]
        settings = host.host._dispatcher.settings
        await until(
            lambda settings=settings, number=number: all(
                settings.policy(number, topic).weight == weight for topic, weight in weights.items()
            )
        )


async def put(host: RunningHost, counts: Mapping[str, int]) -> None:
    """Items of these topics on shards of the host."""
    for topic, count in counts.items():
        for first in range(0, count, 1_000):
            news = [NewItem(topic, b"x")] * min(1_000, count - first)
            result = await host.client.enqueue_many("jobs", news)
            assert {shard_of(item_id) for item_id in result.ids} <= shards_of(host)


async def take(hosts: Sequence[RunningHost], count: int) -> list[str]:
    """The topics of so many items, in the order in which consumers of these hosts got them, two on each."""
    topics: list[str] = []
    loop = asyncio.get_running_loop()

    async def consume(host: RunningHost, limit: asyncio.Timeout) -> None:
        while len(topics) < count:
            items = await host.client.dequeue("jobs", topic_prefix="", count=CALL_ITEMS, wait_ms=1_000)
            if items:
                topics.extend([item.topic for item in items])
                limit.reschedule(loop.time() + PATIENCE_S)
            await host.client.ack("jobs", [item.receipt for item in items])

    async with asyncio.timeout(PATIENCE_S) as limit:  # Until the next items: all of them take as long as they take.
        await asyncio.gather(*[consume(host, limit) for host in hosts for _ in range(2)])
    return topics


async def until_known(hosts: Sequence[RunningHost], weights_there: Sequence[int]) -> None:
    """Return when each host knows the weight of what the other one has, after consumers have asked for any topic."""

    def known(host: RunningHost) -> list[int]:
        news, number = host.host._routing._topic_homes, host.host._namespaces.number_by_name[b"jobs"]
        others, _ = news._others.get((number, ANY_TOPIC), ({}, 0.0))
        return [weight_of(one.stock) for one in others.values()]

    async with asyncio.timeout(PATIENCE_S):
        while [known(host) for host in hosts] != [[weight] for weight in weights_there]:
            await take(hosts, 1)
            await asyncio.sleep(0.05)


def check_shares(topics: Sequence[str], weights: Mapping[str, int]) -> None:
    """In any window each topic has its share by its weight, within 5 % and what open calls bring."""
    for first in range(0, len(topics) - WINDOW_ITEMS + 1, CALL_ITEMS):
        got = Counter(topics[first : first + WINDOW_ITEMS])
        for topic, weight in weights.items():
            due = WINDOW_ITEMS * weight / sum(weights.values())
            assert abs(got[topic] - due) <= SHARE_TOLERANCE * due + OPEN_ITEMS, f"{got} from {first} on, by {weights}"


@pytest.mark.slow
async def test_consumers_get_the_topics_of_another_host_by_their_weights(hosts: Hosts) -> None:
    weights = {"light": 1, "middle": 3, "heavy": 4}
    await weigh(hosts, weights)
    await put(hosts[1], dict.fromkeys(weights, 1_500))
    check_shares(await take(hosts[:1], 2_400), weights)


@pytest.mark.slow
async def test_a_topic_with_very_many_items_takes_no_more_than_its_turns_from_consumers_of_another_host(
    hosts: Hosts,
) -> None:
    weights = dict.fromkeys(["crowd", *[f"small-{number}" for number in range(7)]], 1)
    await put(hosts[1], {"crowd": 8_000} | {topic: 300 for topic in weights if topic != "crowd"})
    check_shares(await take(hosts[:1], 2_000), weights)


@pytest.mark.deep
async def test_weights_hold_among_topics_that_lie_on_both_hosts(hosts: Hosts) -> None:
    weights = {"light": 1, "middle": 3, "heavy": 4}
    await weigh(hosts, weights)
    for host in hosts:
        await put(host, dict.fromkeys(weights, 1_000))
    check_shares(await take(hosts, 2_400), weights)


@pytest.mark.deep
@pytest.mark.parametrize("light_at", [0, 1])
async def test_weights_hold_among_topics_that_lie_on_one_host_each(hosts: Hosts, light_at: int) -> None:
    weights = {"light": 1, "heavy": 4}
    await weigh(hosts, weights)
    await put(hosts[light_at], {"light": 1_000})
    await put(hosts[1 - light_at], {"heavy": 4_000})
    await until_known(hosts[:1], [1 if light_at else 4])
    check_shares(await take(hosts[:1], 2_400), weights)


@pytest.mark.deep
async def test_a_crowd_on_one_host_takes_no_more_than_its_turns_beside_topics_of_the_other(hosts: Hosts) -> None:
    weights = dict.fromkeys(["crowd", "one", "other", "third"], 1)
    await put(hosts[0], {"crowd": 6_000})
    await put(hosts[1], {topic: 1_000 for topic in weights if topic != "crowd"})
    await until_known(hosts, [3, 1])
    check_shares(await take(hosts, 2_400), weights)
