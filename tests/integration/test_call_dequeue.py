"""dequeue over a socket: topics, counts, long polls, leases, the order, TTL and at-most-once."""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.queue_items import NewItem
from foqs.host.shards import ttl_scan
from foqs.model import limits
from foqs.model.calls import CallContext, DeliveryPolicy, ItemState
from foqs.model.errors import (
    InvalidArgumentError,
    NotFoundError,
    PausedError,
    StaleLeaseError,
    TooLargeError,
    UnknownNamespaceError,
)
from foqs.model.principal import EVERYBODY
from foqs.shard.state.index import ShardIndex
from foqs.storage.shard.packs import pack_index
from foqs.wire.codec import structs
from tests.support.raw_client import RawClient
from tests.support.running_host import running_host
from tests.support.waiting import PATIENCE_S, longer, until

pytestmark = pytest.mark.asyncio(loop_scope="module")

CLOCK_SLACK_MS = 1_000
"""Between this machine's clock and the shard's, as the host measured it."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def drained(client: AsyncClient, topic: str, count: int) -> list:
    """All that is ready, in calls of at most `count`."""
    got = []
    while items := await client.dequeue("jobs", topic, count):
        got += items
    return got


async def until_gone(host, topic: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while await host.stats("jobs", topic):
            assert await host.client.dequeue("jobs", topic, wait_ms=100) == []


# ---- what is asked for ----


async def test_many_topics_in_one_call_each_give_their_count(host):
    news = [NewItem(topic, b"%d" % n) for topic in ("a", "b", "c") for n in range(5)]
    await host.client.enqueue_many("jobs", news)
    items = await host.client.dequeue("jobs", {"a": 2, "b": 5, "none": 3, "c": 9}, wait_ms=20_000)
    rest = await host.client.dequeue("jobs", {"b": 5, "c": 9})
    taken = [item.topic for item in items]
    assert taken.count("a") == 2
    assert taken.count("b") + [item.topic for item in rest].count("b") == 5
    assert taken.count("c") + [item.topic for item in rest].count("c") == 5
    assert len(await host.client.dequeue("jobs", "a", 10)) == 3


async def test_no_more_than_the_count_is_leased(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 20)
    assert len(await host.client.dequeue("jobs", "t", 1)) == 1
    assert len(await host.client.dequeue("jobs", "t", 7)) == 7
    stats = (await host.stats("jobs"))["t"]
    assert (stats.leased, stats.ready) == (8, 12)
    assert len(await drained(host.client, "t", limits.BATCH_ITEMS_MAX)) == 12


async def test_a_topic_named_twice_counts_twice(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 10)
    assert len(await host.client.dequeue("jobs", [("t", 2), ("t", 3)])) == 5


async def test_one_answer_has_at_most_a_thousand_items(host):
    topics = [f"t{n}" for n in range(3)]
    for topic in topics:
        await host.client.enqueue_many("jobs", [NewItem(topic, b"x")] * 600)
    items = []
    while len(items) < 1_800:
        more = await host.client.dequeue("jobs", dict.fromkeys(topics, 600), lease_ms=600_000, wait_ms=20_000)
        assert 0 < len(more) <= limits.DEQUEUE_ITEMS_MAX
        items += more
    assert len({item.id for item in items}) == 1_800


async def test_large_items_come_in_several_answers(host):
    await host.admin.update_namespace("jobs", payload_bytes_max=limits.PAYLOAD_BYTES_MAX)
    payload = b"x" * limits.PAYLOAD_BYTES_MAX
    for _ in range(4):
        assert not (await host.client.enqueue_many("jobs", [NewItem("t", payload)] * 5)).errors
    items = await host.client.dequeue("jobs", "t", 100, wait_ms=20_000)
    assert sum(len(item.payload) for item in items) <= limits.DEQUEUE_ANSWER_BYTES_MAX + limits.PAYLOAD_BYTES_MAX
    items += await host.leased(20 - len(items))
    assert len({item.id for item in items}) == 20
    assert all(item.payload == payload for item in items)


async def test_an_unknown_topic_is_empty(host):
    assert await host.client.dequeue("jobs", "never seen") == []
    assert await host.stats("jobs") == {}


async def test_two_namespaces_do_not_see_each_other(host):
    await host.admin.create_namespace("other")
    await host.client.enqueue("jobs", "t", b"mine")
    assert await host.client.dequeue("other", "t", wait_ms=200) == []
    (item,) = await host.client.dequeue("jobs", "t")
    assert item.payload == b"mine"


async def test_counts_waits_and_leases_at_their_limits_are_taken(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 3)
    for count, wait_ms, lease_ms in (  # The shortest lease last: the item may soon be there again.
        (1, 0, limits.LEASE_MS_MAX),
        (1, limits.WAIT_MS_MAX, None),
        (limits.BATCH_ITEMS_MAX, limits.WAIT_MS_MAX, limits.LEASE_MS_MIN),
    ):
        assert len(await host.client.dequeue("jobs", "t", count, wait_ms=wait_ms, lease_ms=lease_ms)) == 1


async def test_a_call_names_one_to_a_thousand_topics_and_groups_that_exist(host):
    demands = [structs.TopicDemand(f"t{n}", 1) for n in range(limits.DEQUEUE_TOPICS_MAX + 1)]
    await host.client.enqueue("jobs", "t999", b"x")
    reply = await host.call("dequeue", structs.DequeueRequest("jobs", demands[:-1]))
    assert [item.topic for item in reply.response.items] == ["t999"]
    for topics, kind in (
        ([], InvalidArgumentError),
        (demands, TooLargeError),
        ([structs.TopicDemand("t", 1, "group")], NotFoundError),
    ):
        assert isinstance((await host.call("dequeue", structs.DequeueRequest("jobs", topics))).error, kind)


async def test_a_paused_namespace_refuses_dequeues_and_still_takes_items_and_acks(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 2)
    (item,) = await host.client.dequeue("jobs", "t")
    await host.admin.update_namespace("jobs", dequeue_paused=True)
    with pytest.raises(PausedError):
        await host.client.dequeue("jobs", "t")
    await host.client.enqueue("jobs", "t", b"x")
    assert await host.client.ack("jobs", [item]) == {}
    await host.admin.update_namespace("jobs", dequeue_paused=False)
    assert len(await drained(host.client, "t", 10)) == 2


async def test_a_call_that_waits_ends_when_its_namespace_is_paused(host):
    await host.client.enqueue("jobs", "other", b"x")
    waits = asyncio.create_task(host.client.dequeue("jobs", "t", wait_ms=20_000))
    await host.client.dequeue("jobs", "other")
    await host.admin.update_namespace("jobs", dequeue_paused=True)
    with pytest.raises(PausedError):
        await waits


async def test_an_unknown_namespace_is_refused(host):
    with pytest.raises(UnknownNamespaceError):
        await host.client.dequeue("nobody", "t")


# ---- long polls ----


async def test_a_long_poll_ends_with_the_first_item(host):
    before_ms = now_ms()
    waiting = asyncio.create_task(host.client.dequeue("jobs", {"a": 5, "b": 5}, wait_ms=limits.WAIT_MS_MAX))
    await until(lambda: host.host._dispatcher.queues.waiting_count == 1)
    assert not waiting.done()
    item_id = await host.client.enqueue("jobs", "b", b"x")
    (item,) = await waiting
    assert (item.id, item.topic) == (item_id, "b")
    assert now_ms() - before_ms < limits.WAIT_MS_MAX, "and not with its time"


async def test_a_long_poll_without_items_ends_with_nothing_and_not_before_its_time(host):
    """How soon after it is held in tests/unit/test_memory_queue.py, where the clock is the test's."""
    started = now_ms()
    assert await host.client.dequeue("jobs", "t", wait_ms=400) == []
    assert now_ms() - started >= 380


