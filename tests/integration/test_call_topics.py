"""getActiveTopics over a socket: exact counts in every state, prefix and pages."""

from __future__ import annotations

import asyncio

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model import limits
from foqs.model.calls import DeliveryPolicy
from foqs.model.errors import InvalidArgumentError, UnknownNamespaceError
from foqs.wire.codec import structs
from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S, longer

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def counts(host, topic: str = "t") -> tuple[int, int, int, int]:
    """(ready, delayed, leased, dead)."""
    stats = (await host.stats("jobs")).get(topic)
    return (stats.ready, stats.delayed, stats.leased, stats.dead) if stats else (0, 0, 0, 0)


async def page(host, prefix: str = "", limit: int = 1_000, page_token: str = ""):
    reply = await host.call("getActiveTopics", structs.ActiveTopicsRequest("jobs", prefix, limit, page_token))
    assert reply.error is None
    return [topic.topic for topic in reply.response.topics], reply.response.next_page_token


async def test_the_counts_are_exact_after_every_step_of_a_life(host):
    news = [NewItem("t", b"x") for _ in range(10)] + [NewItem("t", b"x", delay_ms=600_000) for _ in range(4)]
    ids = (await host.client.enqueue_many("jobs", news)).ids
    assert await counts(host) == (10, 4, 0, 0)
    items = await host.client.dequeue("jobs", "t", 8, lease_ms=600_000)
    assert len(items) == 8
    assert await counts(host) == (2, 4, 8, 0)
    await host.client.ack("jobs", items[:2])
    assert await counts(host) == (2, 4, 6, 0)
    await host.client.nack("jobs", [items[2].receipt])
    assert await counts(host) == (3, 4, 5, 0)
    await host.client.nack("jobs", [Nack(items[3].receipt, delay_ms=600_000)])
    assert await counts(host) == (3, 5, 4, 0)
    await host.client.release("jobs", [items[4].receipt])
    assert await counts(host) == (4, 5, 3, 0)
    await host.client.nack("jobs", [items[5].receipt, items[6].receipt], dead_letter=True)
    assert await counts(host) == (4, 5, 1, 2)
    await host.admin.redrive_dead_letters("jobs", "t", [items[5].id])
    assert await counts(host) == (5, 5, 1, 1)
    await host.admin.purge_dead_letters("jobs", "t", [items[6].id])
    assert await counts(host) == (5, 5, 1, 0)
    await host.admin.delete_items("jobs", [items[7].id, ids[10]])
    assert await counts(host) == (5, 4, 0, 0)
    assert host.items_stored() == 9


async def test_the_counts_follow_time(host):
    topics = []
    for delay_ms in longer(200):
        topics.append(topic := f"t{delay_ms}")
        await host.client.enqueue_many("jobs", [NewItem(topic, b"x", delay_ms=delay_ms)] * 5)
        at_first = await counts(host, topic)
        if at_first == (0, 5, 0, 0):
            break
    assert at_first == (0, 5, 0, 0)
    assert len(await host.client.dequeue("jobs", topic, 1, lease_ms=1_000, wait_ms=20_000)) == 1
    async with asyncio.timeout(PATIENCE_S):
        while (found := await counts(host, topic)) != (5, 0, 0, 0):
            assert sum(found) == 5
    assert host.items_stored() == 5 * len(topics)


