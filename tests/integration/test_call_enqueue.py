"""enqueue over a socket: every field of an item, every limit and one beyond, quota and pause."""

from __future__ import annotations

import asyncio
import time
from collections import Counter

import pytest

from foqs.client.aio import AsyncClient
from foqs.client.queue_items import NewItem
from foqs.client.retry import RetryPolicy
from foqs.model import grants, limits
from foqs.model.calls import DeliveryPolicy, ItemState
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    PausedError,
    RateLimitedError,
    TooLargeError,
    UnknownNamespaceError,
)
from foqs.shard import mysql_server
from foqs.wire.codec import structs
from tests.support.running_host import shard_of
from tests.support.waiting import PATIENCE_MS, longer

pytestmark = pytest.mark.asyncio(loop_scope="module")

NOW_SLACK_MS = 500
"""Between this machine's clock and the shard's, as the host measured it."""


AT_THE_LIMIT_AND_BEYOND = [
    ({"payload": b"x" * 10_240}, {"payload": b"x" * 10_241}, TooLargeError),
    ({"metadata": b"m" * 512}, {"metadata": b"m" * 513}, TooLargeError),
    ({"topic": "t" * 255}, {"topic": "t" * 256}, InvalidArgumentError),
    ({"topic": "é" * 127}, {"topic": "é" * 128}, InvalidArgumentError),
    ({"topic": " "}, {"topic": "a\x7f"}, InvalidArgumentError),
    ({"lease_ms": 1_000}, {"lease_ms": 999}, InvalidArgumentError),
    ({"lease_ms": limits.LEASE_MS_MAX}, {"lease_ms": limits.LEASE_MS_MAX + 1}, InvalidArgumentError),
    ({"delay_ms": 0}, {"delay_ms": -1}, InvalidArgumentError),
    ({"delay_ms": limits.DELAY_MS_MAX}, {"delay_ms": limits.DELAY_MS_MAX + 1}, InvalidArgumentError),
    ({"ttl_ms": 60_000}, {"ttl_ms": 0}, InvalidArgumentError),
    ({"ttl_ms": limits.TTL_MS_MAX}, {"ttl_ms": limits.TTL_MS_MAX + 1}, InvalidArgumentError),
    ({"deliver_after_ms": -(1 << 62)}, {"deliver_after_ms": 1 << 61}, InvalidArgumentError),
    ({"deliver_after_ms": 1}, {"deliver_after_ms": 1 << 62}, InvalidArgumentError),
    ({"priority": (1 << 31) - 1}, {"ordering_key": "k" * 129}, InvalidArgumentError),
    ({"dedup_id": "d" * 255}, {"dedup_id": "d" * 256}, InvalidArgumentError),
    ({"dedup_id": "é" * 127}, {"dedup_id": "é" * 128}, InvalidArgumentError),
    ({"priority": -(1 << 31)}, {"ordering_key": "k" * 129}, InvalidArgumentError),
    ({"fairness_key": "k" * 64}, {"fairness_key": "k" * 65}, InvalidArgumentError),
    ({"fairness_key": "é" * 32}, {"fairness_key": "k", "ordering_key": "k"}, InvalidArgumentError),
]  # fmt: skip


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def test_every_field_of_an_item_arrives(host):
    before = now_ms()
    item_id = await host.client.enqueue(
        "jobs", "mail/é 😀", bytes(range(256)), priority=-7, ttl_ms=60_000, lease_ms=5_000, metadata=b"\x00'\xff"
    )
    stored = await host.admin.get_item("jobs", item_id)
    after = now_ms()
    assert (stored.id, stored.topic, stored.state) == (item_id, "mail/é 😀", ItemState.READY)
    assert (stored.payload, stored.metadata) == (bytes(range(256)), b"\x00'\xff")
    assert (stored.priority, stored.lease_ms, stored.failed_attempts) == (-7, 5_000, 0)
    assert stored.delivery is DeliveryPolicy.AT_LEAST_ONCE
    assert before - NOW_SLACK_MS <= stored.enqueued_at_ms <= after + NOW_SLACK_MS
    assert stored.deliver_after_ms == stored.enqueued_at_ms
    assert stored.expires_at_ms == stored.deliver_after_ms + 60_000
    (item,) = await host.client.dequeue("jobs", "mail/é 😀")
    assert (item.id, item.topic, item.priority, item.payload) == (item_id, "mail/é 😀", -7, bytes(range(256)))
    assert (item.metadata, item.attempt, item.enqueued_at_ms) == (b"\x00'\xff", 1, stored.enqueued_at_ms)
    assert (item.deliver_after_ms, item.receipt.startswith(item_id)) == (stored.deliver_after_ms, True)