async def test_a_long_poll_does_not_outlive_the_deadline_that_its_call_came_with(host):
    """As when its frame has waited for long before it was read."""
    call, now_s = host.host._routing.router.call, asyncio.get_running_loop().time()
    request = structs.DequeueRequest("jobs", [structs.TopicDemand("t", 1)], None, limits.WAIT_MS_MAX)
    for left_s in (-5.0, 0.2):
        async with asyncio.timeout(PATIENCE_S):
            assert await call(CallContext("a", now_s + left_s, principal=EVERYBODY), "dequeue", request) == []
    await host.client.enqueue("jobs", "t", b"x")
    assert len(await call(CallContext("a", now_s - 5.0, principal=EVERYBODY), "dequeue", request)) == 1


async def test_each_of_many_waiting_calls_gets_its_own_item(host):
    async with AsyncClient(host.address) as other:
        waiting = [
            asyncio.create_task(client.dequeue("jobs", "t", 1, wait_ms=20_000))
            for client in (host.client, other)
            for _ in range(10)
        ]
        await until(lambda: host.host._dispatcher.queues.waiting_count == 20)
        result = await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 20)
        got = [item.id for items in await asyncio.gather(*waiting) for item in items]
    assert sorted(got) == sorted(result.ids)


async def test_an_item_for_a_consumer_that_hung_up_goes_to_the_next(host):
    async with RawClient.connect("127.0.0.1", host.host.port) as gone:
        request = structs.DequeueRequest("jobs", [structs.TopicDemand("t", 1)], wait_ms=30_000)
        gone.send("dequeue", request, seqid=1)
        await until(lambda: host.host._dispatcher.queues.waiting_count == 1)
        gone.reset()
    await until(lambda: host.host._dispatcher.queues.waiting_count == 0)
    item_id = await host.client.enqueue("jobs", "t", b"x")
    (item,) = await host.client.dequeue("jobs", "t", wait_ms=20_000)
    assert (item.id, item.attempt) == (item_id, 1)


