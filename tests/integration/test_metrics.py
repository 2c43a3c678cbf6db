"""What operators count: what became of the items of each namespace, and how far behind a sweep is."""

from __future__ import annotations

import pytest

from foqs.client.items import NewItem
from foqs.core import limits
from foqs.core.errors import RateLimitedError
from foqs.core.item import ItemEvent
from tests.support.running_host import running_host

pytestmark = pytest.mark.database


@pytest.fixture
async def host(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as running:
        yield running


def counted(host, namespace: str = "jobs") -> dict[str, float]:
    """The events of the namespace that happened at all."""
    registry = host.host.metrics.registry
    labels = [{"namespace": namespace, "event": event.name.lower()} for event in ItemEvent]
    values = {each["event"]: registry.get_sample_value("foqs_namespace_items_total", each) for each in labels}
    return {event: value for event, value in values.items() if value}


async def test_what_becomes_of_items_is_counted_by_namespace(host):
    await host.admin.create_namespace("others", attempts_max=1)
    await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 5)
    await host.client.enqueue_many("others", [NewItem("t", b"x")] * 2)
    items = await host.client.dequeue("jobs", "t", 5, wait_ms=2_000)
    assert await host.client.extend("jobs", [items[0]], 60_000) == {}
    assert await host.client.ack("jobs", [*items[:3], items[0].receipt]) != {}
    assert await host.client.nack("jobs", [items[3]]) == {}
    assert counted(host) == {"enqueued": 5, "delivered": 5, "extended": 1, "acked": 3, "nacked": 1}
    assert counted(host, "others") == {"enqueued": 2}


async def test_leases_that_end_dead_letters_and_ended_ttls_are_counted(host):
    await host.admin.create_namespace("others", attempts_max=1)
    await host.client.enqueue_many("others", [NewItem("t", b"x")] * 2)
    items = await host.client.dequeue("others", "t", 2, lease_ms=1_000, wait_ms=2_000)
    assert await host.client.nack("others", [items[0]]) == {}
    while counted(host, "others").get("dead_lettered", 0) < 2:
        await host.client.dequeue("others", "t", 1, wait_ms=100)
    await host.client.enqueue_many("others", [NewItem("u", b"x", ttl_ms=1)] * 3)
    while counted(host, "others").get("expired", 0) < 3:
        await host.client.dequeue("others", "u", 1, wait_ms=100)
    assert counted(host, "others") == {
        "enqueued": 5, "delivered": 2, "nacked": 1, "lease_ended": 1, "dead_lettered": 2, "expired": 3
    }  # fmt: skip


async def test_what_the_quota_refuses_is_counted_for_its_namespace(host):
    await host.admin.create_namespace("small", enqueues_per_minute_max=3)
    with pytest.raises(RateLimitedError):
        await host.client.enqueue_many("small", [NewItem("t", b"x")] * 4)
    assert counted(host, "small") == {"rate_limited": 4}


async def test_a_sweep_that_keeps_up_lags_by_less_than_a_second(host):
    await host.client.enqueue_many("jobs", [NewItem("t", b"x", delay_ms=50)] * 10)
    assert len(await host.client.dequeue("jobs", "t", 10, wait_ms=2_000)) > 0
    registry = host.host.metrics.registry
    lags = [registry.get_sample_value("foqs_delay_sweep_lag_ms", {"shard": str(shard)}) for shard in host.shard_urls]
    assert all(0 <= lag < 1_000 for lag in lags)


async def test_slow_reads_show_in_the_budget_of_their_shard_alone(host):
    registry = host.host.metrics.registry
    slow, *others = host.shard_urls
    host.host._shards.runners[slow].shard.book.read_budget.read(limits.READ_ROWS_FIRST, 4 * limits.READ_US_TARGET)
    assert registry.get_sample_value("foqs_read_budget_rows", {"shard": str(slow)}) == limits.READ_ROWS_FIRST // 4
    for shard in others:
        rows = registry.get_sample_value("foqs_read_budget_rows", {"shard": str(shard)})
        assert rows == limits.READ_ROWS_FIRST