async def test_what_is_left_out_takes_its_default(host):
    item_id = await host.client.enqueue("jobs", "t", b"")
    stored = await host.admin.get_item("jobs", item_id)
    assert (stored.priority, stored.payload, stored.metadata, stored.lease_ms) == (0, b"", b"", None)
    assert stored.expires_at_ms - stored.deliver_after_ms == limits.TTL_MS_DEFAULT
    assert stored.delivery is DeliveryPolicy.AT_LEAST_ONCE


async def test_one_bad_item_fails_alone_at_its_position(host):
    bad = {
        1: (NewItem("", b"x"), InvalidArgumentError),
        3: (NewItem("t", b"x" * (limits.PAYLOAD_BYTES_DEFAULT + 1)), TooLargeError),
        4: (NewItem("t", b"x", lease_ms=1), InvalidArgumentError),
        6: (NewItem("t", b"x", delay_ms=1, deliver_after_ms=now_ms() + 1), InvalidArgumentError),
    }
    news = [bad[n][0] if n in bad else NewItem("t", b"%d" % n) for n in range(8)]
    result = await host.client.enqueue_many("jobs", news, return_errors=True)
    assert {position: type(error) for position, error in result.errors.items()} == {
        position: kind for position, (_, kind) in bad.items()
    }
    assert [position for position, item_id in enumerate(result.ids) if item_id == ""] == sorted(bad)
    got = await host.client.dequeue("jobs", "t", 10)
    assert {item.id: item.payload for item in got} == {
        item_id: b"%d" % position for position, item_id in enumerate(result.ids) if item_id
    }
    assert host.items_stored() == 4


async def test_a_value_at_its_limit_is_taken_and_one_beyond_is_refused(host):
    fields = {"topic": "t", "payload": b"x"}
    for count, (accepted, refused, kind) in enumerate(AT_THE_LIMIT_AND_BEYOND, start=1):
        result = await host.client.enqueue_many(
            "jobs", [NewItem(**fields | accepted), NewItem(**fields | refused)], return_errors=True
        )
        assert {position: type(error) for position, error in result.errors.items()} == {1: kind}, refused
        stored = await host.admin.get_item("jobs", result.ids[0])
        assert (stored.topic, stored.payload) == ((fields | accepted)["topic"], (fields | accepted)["payload"])
        assert host.items_stored() == count


