"""Rates and history over several real hosts: one sum at each host, hosts that leave, and event logs of all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from unittest.mock import patch

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.metrics import rates as host_rates
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError, UnavailableError
from foqs.model.item import Outcome
from foqs.model.topic_rates import TopicRates
from tests.support.cluster import cluster, shards_of
from tests.support.event_log import MadeLog
from tests.support.running_host import RunningHost
from tests.support.waiting import eventually, until

pytestmark = [pytest.mark.database, pytest.mark.deep]
BASE_MS = 1_764_000_000_000 - 1_764_000_000_000 % 3_600_000
ROUND_MS = 100


@pytest.fixture(autouse=True)
def _short_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rates, "ROUND_MS", ROUND_MS)


async def rates_of(host: RunningHost, topic: str = "t") -> TopicRates:
    (row,) = (await host.admin.get_rates("jobs", topic)).topics
    return row


async def until_rates(host: RunningHost, holds: Callable[[TopicRates], bool]) -> TopicRates:
    return await eventually(lambda: rates_of(host), holds)


async def test_each_host_shows_the_sum_of_all(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        for host in hosts:  # An item is stored by the host that is asked.
            for _ in range(10):
                await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 5)
        own = [host.host._rates for host in hosts]
        number = hosts[0].host._namespaces.get("jobs").number
        await until_rates(hosts[0], lambda row: row.ready == 100)
        shares = [(one.of_topic(number, "t") or TopicRates("t")).enqueued_1min for one in own]
        assert min(shares) > 0
        for host in hosts:
            row = await rates_of(host)
            assert row.ready == 100
            assert row.enqueued_1min == pytest.approx(sum(shares), rel=0.1)
            (whole,) = (await host.admin.namespace_rates("jobs")).topics
            assert whole.enqueued_1min == pytest.approx(row.enqueued_1min, rel=0.1)
            (stats,) = [stats async for stats in host.client.topics("jobs", with_rates=True)]
            assert stats.rates is not None
            assert stats.rates.enqueued_1min == pytest.approx(row.enqueued_1min, rel=0.1)
            (listed,) = (await host.admin.get_rates("jobs", prefix="t")).topics
            assert listed.enqueued_1min == pytest.approx(row.enqueued_1min, rel=0.1)


async def test_no_rate_jumps_when_a_shard_moves(meta_url: str, shard_urls: dict[int, str]) -> None:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        first, second = hosts
        for host in hosts:
            for _ in range(20):
                await host.client.enqueue_many("jobs", [NewItem("t", b"x")] * 10)
        row = await until_rates(first, lambda row: row.ready == 400)
        highest = row.enqueued_1min
        await second.host.drain()
        await until(lambda: len(shards_of(first)) == len(shard_urls))
        row = await until_rates(first, lambda row: row.ready == 400)
        assert row.enqueued_1min <= highest * 1.01, "the items that came with the shards were enqueued before"
        assert row.delivered_1min == row.failed_1min == 0


async def test_a_host_that_does_not_respond_is_named_or_fails_the_call(
    meta_url: str, shard_urls: dict[int, str]
) -> None:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        first, _ = hosts
        await first.client.enqueue("jobs", "t", b"x")
        peers = first.host._routing._peers
        reach = peers.get
        with (
            patch.object(peers, "get", lambda host_id, address: reach(f"{host_id}?", "127.0.0.1:1")),
            patch.object(limits, "ROUTE_WAIT_MS_MAX", 50),
        ):
            for call in (first.admin.get_rates("jobs"), first.admin.namespace_rates("jobs")):
                with pytest.raises(UnavailableError) as refused:
                    await call
                assert refused.value.nothing_done
            page = await first.admin.get_rates("jobs", "t", partial=True)
        assert page.missing
        assert "host-1" in " ".join(page.missing)
        assert [row.topic for row in page.topics] == ["t"]


# ---- history ----


def made_log(directory: Path, host_name: str, count: int) -> Path:
    log = MadeLog(directory, host_name=host_name, now_s=BASE_MS / 1000)
    for minute in range(3):
        at_ms = BASE_MS + minute * 60_000
        log.enqueue(log.topic("mail"), [0] * count, at_ms)
        log.end(log.topic("mail"), Outcome.ACKED, ready_ms=at_ms, wait_ms=15, processing_ms=5, items_count=count)
        log.end(log.topic("pay"), Outcome.DEAD, ready_ms=at_ms, wait_ms=15, processing_ms=5)
        log.passes(60)
    log.close()
    log.log._lock.release()
    return directory


@pytest.fixture
def logs(tmp_path: Path) -> list[Path]:
    return [made_log(tmp_path / f"log-{number}", f"host-{number}", 10 + number) for number in range(2)]


async def created(host: RunningHost, at_ms: int) -> None:
    """Create the namespace of the logs as if it was this time."""
    with patch.object(host.host._namespace_calls, "_wall_ms", lambda: at_ms):
        await host.admin.create_namespace("ns-1")


async def test_the_history_has_the_event_logs_of_all_hosts(
    meta_url: str, shard_urls: dict[int, str], logs: list[Path]
) -> None:
    settings = [{"event_log_dir": str(log), "event_log_days": 3_650} for log in logs]
    async with cluster(meta_url, shard_urls, 2, settings) as hosts:
        await created(hosts[0], BASE_MS - 86_400_000)
        time = {"since_ms": BASE_MS, "until_ms": BASE_MS + 3_600_000}
        for host in hosts:
            found = await host.admin.get_history("ns-1", ["mail", "pay"], **time)
            assert found.step_minutes == 1
            assert found.complete_from_ms == BASE_MS
            assert [(row.topic, row.at_ms, row.enqueued, row.acked, row.dead) for row in found.rows] == [
                (topic, BASE_MS + minute * 60_000, *counts)
                for topic, counts in (("mail", (21, 21, 0)), ("pay", (0, 0, 2)))
                for minute in range(3)
            ]
            assert sum(found.rows[0].wait_buckets) == 21
            (whole,) = (await host.admin.get_history("ns-1", step_minutes=60, **time)).rows
            assert (whole.topic, whole.enqueued, whole.acked, whole.dead) == ("", 63, 63, 6)
            assert (await host.admin.get_history("jobs", **time)).rows == [], "it is of another namespace"


async def test_a_namespace_that_is_made_again_has_no_history_of_the_former_one(
    meta_url: str, shard_urls: dict[int, str], logs: list[Path]
) -> None:
    settings = [{"event_log_dir": str(log), "event_log_days": 3_650} for log in logs]
    async with cluster(meta_url, shard_urls, 2, settings) as hosts:
        await created(hosts[0], BASE_MS)
        await hosts[0].admin.delete_namespace("ns-1")
        await created(hosts[0], BASE_MS + 2 * 60_000 + 59_999)
        number = hosts[0].host._namespaces.number_of("ns-1")

        def knows(host: RunningHost) -> bool:
            return host.host._namespaces.number_of("ns-1") == number

        time = {"since_ms": BASE_MS, "until_ms": BASE_MS + 3_600_000}
        for host in hosts:
            await until(partial(knows, host))
            found = await host.admin.get_history("ns-1", ["mail"], **time)
            assert [(row.at_ms, row.enqueued) for row in found.rows] == [(BASE_MS + 2 * 60_000, 21)]
            assert found.complete_from_ms == BASE_MS, "before it there was no such namespace"


async def test_a_host_without_an_event_log_is_an_error_that_names_the_setting(
    meta_url: str, shard_urls: dict[int, str], logs: list[Path]
) -> None:
    async with cluster(meta_url, shard_urls, 2, [{"event_log_dir": str(logs[0])}]) as hosts:
        for host in hosts:
            for partial in (False, True):
                with pytest.raises(InvalidArgumentError, match="set event_log_dir on each host"):
                    await host.admin.get_history("jobs", partial=partial)
