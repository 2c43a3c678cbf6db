"""Consumers over several hosts: who waits where, who has what, take-overs, and hosts that do not respond."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from typing import Any

import pytest

from foqs.client.queue_items import NewItem
from foqs.model.errors import StaleLeaseError
from foqs.model.holder import ConsumerRow
from foqs.wire.codec import structs
from tests.support.cluster import cluster
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import eventually

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.database]
LEASE_MS = 600_000


async def listed(host: RunningHost, **only: Any) -> list[ConsumerRow]:
    return [row async for row in host.admin.list_consumers("jobs", **only)]


async def held(host: RunningHost) -> dict[tuple[str, str], int]:
    return {(row.name, row.topic): row.held for row in await listed(host) if row.held}


async def take(host: RunningHost, name: str | None, count: int) -> list[Any]:
    items: list[Any] = []
    async with asyncio.timeout(30):
        while len(items) < count:
            items += await host.client.dequeue(
                "jobs", "t", count - len(items), consumer=name, lease_ms=LEASE_MS, wait_ms=1_000
            )
    return items


async def waits(host: RunningHost) -> dict[tuple[str, str, str | None], tuple[int, tuple[str, ...]]]:
    return {
        (row.name, row.topic, row.prefix): (row.waiting_calls, tuple(row.hosts))
        for row in await listed(host)
        if row.waiting_calls
    }


async def test_calls_that_wait_are_counted_by_topic_and_prefix(host: RunningHost) -> None:
    wanted: list[dict[str, Any]] = [
        {"topics": "t"},
        {"topics": "t"},
        {"topics": {"t": 1, "u": 2}},
        {"topic_prefix": "em"},
    ]
    calls = [
        asyncio.create_task(host.client.dequeue("jobs", consumer="worker", wait_ms=30_000, **some)) for some in wanted
    ]

    expected = {("worker", "t", None): 3, ("worker", "u", None): 1, ("worker", "", "em"): 1}
    await eventually(
        lambda: waits(host), lambda found: {place: count for place, (count, _) in found.items()} == expected
    )
    assert [row.topic for row in await listed(host, topic="u") if row.waiting_calls] == ["u"]
    for call in calls:
        call.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*calls)

    await eventually(lambda: waits(host), lambda found: not found)


async def test_pages_have_each_row_once(host: RunningHost) -> None:
    await host.client.enqueue_many("jobs", [NewItem("t", b"") for _ in range(30)])
    for number in range(30):
        await take(host, f"w{number:02}", 1)
    for limit in (1, 2, 7, 100):
        rows, token = [], ""
        while True:
            request = {"namespace_name": "jobs", "limit": limit, "page_token": token, "topic": "t"}

            page = (await host.call("listConsumers", structs.ListConsumersRequest(**request))).response
            assert len(page.consumers) <= limit
            rows += [(row.name, row.held) for row in page.consumers]
            token = page.next_page_token
            if not token:
                break
        assert rows == [(f"w{number:02}", 1) for number in range(30)], limit
    bad = await host.call("listConsumers", structs.ListConsumersRequest("jobs", page_token="[1]"))
    assert "page_token" in bad.error.message
    bad = await host.call("listConsumers", structs.ListConsumersRequest("jobs", limit=0))
    assert "limit" in bad.error.message


async def test_shards_of_clients_are_refused(host: RunningHost) -> None:

    for verb, request in (
        ("listConsumers", structs.ListConsumersRequest("jobs", shard_ids=[0])),
        ("releaseLeases", structs.ReleaseLeasesRequest("jobs", "w", shard_ids=[0])),
    ):
        assert "shard_ids" in (await host.call(verb, request)).error.message


@pytest.mark.deep
async def test_leases_on_all_hosts_count_and_end_together(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as (one, other):
        for host in (one, other):
            await host.client.enqueue_many("jobs", [NewItem("t", b"")] * 20)
        count = 40
        items = await take(one, "worker", count // 2)
        more = await take(other, None, count - len(items))
        for host in (one, other):
            found = await held(host)
            assert found.pop(("worker", "t")) == len(items)
            assert sum(found.values()) == len(more)  # Under the address of the caller, also on the other host.
            assert len(found) == 1
        shown = await other.admin.get_item("jobs", items[-1].id)
        assert shown.leased_by == "worker"
        result = await other.admin.release_leases("jobs", "worker")
        assert result.released == len(items)
        errors = await one.client.ack("jobs", items, return_errors=True)
        assert {type(error) for error in errors.values()} == {StaleLeaseError}
        again = await take(other, "next", len(items))
        assert {item.attempt for item in again} == {1}


@pytest.mark.deep
async def test_a_consumer_of_a_standby_is_listed_by_all_hosts(meta_url: str, shard_urls: dict[int, str]) -> None:
    some = {0: shard_urls[0]}
    async with cluster(meta_url, some, 2) as hosts:
        (standby,) = [host for host in hosts if not list(host.host._shards.owned())]
        (owner,) = [host for host in hosts if host is not standby]
        call = asyncio.create_task(standby.client.dequeue("jobs", "t", consumer="far", wait_ms=30_000))

        expected = (1, (standby.host._config.host_name,))
        for host in hosts:
            await eventually(partial(waits, host), lambda found: found.get(("far", "t", None)) == expected)
        await owner.client.enqueue("jobs", "t", b"")
        assert len(await call) == 1
        for host in hosts:
            assert await held(host) == {("far", "t"): 1}


@pytest.mark.deep
async def test_after_a_take_over_the_holder_is_unknown_until_an_extension_names_it(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with running_host(meta_url, shard_urls) as host:
        await host.client.enqueue_many("jobs", [NewItem("t", b"") for _ in range(3)])
        items = await take(host, "worker", 3)
    async with running_host(meta_url, shard_urls, name="other") as other:
        shown = await other.admin.get_item("jobs", items[0].id)
        assert shown.leased_by is not None
        assert shown.leased_by.startswith("unknown (before the take-over of ")
        assert shown.leased_since_ms is None
        await other.client.extend("jobs", items[:1], LEASE_MS, consumer="worker")
        assert (await other.admin.get_item("jobs", items[0].id)).leased_by == "worker"
        found = await held(other)
        assert found.pop(("worker", "t")) == 1
        assert sum(found.values()) == 2
        released = 0
        for name, _ in found:  # One for each moment at which a shard was taken.
            released += (await other.admin.release_leases("jobs", name)).released
        assert released == 2
        assert await other.client.ack("jobs", items[:1]) == {}


@pytest.mark.deep
async def test_a_shard_without_a_host_is_named_as_missing(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with running_host(meta_url, shard_urls) as host:
        await host.client.enqueue_many("jobs", [NewItem("t", b"") for _ in range(3)])
        await take(host, "worker", 3)
        lost = max(shard_urls)
        await host.host.lose_shard(lost)
        missing: list[str] = []
        rows = [row async for row in host.admin.list_consumers("jobs", on_missing=missing.extend)]
        assert [row.name for row in rows] == ["worker"]
        assert any(f"shard {lost}" in what for what in missing)
