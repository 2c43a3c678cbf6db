"""The trace context of an item over a socket: it comes with every delivery, whatever happened to the item before."""

from __future__ import annotations

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model.errors import TooLargeError
from tests.support.running_host import running_host

pytestmark = pytest.mark.asyncio(loop_scope="module")

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


async def test_it_survives_a_nack_the_end_of_a_lease_a_release_and_new_metadata(host):
    await host.client.enqueue("jobs", "t", b"x", trace_context=PARENT)
    (item,) = await host.client.dequeue("jobs", "t", lease_ms=1_000, wait_ms=20_000)
    assert item.trace_context == PARENT
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (item.attempt, item.trace_context) == (2, PARENT)
    for nack in (Nack(item.receipt, 10, b"half done"), None):
        assert await host.client.nack("jobs", [nack or Nack(item.receipt, release=True)]) == {}
        (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
        assert (item.trace_context, item.metadata) == (PARENT, b"half done")


async def test_it_survives_a_delay(host):
    await host.client.enqueue("jobs", "t", b"x", delay_ms=50, trace_context=PARENT)
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert item.trace_context == PARENT


async def test_it_is_shown_and_survives_the_dead_letters(host):
    item_id = await host.client.enqueue("jobs", "t", b"x", trace_context=PARENT)
    assert (await host.admin.get_item("jobs", item_id)).trace_context == PARENT
    (peeked,) = (await host.admin.peek_items("jobs", "t")).items
    assert peeked.trace_context == PARENT
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    await host.client.nack("jobs", [item.receipt], dead_letter=True)
    (dead,) = (await host.admin.list_dead_letters("jobs", "t")).items
    assert dead.trace_context == PARENT
    assert (await host.admin.redrive_dead_letters("jobs", "t")).count == 1
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert item.trace_context == PARENT


async def test_each_item_of_a_pack_keeps_its_own_when_another_host_takes_over(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        news = [NewItem("t", b"%d" % n, trace_context=f"trace-{n}" if n % 2 else None) for n in range(40)]
        assert not (await host.client.enqueue_many("jobs", news)).errors
        assert host.rows("SELECT COUNT(*) FROM pack WHERE items != ''") != [(0,)] * len(shard_urls)
        assert sum(count for (count,) in host.rows("SELECT COUNT(*) FROM item")) == 0
    async with running_host(meta_url, shard_urls, name="other") as other:
        items = []
        while len(items) < len(news):
            items += await other.client.dequeue("jobs", "t", 40, wait_ms=20_000)
        found = {item.payload: item.trace_context for item in items}
        assert found == {new.payload: new.trace_context for new in news}


async def test_none_and_an_empty_one_are_none(host):
    news = [NewItem("t", b"x"), NewItem("t", b"x", trace_context="")]
    ids = (await host.client.enqueue_many("jobs", news)).ids
    assert [(await host.admin.get_item("jobs", item_id)).trace_context for item_id in ids] == [None, None]
    items = await host.client.dequeue("jobs", "t", 2, wait_ms=20_000)
    assert [item.trace_context for item in items] == [None, None]


async def test_it_has_at_most_128_bytes_of_utf_8(host):
    for longest, too_long in (("t" * 128, "t" * 129), ("é" * 64, "é" * 64 + "t")):
        result = await host.client.enqueue_many(
            "jobs", [NewItem("t", b"x", trace_context=text) for text in (longest, too_long)], return_errors=True
        )
        assert isinstance(result.errors[1], TooLargeError)
        assert result.errors[1].message == "trace_context of 129 bytes is over the limit of 128"
        (item,) = await host.client.dequeue("jobs", "t", 2, wait_ms=20_000)
        assert item.trace_context == longest
