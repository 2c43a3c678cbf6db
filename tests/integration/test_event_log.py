"""The event log of a real host: how lives end is in its files, and the counts agree."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from foqs.client.queue_items import Nack, NewItem
from foqs.model.calls import DeliveryPolicy
from foqs.model.errors import RateLimitedError
from tests.support import event_log
from tests.support.running_host import running_host
from tests.support.waiting import until

pytestmark = pytest.mark.database


@pytest.fixture
def directory(tmp_path):
    return tmp_path / "events"


async def enqueue_and_lease(host, count: int, *, lease_ms: int = 600_000, **item):
    news = [NewItem("t", b"x", priority=number % 3, **item) for number in range(count)]
    assert not (await host.client.enqueue_many("jobs", news)).errors
    return await host.leased(count, lease_ms=lease_ms)


async def test_the_end_of_an_acked_item_is_in_a_closed_file(meta_url, shard_urls, directory):
    before_ms = time.time_ns() // 1_000_000
    async with running_host(meta_url, shard_urls, event_log_dir=str(directory)) as host:
        await host.admin.update_namespace("jobs", events_per_mille=1_000)
        (item,) = await enqueue_and_lease(host, 1)
        assert await host.client.ack("jobs", [item.receipt]) == {}
    after_ms = time.time_ns() // 1_000_000
    (life,) = event_log.lives(directory)
    assert {name: life[name] for name in ("id", "namespace", "topic", "outcome", "priority", "attempts")} == {
        "id": item.id, "namespace": "jobs", "topic": "t", "outcome": "acked", "priority": 0, "attempts": 1,
    }  # fmt: skip
    assert life["enqueued_at_ms"] == item.enqueued_at_ms
    assert life["ready_at_ms"] == item.deliver_after_ms
    times = [life[f"{what}_ms"] for what in ("ready_at", "first_delivered_at", "last_delivered_at", "ended_at")]
    assert [before_ms - 1_000, *times, after_ms + 1_000] == sorted([before_ms - 1_000, *times, after_ms + 1_000])
    assert event_log.open_files(directory) == []


async def test_each_way_to_end_has_its_outcome_and_the_counts_agree(meta_url, shard_urls, directory):
    async with running_host(meta_url, shard_urls, event_log_dir=str(directory)) as host:
        await host.admin.update_namespace("jobs", events_per_mille=1_000, attempts_max=3)
        client, expected = host.client, {}
        # acked at the second attempt, after a nack and a release
        (item,) = await enqueue_and_lease(host, 1)
        assert await client.nack("jobs", [Nack(item.receipt)]) == {}
        (again,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        assert await client.nack("jobs", [Nack(again.receipt, release=True)]) == {}
        (last,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        assert await client.ack("jobs", [last.receipt]) == {}
        expected[item.id] = ("acked", 3)
        # acked by its id, without a lease
        (waiting,) = (await client.enqueue_many("jobs", [NewItem("u", b"x")])).ids
        assert await client.ack("jobs", [waiting]) == {}
        expected[waiting] = ("acked", 0)
        # dead by word and by attempts, and deleted as a dead letter, which is no second end
        dead, failing = await enqueue_and_lease(host, 2)
        assert await client.nack("jobs", [Nack(dead.receipt, dead_letter=True)]) == {}
        expected[dead.id] = ("dead", 1)
        for attempt in range(3):
            assert await client.nack("jobs", [Nack(failing.receipt)]) == {}
            if attempt < 2:
                (failing,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        expected[failing.id] = ("dead", 3)
        assert await host.admin.delete_items("jobs", [dead.id]) == {}
        # deleted: delayed, ready, leased
        delayed, ready = (
            await client.enqueue_many("jobs", [NewItem("u", b"x", delay_ms=60_000), NewItem("v", b"x")])
        ).ids
        (leased,) = await enqueue_and_lease(host, 1)
        assert await host.admin.delete_items("jobs", [delayed, ready, leased.id]) == {}
        expected |= {delayed: ("deleted", 0), ready: ("deleted", 0), leased.id: ("deleted", 1)}
        # expired
        (short,) = (await client.enqueue_many("jobs", [NewItem("w", b"x", ttl_ms=1)])).ids
        expected[short] = ("expired", 0)
        # at most once: nacked, and acked
        once, done = await enqueue_and_lease(host, 2, delivery=DeliveryPolicy.AT_MOST_ONCE)
        assert await client.nack("jobs", [Nack(once.receipt)]) == {}
        assert await client.ack("jobs", [done.receipt]) == {}
        expected |= {once.id: ("at_most_once", 1), done.id: ("acked", 1)}
        await until(lambda: host.items_stored() == 1)  # the dead letter that stays
    lives = event_log.lives(directory)
    assert {life["id"]: (life["outcome"], life["attempts"]) for life in lives} == expected
    assert len(lives) == len(expected), "each end is told once"
    by_id = {life["id"]: life for life in lives}
    assert by_id[item.id]["ready_at_ms"] == item.deliver_after_ms
    assert by_id[item.id]["first_delivered_at_ms"] <= by_id[item.id]["last_delivered_at_ms"]
    assert by_id[delayed]["first_delivered_at_ms"] is by_id[delayed]["last_delivered_at_ms"] is None
    counts: Counter[str] = Counter()
    for (_, _, _, outcome), count in event_log.counts(directory).items():
        counts[outcome] += count
    ended = Counter(outcome for outcome, _ in expected.values())
    assert counts == ended + Counter({"nacked": 3, "released": 1, "enqueued": len(expected)})
    redelivered = sum(row["redeliveries"] for row in event_log.rollups(directory))
    assert redelivered == 2 + 2


async def test_a_lease_that_ends_counts_as_a_failure_and_refused_items_by_namespace(meta_url, shard_urls, directory):
    async with running_host(meta_url, shard_urls, event_log_dir=str(directory)) as host:
        await host.admin.update_namespace("jobs", enqueues_per_minute_max=3)
        await enqueue_and_lease(host, 1, lease_ms=1_000)
        await until(lambda: host.host.metrics.registry.get_sample_value(
            "foqs_item_events_total", {"namespace": "jobs", "event": "lease_ended"}))  # fmt: skip
        with pytest.raises(RateLimitedError):
            await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 3)
    assert event_log.counts(directory) == {
        ("jobs", "t", 0, "enqueued"): 1,
        ("jobs", "t", 0, "lease_ended"): 1,
        ("jobs", None, None, "rate_limited"): 3,
    }
    assert event_log.lives(directory) == [], "no namespace is sampled unless it says so"


async def test_a_sample_has_whole_lives_and_the_rollups_have_all_of_them(meta_url, shard_urls, directory):
    async with running_host(meta_url, shard_urls, event_log_dir=str(directory)) as host:
        await host.admin.update_namespace("jobs", events_per_mille=250)
        items = await enqueue_and_lease(host, 1_000)
        assert await host.client.nack("jobs", [Nack(item.receipt) for item in items]) == {}
        again = await host.leased(1_000)
        assert await host.client.ack("jobs", [item.receipt for item in again]) == {}
    lives = event_log.lives(directory)
    assert 150 < len(lives) < 350
    assert all(life["attempts"] == 2 and life["first_delivered_at_ms"] for life in lives)
    counts = event_log.counts(directory)
    assert sum(count for (_, _, _, outcome), count in counts.items() if outcome == "acked") == 1_000
    assert counts["jobs", "t", 0, "nacked"] == 334
    row = next(row for row in event_log.rollups(directory) if row["outcome"] == "nacked" and row["priority"] == 0)
    assert sum(row["wait"]) == sum(row["processing"]) == 334
    assert row["redeliveries"] == 0


async def test_without_a_directory_there_is_no_event_log(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.admin.update_namespace("jobs", events_per_mille=1_000)
        (item,) = await enqueue_and_lease(host, 1)
        assert await host.client.ack("jobs", [item.receipt]) == {}
        assert host.host.metrics.registry.get_sample_value("foqs_event_log_failing") is None
