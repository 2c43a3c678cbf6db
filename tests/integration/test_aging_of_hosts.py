"""Several hosts deliver the items of a topic that ages by their places, and a new owner of a shard finds these."""

from __future__ import annotations

from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest

from foqs.cluster.homes.directory import OLDER_MS_MIN
from foqs.shard import mysql_server
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import eventually, until

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


async def age(hosts: Hosts, aging_ms: int) -> int:
    """Returns the number of the namespace."""
    await hosts[0].admin.set_topic_policy("jobs", "t", aging_ms_per_priority=aging_ms)
    number: int = hosts[0].host._namespaces.number_by_name[b"jobs"]
    settings = [host.host._namespaces.settings for host in hosts]
    await until(lambda: all(one.aging_ms(number, "t") == aging_ms for one in settings))
    return number


async def put(host: RunningHost, payload: bytes, priority: int, **fields: int) -> None:
    """Enqueue on a shard of this host."""
    with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
        item_id = await host.client.enqueue("jobs", "t", payload, priority=priority, **fields)
    assert shard_of(item_id) in shards_of(host)


async def test_a_host_gets_an_item_that_has_waited_from_another_one_before_its_own_more_urgent_one(
    hosts: Hosts,
) -> None:
    first, second = hosts
    await age(hosts, 1)
    await put(first, b"has waited", 10)
    await put(second, b"urgent", 0, delay_ms=OLDER_MS_MIN + 500)

    async def taken() -> list[bytes]:
        """What a consumer of the second host gets first. It gives all back."""
        items = await second.client.dequeue("jobs", "t", count=1)
        await second.client.release("jobs", items)
        return [item.payload for item in items]

    await eventually(taken, lambda found: found == [b"urgent"])
    await eventually(taken, lambda found: found == [b"has waited"])


async def test_a_new_owner_finds_the_places_of_ready_delayed_leased_and_failed_items(hosts: Hosts) -> None:
    first, second = hosts
    # The places of two items differ by more than a unit: within one, the order is that of due times.
    await age(hosts, 50)
    await put(second, b"leased", 2)
    (item,) = await second.client.dequeue("jobs", "t", lease_ms=1_000, wait_ms=5_000)
    await put(second, b"ready", 10)
    await put(second, b"delayed", 0, delay_ms=700)
    await second.host.stop()
    await until(lambda: shards_of(first) == set(first.shard_urls))
    await first.client.nack("jobs", item, delay_ms=900)
    late = 20
    await put(first, b"late", late)
    expected = [(b"leased", 2), (b"ready", 10), (b"delayed", 0), (b"late", late)]

    async def shown() -> list[tuple[bytes, int]]:
        return [(one.payload, one.priority) for one in (await first.admin.peek_items("jobs", "t", 10)).items]

    assert await eventually(shown, lambda found: len(found) == 4) == expected
    items = await first.client.dequeue("jobs", "t", count=4, wait_ms=5_000)
    taken = [(one.payload, one.priority) for one in items]
    assert taken[-1] == (b"late", late)
    # The last owner had claimed some ahead, whose claims go on.
    assert taken == [one for one in expected if one in taken]