# ---- leases ----


async def test_the_lease_is_the_calls_else_the_items_else_the_namespaces(host):
    await host.admin.update_namespace("jobs", lease_ms_default=70_000)
    cases = [(None, None, 70_000), (None, 600_000, 600_000), (100_000, 600_000, 100_000), (900_000, 2_000, 900_000)]
    for call_lease_ms, item_lease_ms, lease_ms in cases:
        item_id = await host.client.enqueue("jobs", "t", b"x", lease_ms=item_lease_ms)
        before = now_ms()
        (item,) = await host.client.dequeue("jobs", "t", lease_ms=call_lease_ms, wait_ms=20_000)
        after = now_ms()
        assert item.id == item_id
        assert before - CLOCK_SLACK_MS <= item.lease_expires_at_ms - lease_ms <= after + CLOCK_SLACK_MS
        stored = await host.admin.get_item("jobs", item_id)
        assert stored.lease_expires_at_ms is not None
        assert abs(stored.lease_expires_at_ms - item.lease_expires_at_ms) <= CLOCK_SLACK_MS
        assert await host.client.ack("jobs", [item]) == {}


async def test_a_long_lease_after_short_ones_is_granted_in_full(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 300)
    for lease_ms in (1_000, limits.LEASE_MS_MAX, 1_000, limits.HOUR_MS):
        got = 0
        async with asyncio.timeout(PATIENCE_S):
            while got < 20:
                before = now_ms()
                items = await host.client.dequeue("jobs", "t", 20, lease_ms=lease_ms, wait_ms=20_000)
                for item in items:
                    assert item.lease_expires_at_ms >= before + lease_ms - CLOCK_SLACK_MS
                    assert item.lease_expires_at_ms <= now_ms() + lease_ms + CLOCK_SLACK_MS
                errors = await host.client.ack("jobs", items, return_errors=True)
                assert not errors or lease_ms == 1_000, "only those may have ended"
                got += len(items)


async def test_while_a_lease_runs_nobody_else_gets_the_item(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 100)
    got = []
    async with AsyncClient(host.address) as other, asyncio.timeout(PATIENCE_S):
        while len(got) < 100:
            takers = [
                client.dequeue("jobs", "t", 7, lease_ms=600_000, wait_ms=300)
                for client in (host.client, other)
                for _ in range(10)
            ]
            got += [item.id for items in await asyncio.gather(*takers) for item in items]
    assert len(got) == len(set(got)) == 100