async def test_a_namespace_takes_payloads_of_a_mebibyte_once_it_is_told_to(host):
    await host.admin.update_namespace("jobs", payload_bytes_max=limits.PAYLOAD_BYTES_MAX)
    payload = bytes(range(256)) * (limits.MIB // 256)
    await host.client.enqueue("jobs", "large", payload)
    with pytest.raises(TooLargeError):
        await host.client.enqueue("jobs", "large", payload + b"x")
    (item,) = await host.client.dequeue("jobs", "large", 10)
    assert item.payload == payload


async def test_topics_differ_by_case_and_spaces(host):
    names = ["mail", "Mail", "mail ", " mail", "e\u0301", "\u00e9"]
    result = await host.client.enqueue_many("jobs", [NewItem(name, name.encode()) for name in names])
    assert not result.errors
    for name in names:
        (item,) = await host.client.dequeue("jobs", name, 10)
        assert (item.topic, item.payload) == (name, name.encode())


async def test_a_batch_at_the_limit_is_taken_and_one_beyond_is_refused_whole(host):
    request = _enqueue_request([NewItem("t", b"x")] * limits.BATCH_ITEMS_MAX)
    reply = await host.call("enqueue", request)
    assert len(set(reply.response.ids)) == limits.BATCH_ITEMS_MAX
    assert not reply.response.errors
    reply = await host.call("enqueue", _enqueue_request([NewItem("t", b"x")] * (limits.BATCH_ITEMS_MAX + 1)))
    assert isinstance(reply.error, TooLargeError)
    assert host.items_stored() == limits.BATCH_ITEMS_MAX


async def test_an_empty_batch_stores_nothing(host):
    reply = await host.call("enqueue", _enqueue_request([]))
    assert (reply.error, reply.response.ids, reply.response.errors) == (None, [], {})
    assert host.items_stored() == 0


async def test_bulk_and_interactive_calls_store_the_same(host):
    for bulk in (False, True):
        reply = await host.call("enqueue", _enqueue_request([NewItem("t", b"x")], bulk=bulk))
        assert len(reply.response.ids) == 1
    assert len(await host.client.dequeue("jobs", "t", 10)) == 2


async def test_ids_are_unique_over_shards_and_grow_on_each(host):
    batches = [[NewItem("t", b"x") for _ in range(50)] for _ in range(12)]
    ids = await host.enqueue_on_all_shards("jobs", batches)
    assert len(set(ids)) == 600
    keys = [int(item_id.split("-")[1], 16) for item_id in ids[:50]]
    assert keys == sorted(keys)
    assert {shard_of(item_id) for item_id in ids[:50]} == {shard_of(ids[0])}


async def test_a_backlog_spreads_over_all_shards(host):
    ids = []
    run_items = mysql_server.PLACEMENT_RUN_ITEMS * len(host.shard_urls) // limits.TRANSACTIONS_PER_SERVER_MAX
    for _ in range(2 * len(host.shard_urls)):
        ids += (await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * (run_items // 2))).ids
    counts = Counter(shard_of(item_id) for item_id in ids)
    assert counts == dict.fromkeys(host.shard_urls, run_items)


async def test_nothing_is_delivered_before_its_time(host):
    started = now_ms()
    await host.client.enqueue("jobs", "far", b"delay", delay_ms=60_000)
    await host.client.enqueue("jobs", "far", b"at", deliver_after_ms=started + 60_000)
    await host.client.enqueue("jobs", "t", b"delay", delay_ms=400)
    await host.client.enqueue("jobs", "t", b"at", deliver_after_ms=now_ms() + 1_000)
    stats = (await host.stats("jobs"))["far"]
    assert (stats.ready, stats.delayed) == (0, 2)
    for payload in (b"delay", b"at"):
        (item,) = await host.client.dequeue("jobs", "t", 1, wait_ms=20_000)
        assert item.payload == payload
        assert now_ms() >= item.deliver_after_ms - NOW_SLACK_MS // 10
    assert await host.client.dequeue("jobs", "far", 10, wait_ms=200) == []


async def test_a_delay_counts_from_the_enqueue(host):
    before = now_ms()
    item_id = await host.client.enqueue("jobs", "t", b"delay", delay_ms=60_000)
    after = now_ms()
    starts_ms = (await host.admin.get_item("jobs", item_id)).deliver_after_ms - 60_000
    assert before - NOW_SLACK_MS <= starts_ms <= after + NOW_SLACK_MS


async def test_a_deliver_after_in_the_past_means_now(host):
    before = now_ms()
    await host.client.enqueue("jobs", "t", b"x", deliver_after_ms=1)
    (item,) = await host.client.dequeue("jobs", "t")
    assert before - NOW_SLACK_MS <= item.deliver_after_ms <= now_ms() + NOW_SLACK_MS


async def test_the_ttl_counts_from_deliver_after(host):
    item_id = await host.client.enqueue("jobs", "t", b"x", delay_ms=1_000, ttl_ms=60_000)
    stored = await host.admin.get_item("jobs", item_id)
    assert stored.state is ItemState.DELAYED
    assert stored.deliver_after_ms == stored.enqueued_at_ms + 1_000
    assert stored.expires_at_ms == stored.deliver_after_ms + 60_000


async def test_an_unknown_namespace_is_refused_whole(host):
    with pytest.raises(UnknownNamespaceError):
        await host.client.enqueue("nobody", "t", b"x")
    assert host.items_stored() == 0


async def test_a_paused_namespace_refuses_enqueues_and_still_serves(host):
    await host.client.enqueue("jobs", "t", b"before")
    await host.admin.update_namespace("jobs", enqueue_paused=True)
    with pytest.raises(PausedError):
        await host.client.enqueue("jobs", "t", b"while")
    (item,) = await host.client.dequeue("jobs", "t", 10)
    assert item.payload == b"before"
    assert await host.client.ack("jobs", [item]) == {}
    await host.admin.update_namespace("jobs", enqueue_paused=False)
    await host.client.enqueue("jobs", "t", b"after")
    (item,) = await host.client.dequeue("jobs", "t", 10)
    assert item.payload == b"after"


async def test_over_its_quota_a_namespace_is_told_when_there_is_room_and_others_feel_nothing(host, monkeypatch):
    for window_ms in longer(1_500):
        monkeypatch.setattr(grants, "QUOTA_WINDOW_MS", window_ms)
        if await is_over_its_quota_and_waits(host, f"small-{window_ms}", window_ms):
            return
    pytest.fail("the host had room again before it was asked again")


async def is_over_its_quota_and_waits(host, name: str, window_ms: int) -> bool:
    """False if the machine was so slow that there was room again meanwhile."""
    await host.admin.create_namespace(name, enqueues_per_minute_max=10)
    assert not (await host.client.enqueue_many(name, [NewItem("t", b"x")] * 8)).errors
    (refused,) = await asyncio.gather(host.client.enqueue_many(name, [NewItem("t", b"x")] * 3), return_exceptions=True)
    if not isinstance(refused, RateLimitedError):
        return False
    assert 0 < refused.retry_after_ms <= window_ms + grants.VALID_MS
    assert not (await host.client.enqueue_many(name, [NewItem("t", b"x")] * 2)).errors
    assert not (await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 100)).errors
    pauses = []
    patient = RetryPolicy(deadline_ms=PATIENCE_MS, backoff_ms=0, backoff_ms_max=0)
    async with AsyncClient(
        host.address, timeout_ms=PATIENCE_MS, retry=patient, random=lambda: pauses.append(1) or 0.0
    ) as client:
        pauses.clear()  # The choice of the first address draws too.
        assert not (await client.enqueue_many(name, [NewItem("t", b"x")] * 3)).errors
    assert len(pauses) <= 1, "waiting as long as told is enough"
    assert sum(stats.ready for stats in (await host.stats(name)).values()) == 13
    return len(pauses) == 1


async def test_a_batch_over_the_quota_stores_nothing_and_bad_items_do_not_count(host):
    await host.admin.create_namespace("small", enqueues_per_minute_max=3)
    four = [structs.NewItem("t", b"x")] * 4
    refused = (await host.call("enqueue", structs.EnqueueRequest(namespace_name="small", items=four))).error
    assert isinstance(refused, TooLargeError)
    assert "calls of 3 items at most" in refused.message
    assert host.items_stored() == 0
    await host.client.enqueue("small", "t", b"x")
    with pytest.raises(RateLimitedError) as limited:
        await host.client.enqueue_many("small", [NewItem("t", b"x")] * 3)
    assert limited.value.retry_after_ms > 0
    assert host.items_stored() == 1
    await host.admin.update_namespace("small", enqueues_per_minute_max=4)
    result = await host.client.enqueue_many(
        "small", [NewItem("t", b"x"), NewItem("", b"x"), NewItem("t", b"x")], return_errors=True
    )
    assert list(result.errors) == [1]
    await host.client.enqueue("small", "t", b"x")
    with pytest.raises(FoqsError, match="over its limit of 4"):
        await host.client.enqueue("small", "t", b"x")


async def test_a_client_cuts_its_batches_to_what_a_namespace_takes_in_a_minute(host):
    await host.admin.create_namespace("small", enqueues_per_minute_max=3)
    result = await host.client.enqueue_many("small", [NewItem("t", b"x")] * 5, return_errors=True)
    assert [bool(item_id) for item_id in result.ids] == [True] * 3 + [False] * 2
    assert {position: type(error) for position, error in result.errors.items()} == dict.fromkeys(
        (3, 4), RateLimitedError
    )
    await host.admin.create_namespace("short", batch_items_max=2)
    result = await host.client.enqueue_many("short", [NewItem("t", b"x")] * 5, return_errors=True)
    assert (all(result.ids), result.errors) == (True, {})
    ids = await asyncio.gather(*[host.client.enqueue("short", "t", b"x") for _ in range(7)])
    assert all(ids)


async def test_a_stored_item_keeps_its_delivery_policy(host):
    for policy in DeliveryPolicy:
        item_id = await host.client.enqueue("jobs", "t", b"x", delivery=policy)
        assert (await host.admin.get_item("jobs", item_id)).delivery is policy


def _enqueue_request(items, *, bulk=False):
    return structs.EnqueueRequest(namespace_name="jobs", items=items, bulk=bulk)