async def test_the_counts_of_all_shards_add_up_and_survive_a_restart(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        for delay_ms in (None, 600_000):
            batches = [[NewItem("t", b"x", delay_ms=delay_ms)] * 30 for _ in range(8)]
            await host.enqueue_on_all_shards("jobs", batches)
        items = await host.leased(90)
        await host.client.nack("jobs", [item.receipt for item in items[:20]], dead_letter=True)
        assert await counts(host) == (150, 240, 70, 20)
    async with running_host(meta_url, shard_urls) as host:
        assert await counts(host) == (150, 240, 70, 20)
        await host.client.ack("jobs", items[20:])
        assert await counts(host) == (150, 240, 0, 20)


async def test_a_topic_disappears_with_its_last_item_and_comes_back_with_the_next(host):
    for _ in range(2):
        await host.client.enqueue("jobs", "t", b"x")
        assert list(await host.stats("jobs")) == ["t"]
        (item,) = await host.client.dequeue("jobs", "t")
        assert list(await host.stats("jobs")) == ["t"]
        await host.client.ack("jobs", [item])
        assert await host.stats("jobs") == {}


async def test_an_at_most_once_item_leaves_no_count_behind(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", delivery=DeliveryPolicy.AT_MOST_ONCE)] * 3)
    items = await host.client.dequeue("jobs", "t", 3)
    await host.client.nack("jobs", [items[0].receipt])
    await host.client.release("jobs", [items[1].receipt])
    assert await counts(host) == (0, 0, 1, 0)
    await host.client.ack("jobs", [items[2].receipt])
    assert await host.stats("jobs") == {}


async def test_the_most_urgent_and_the_oldest_are_of_the_ready_items(host):
    assert await host.stats("jobs") == {}
    old = await host.client.enqueue("jobs", "t", b"old", priority=5)
    stored = await host.admin.get_item("jobs", old)
    assert await host.client.dequeue("jobs", "other", wait_ms=50) == []
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", priority=p) for p in (-3, 9)])
    await host.client.enqueue("jobs", "t", b"later", priority=-100, delay_ms=60_000)
    stats = (await host.stats("jobs"))["t"]
    assert (stats.most_urgent_priority, stats.oldest_ready_at_ms) == (-3, stored.deliver_after_ms)
    (urgent,) = await host.client.dequeue("jobs", "t")
    assert urgent.priority == -3
    stats = (await host.stats("jobs"))["t"]
    assert (stats.most_urgent_priority, stats.oldest_ready_at_ms) == (5, stored.deliver_after_ms)
    (item,) = await host.client.dequeue("jobs", "t")
    assert item.id == old
    stats = (await host.stats("jobs"))["t"]
    assert stats.most_urgent_priority == 9
    assert stats.oldest_ready_at_ms > stored.deliver_after_ms
    await host.client.dequeue("jobs", "t")
    stats = (await host.stats("jobs"))["t"]
    assert (stats.ready, stats.most_urgent_priority, stats.oldest_ready_at_ms) == (0, 0, 0)


async def test_topics_come_by_name_in_pages_of_any_size(host):
    names = sorted([f"mail/{n:02d}" for n in range(25)] + ["mail", "Mail/1", "zoo", "é", "%", "_"])
    await host.client.enqueue_many("jobs", [NewItem(name, b"x") for name in names])
    for limit in (1, 7, len(names) - 1, len(names), 1_000):
        seen, token, pages = [], "", 0
        while True:
            topics, token = await page(host, limit=limit, page_token=token)
            assert len(topics) <= limit
            seen += topics
            pages += 1
            if not token:
                break
        assert seen == names
        assert pages == -(-len(names) // limit)


async def test_a_prefix_selects_by_its_letters_alone(host):
    names = ["mail", "mail/1", "mail/2", "Mail/3", "%", "_", "m"]
    await host.client.enqueue_many("jobs", [NewItem(name, b"x") for name in names])
    assert await page(host, "mail/") == (["mail/1", "mail/2"], "")
    assert await page(host, "mail") == (["mail", "mail/1", "mail/2"], "")
    assert await page(host, "%") == (["%"], "")
    assert await page(host, "none") == ([], "")
    first, token = await page(host, "mail", 2)
    assert (first, await page(host, "mail", 2, token)) == (["mail", "mail/1"], (["mail/2"], ""))


async def test_a_namespace_sees_its_own_topics_alone(host):
    await host.admin.create_namespace("other")
    await host.client.enqueue("jobs", "mine", b"x")
    await host.client.enqueue("other", "theirs", b"x")
    assert list(await host.stats("jobs")) == ["mine"]
    assert list(await host.stats("other")) == ["theirs"]


async def test_a_limit_out_of_range_is_refused(host):
    for limit in (0, -1, limits.PAGE_ITEMS_MAX + 1):
        request = structs.ActiveTopicsRequest("jobs", limit=limit)
        assert isinstance((await host.call("getActiveTopics", request)).error, InvalidArgumentError), limit


async def test_an_unknown_namespace_is_refused(host):
    reply = await host.call("getActiveTopics", structs.ActiveTopicsRequest("nobody"))
    assert isinstance(reply.error, UnknownNamespaceError)
