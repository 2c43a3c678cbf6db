"""The whole life of an item over Thrift on real shards."""

from __future__ import annotations

import time

import pytest

from foqs.client.queue_items import NewItem
from foqs.model.errors import InvalidArgumentError, StaleLeaseError, UnknownNamespaceError
from tests.support.running_host import rows, running_host
from tests.support.waiting import longer, until


async def test_an_item_is_delivered_once_and_its_row_is_gone_after_the_ack(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        item_id = await client.enqueue("jobs", "mail", b"\x00'payload\xff", priority=3, metadata=b"m")
        (item,) = await client.dequeue("jobs", "mail", wait_ms=20_000)
        assert (item.id, item.payload, item.metadata, item.priority, item.attempt) == (
            item_id,
            b"\x00'payload\xff",
            b"m",
            3,
            1,
        )
        assert await client.dequeue("jobs", "mail") == []
        assert await client.ack("jobs", [item.receipt]) == {}
        errors = await client.ack("jobs", [item.receipt], return_errors=True)
        assert isinstance(errors[0], StaleLeaseError)
    assert rows(shard_urls, "SELECT id FROM item") == []


async def test_items_come_in_the_order_of_priority_then_deliver_after(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        news = [NewItem("t", b"%d" % n, priority=(n * 7) % 10) for n in range(500)]
        assert not (await client.enqueue_many("jobs", news)).errors
        got = []
        while len(got) < 500:
            got += await client.dequeue("jobs", "t", 64, lease_ms=600_000, wait_ms=20_000)
        assert await client.dequeue("jobs", "t", 64) == []
        places = [(item.priority, item.deliver_after_ms) for item in got]
        assert places == sorted(places)
        for start in range(0, 500, 100):
            assert await client.ack("jobs", [item.receipt for item in got[start : start + 100]]) == {}
    assert rows(shard_urls, "SELECT id FROM item") == []


async def test_a_waiting_consumer_gets_what_is_delayed_and_what_is_nacked(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        await client.enqueue("jobs", "far", b"x", delay_ms=600_000)
        assert await client.dequeue("jobs", "far") == []
        await client.enqueue("jobs", "t", b"x", delay_ms=300)
        (item,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        assert await client.nack("jobs", [item.receipt], delay_ms=200, metadata=b"half done") == {}
        (again,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        assert (again.id, again.attempt, again.metadata) == (item.id, 2, b"half done")
        assert again.deliver_after_ms >= item.deliver_after_ms + 200
        assert isinstance((await client.ack("jobs", [item.receipt], return_errors=True))[0], StaleLeaseError)
        assert await client.ack("jobs", [again.receipt]) == {}


async def test_an_item_is_delivered_again_when_its_lease_has_ended(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        await client.enqueue("jobs", "t", b"x")
        (item,) = await client.dequeue("jobs", "t", lease_ms=1_000, wait_ms=20_000)
        (again,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        assert again.attempt == 2
        assert again.lease_expires_at_ms > item.lease_expires_at_ms
        assert isinstance((await client.ack("jobs", [item.receipt], return_errors=True))[0], StaleLeaseError)


async def test_an_extended_lease_holds(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        await client.enqueue("jobs", "t", b"x")
        for lease_ms in longer(1_000):
            (item,) = await client.dequeue("jobs", "t", lease_ms=lease_ms, wait_ms=20_000)
            errors = await client.extend("jobs", [item.receipt], 600_000, return_errors=True)
            if not errors:
                break
        assert not errors
        await until(lambda: time.time_ns() // 1_000_000 > item.lease_expires_at_ms)
        assert await client.dequeue("jobs", "t", wait_ms=500) == []
        assert await client.ack("jobs", [item.receipt]) == {}


async def test_a_restarted_host_honours_leases_and_serves_the_rest(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        for n in range(20):
            await client.enqueue("jobs", "t", b"%d" % n)
        leased = await host.leased(5)
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        rest = await host.leased(15)
        rest += await client.dequeue("jobs", "t", 100)
        assert {item.id for item in rest}.isdisjoint({item.id for item in leased})
        assert len(rest) == 15
        assert await client.ack("jobs", [item.receipt for item in leased]) == {}
        (stats,) = [topic async for topic in client.topics("jobs")]
        assert (stats.topic, stats.ready, stats.leased) == ("t", 0, 15)


async def test_a_dead_lettered_item_is_counted_and_not_delivered(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        await client.enqueue("jobs", "t", b"x")
        (item,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        assert await client.nack("jobs", [item.receipt], dead_letter=True) == {}
        assert await client.dequeue("jobs", "t") == []
        (stats,) = [topic async for topic in client.topics("jobs")]
        assert (stats.dead, stats.ready, stats.leased) == (1, 0, 0)


async def test_bad_calls_are_refused_and_change_nothing(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        client = host.client
        with pytest.raises(UnknownNamespaceError):
            await client.enqueue("nobody", "t", b"x")
        with pytest.raises(InvalidArgumentError):
            await client.enqueue("jobs", "t\n", b"x")
        with pytest.raises(InvalidArgumentError):
            await client.dequeue("jobs", "t", wait_ms=31_000)
    assert rows(shard_urls, "SELECT id FROM item") == []