# ---- order ----


async def test_ready_items_come_by_priority_then_deliver_after_then_id_over_all_shards(host):
    chance = random.Random(7)
    batches = [
        [
            NewItem("t", b"x", priority=chance.choice([-(1 << 31), -5, 0, 3, (1 << 31) - 1]), delay_ms=delay_ms)
            for _ in range(40)
        ]
        for delay_ms in (None, 1, 20, 40)
        for _ in range(4)
    ]
    ids = await host.enqueue_on_all_shards("jobs", batches)
    async with asyncio.timeout(PATIENCE_S):
        while (await host.stats("jobs"))["t"].delayed:
            continue
    got = await drained(host.client, "t", 37)
    assert sorted(item.id for item in got) == sorted(ids)
    places = [(item.priority, item.deliver_after_ms, int(item.id.split("-")[1], 16)) for item in got]
    assert places == sorted(places)


async def test_a_more_urgent_item_overtakes_what_is_buffered(host):
    await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"later", priority=5)] * 100 for _ in range(8)])
    taken_count = 0
    while taken_count < 200:  # So much that the host prefetches. A busy host may give less than was asked for.
        taken_count += len(await host.client.dequeue("jobs", "t", 10, wait_ms=20_000))
    for priority in (4, 3, -9):
        item_id = await host.client.enqueue("jobs", "t", b"now", priority=priority)
        items = await host.client.dequeue("jobs", "t", 5, wait_ms=20_000)
        assert items[0].id == item_id
        assert [item.priority for item in items] == sorted(item.priority for item in items)


async def test_an_item_given_back_comes_first_again(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"%d" % n) for n in range(200)])
    items = await host.client.dequeue("jobs", "t", 3, wait_ms=20_000)
    await host.client.dequeue("jobs", "t", 50, wait_ms=20_000)
    assert await host.client.nack("jobs", items) == {}
    again = await host.client.dequeue("jobs", "t", 3, wait_ms=20_000)
    assert [item.id for item in again] == [item.id for item in items]


async def test_a_backlog_deeper_than_memory_comes_complete_and_in_order(host, monkeypatch):
    monkeypatch.setattr(limits, "WINDOW_ITEMS_MAX", 64)
    chance = random.Random(3)
    ids = []
    for _ in range(4):
        batches = [[NewItem("t", b"x", priority=chance.randrange(9)) for _ in range(150)] for _ in range(4)]
        ids += await host.enqueue_on_all_shards("jobs", batches)
    got = await drained(host.client, "t", 100)
    assert sorted(item.id for item in got) == sorted(ids)
    priorities = [item.priority for item in got]
    assert priorities == sorted(priorities)


# ---- TTL ----


async def test_an_item_whose_ttl_ended_is_never_delivered_and_goes(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", ttl_ms=1)] * 50)
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", ttl_ms=50, delay_ms=100)] * 50)
    assert await host.client.dequeue("jobs", "other", wait_ms=200) == []
    assert await host.client.dequeue("jobs", "t", 100, wait_ms=1_000) == []
    await until_gone(host, "t")
    assert host.items_stored() == 0


async def test_items_that_nobody_asks_for_go_when_their_ttl_ends(host):
    await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x", ttl_ms=300)] * 50 for _ in range(8)])
    async with asyncio.timeout(PATIENCE_S):
        while await host.stats("jobs"):
            await host.client.dequeue("jobs", "other", wait_ms=100)
    assert host.items_stored() == 0


def books(host) -> list[ShardIndex]:
    return [writer.shard.index for writer in host.host._shards.writers.values()]


@pytest.fixture
def quick_walks(monkeypatch):
    """Of the TTL scan."""
    monkeypatch.setattr(ttl_scan, "EXPIRY_LAP_PAUSE_MS", 50)


@pytest.mark.parametrize("has_rows", [True, False])
async def test_items_that_come_after_a_walk_of_the_ttl_scan_go(quick_walks, host, monkeypatch, has_rows):
    monkeypatch.setattr(pack_index, "PACK_ITEMS_MIN", 1_000 if has_rows else 1)
    await until(lambda: all(index.expires_first_ms for index in books(host)))
    await host.enqueue_on_all_shards("jobs", [[NewItem("t", b"x", ttl_ms=300)] * 5 for _ in range(8)])
    await until(lambda: not host.items_stored())


async def test_items_that_a_walk_of_the_ttl_scan_saw_delayed_go(quick_walks, host):
    news = [NewItem("t", b"x", delay_ms=1_500, ttl_ms=300)] * 5
    await host.enqueue_on_all_shards("jobs", [news for _ in range(8)])
    for index in books(host):
        index.expires_first_ms = 0
    await until(lambda: not host.items_stored())


async def test_a_prefetched_item_whose_ttl_ended_is_not_handed_out(host):
    for ttl_ms in longer(1_500):
        items = [NewItem(f"t{ttl_ms}", b"x", ttl_ms=ttl_ms)] * 400
        ids = (await host.client.enqueue_many("jobs", items)).ids
        for _ in range(10):
            await host.client.dequeue("jobs", f"t{ttl_ms}", 10, wait_ms=1_000)
        if host.host._dispatcher.prefetch.prefetched_bytes:
            break
    assert host.host._dispatcher.prefetch.prefetched_bytes
    await host.until_expired(ids[0])
    assert await host.client.dequeue("jobs", f"t{ttl_ms}", 1_000, wait_ms=500) == []


async def test_a_lease_that_outlives_the_ttl_may_be_acked_but_is_not_redelivered(host):
    acked, nacked = await host.short_lived(2)
    await host.until_expired(nacked.id)
    assert await host.client.dequeue("jobs", "other", wait_ms=500) == []
    assert await host.client.ack("jobs", [acked]) == {}
    assert await host.client.nack("jobs", [nacked]) == {}
    assert await host.client.dequeue("jobs", "t", 2, wait_ms=500) == []
    stored = await host.admin.get_item("jobs", nacked.id)
    assert stored.state is ItemState.DEAD, "it has failed, and does not end without a trace"
    assert (await host.admin.purge_dead_letters("jobs", "t")).count == 1
    await until_gone(host, "t")


# ---- at most once ----


async def test_an_at_most_once_item_is_not_delivered_again_however_its_delivery_ends(host):
    ends = ["nack", "delayed nack", "release", "lease end"]
    held = {}
    for end in ends:
        await host.client.enqueue("jobs", end, b"x", delivery=DeliveryPolicy.AT_MOST_ONCE)
        (held[end],) = await host.client.dequeue("jobs", end, lease_ms=60_000, wait_ms=20_000)
    assert await host.client.nack("jobs", [held["nack"].receipt]) == {}
    assert await host.client.nack("jobs", [held["delayed nack"].receipt], delay_ms=50) == {}
    assert await host.client.release("jobs", [held["release"].receipt]) == {}
    assert await host.client.extend("jobs", [held["lease end"].receipt], 1_000) == {}
    assert await host.client.dequeue("jobs", dict.fromkeys(ends, 1), wait_ms=2_000) == []
    for end in ends:
        errors = await host.client.ack("jobs", [held[end].receipt], return_errors=True)
        assert isinstance(errors[0], StaleLeaseError), end
        await until_gone(host, end)
    assert host.items_stored() == 0


async def test_a_restart_delivers_no_at_most_once_item_twice(meta_url, shard_urls):
    policy = DeliveryPolicy.AT_MOST_ONCE
    async with running_host(meta_url, shard_urls) as host:
        await host.client.enqueue_many("jobs", [NewItem("t", b"x", delivery=policy)] * 30)
        first = await host.client.dequeue("jobs", "t", 10, lease_ms=1_000, wait_ms=20_000)
        assert len(first) == 10
    async with running_host(meta_url, shard_urls) as host:
        second = await host.leased(20)
        assert await host.client.dequeue("jobs", "t", 100, wait_ms=1_500) == []
    assert len({item.id for item in first + second}) == len(first) + len(second) == 30
