"""Namespaces created and deleted beside enqueues, other hosts, take-overs and restores of the meta database."""

from __future__ import annotations

import asyncio
from contextlib import closing
from unittest.mock import patch

import pytest

from foqs.client.queue_items import NewItem
from foqs.host.metrics.scrape import Metrics
from foqs.model import limits
from foqs.model.errors import (
    FoqsError,
    InvalidArgumentError,
    NotFoundError,
    PausedError,
    UnavailableError,
    UnknownNamespaceError,
)
from foqs.model.namespace import NamespaceSettings
from foqs.model.shard_place import FOUND_NOTHING, EpochAsk
from foqs.shard.port import OwnershipLostError
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.session import connect
from foqs.storage.shard.shard_store import ShardStore
from tests.support.running_host import RunningHost, running_host
from tests.support.waiting import until

pytestmark = [pytest.mark.deep]

TABLES = ("namespace", "namespace_number", "census", "census_answer", "shard", "host", "cluster_id")


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 50)


@pytest.fixture
def halves(shard_urls):
    return [{n: url for n, url in shard_urls.items() if n % 2 == half} for half in (0, 1)]


def dump(meta_url: str) -> dict[str, tuple[tuple[object, ...], ...]]:
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        rows = {}
        for table in TABLES:
            cursor.execute(f"SELECT * FROM {table}")
            rows[table] = cursor.fetchall()
        return rows


def restore(meta_url: str, rows: dict[str, tuple[tuple[object, ...], ...]]) -> None:
    """In one transaction: a host sees the state before it or the one after."""
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        for table, content in rows.items():
            cursor.execute(f"DELETE FROM {table}")
            if content:
                cursor.executemany(f"INSERT INTO {table} VALUES ({', '.join(['%s'] * len(content[0]))})", content)
        session.commit()


def number_of(host: RunningHost, name: str) -> int:
    return host.host._namespaces.get(name).number


def unknown(host: RunningHost) -> dict[int, str]:
    return host.host._censuses.unknown


async def consume(host: RunningHost, name: str) -> list[bytes]:
    items = await host.client.dequeue(name, "t", count=10, wait_ms=20_000)
    await host.client.ack(name, [item.receipt for item in items])
    return [item.payload for item in items]


async def test_items_on_the_shards_of_another_host_keep_a_namespace(meta_url, halves):
    async with (
        running_host(meta_url, halves[0], name="one") as one,
        running_host(meta_url, halves[1], name="two", tier="two") as two,
    ):
        await one.admin.create_namespace("n", tier="two")
        await until(lambda: "n" in two.host._namespaces.view.by_name)
        await two.client.enqueue("n", "t", b"x")
        with pytest.raises(InvalidArgumentError, match=r"'n' still holds (at least )?1 items"):
            await one.admin.delete_namespace("n")
        assert not (await one.admin.get_namespace("n")).closing
        assert await consume(two, "n") == [b"x"]
        await one.admin.delete_namespace("n")
        await until(lambda: "n" not in two.host._namespaces.view.by_name)
        with pytest.raises(UnknownNamespaceError):
            await two.client.enqueue("n", "t", b"x")


async def test_a_shard_that_nobody_serves_keeps_namespaces_from_being_deleted_and_created(
    meta_url, halves, monkeypatch
):
    async with running_host(meta_url, halves[0], name="one") as one:
        async with running_host(meta_url, halves[1], name="two", tier="two") as two:
            await until(lambda: len(two.host._shards.writers) == len(halves[1]))
            await two.admin.update_namespace("jobs", tier="two")
            await two.client.enqueue("jobs", "t", b"x")
            await two.admin.update_namespace("jobs", tier="")
            await until(lambda: one.host._namespaces.get("jobs").settings.tier == "")
        monkeypatch.setattr(limits, "CENSUS_MS_MAX", 300)
        with pytest.raises(UnavailableError, match=r"shard (0, )?1, (2, )?3 has not answered.*'jobs' was kept"):
            await one.admin.delete_namespace("jobs")
        with pytest.raises(UnavailableError, match=r"shard (0, )?1, (2, )?3 has not answered.*'n' was not created"):
            await one.admin.create_namespace("n")
        assert not (await one.admin.get_namespace("jobs")).closing
        await one.client.enqueue("jobs", "t", b"y")


async def test_nothing_that_was_acknowledged_beside_a_deletion_is_lost(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        for turn in range(10):
            name = f"n{turn}"
            await host.admin.create_namespace(name)
            acknowledged: list[str] = []

            async def produce(name: str = name, acknowledged: list[str] = acknowledged) -> None:
                try:
                    while True:
                        acknowledged.append(await host.client.enqueue(name, "t", b"x"))
                except (PausedError, UnknownNamespaceError):
                    return

            producers = [asyncio.create_task(produce()) for _ in range(8)]
            if turn % 2:
                await until(lambda acknowledged=acknowledged: len(acknowledged) >= 8)
            try:
                await host.admin.delete_namespace(name)
            except InvalidArgumentError:
                found = await host.stats(name)
                assert acknowledged
                assert found["t"].ready >= len(acknowledged)
            else:
                assert not acknowledged
            for producer in producers:
                producer.cancel()
            await asyncio.gather(*producers, return_exceptions=True)


async def test_a_closing_namespace_lets_nothing_in_and_everything_out(meta_url, shard_urls):
    async with running_host(meta_url, shard_urls) as host:
        await host.client.enqueue("jobs", "t", b"x")
        for writer in host.host._shards.writers.values():
            writer.counted.clear()  # As after a take-over: nobody knows yet what is there.
        deleting = asyncio.create_task(host.admin.delete_namespace("jobs"))
        await until(lambda: host.host._namespaces.get("jobs").closing)
        assert (await host.admin.get_namespace("jobs")).closing
        with pytest.raises(PausedError, match="is being deleted: nothing was enqueued"):
            await host.client.enqueue("jobs", "t", b"y")
        assert not deleting.done()
        assert await consume(host, "jobs") == [b"x"]
        for writer in host.host._shards.writers.values():
            writer.counted.set()
        await deleting
        with pytest.raises(UnknownNamespaceError):
            await host.client.enqueue("jobs", "t", b"y")


async def test_a_deletion_whose_host_died_ends_by_itself_and_a_second_one_is_refused_until_then(
    meta_url, shard_urls, monkeypatch
):
    monkeypatch.setattr(limits, "CENSUS_EXPIRY_MS", 400)
    async with running_host(meta_url, shard_urls) as host:
        await host.host._namespaces.calls.run(lambda meta: meta.namespaces.begin_deletion("jobs"))
        await until(lambda: host.host._namespaces.get("jobs").closing)
        await until(lambda: not host.host._namespaces.get("jobs").closing)
        await host.client.enqueue("jobs", "t", b"x")
        assert await consume(host, "jobs") == [b"x"]
        await host.host._namespaces.calls.run(lambda meta: meta.namespaces.begin_deletion("jobs"))
        with pytest.raises(UnavailableError, match="being deleted by another call"):
            await host.admin.delete_namespace("jobs")
        await until(lambda: host.host._namespaces.get("jobs").closing)
        await until(lambda: not host.host._namespaces.get("jobs").closing)
        await host.admin.delete_namespace("jobs")


async def test_a_shard_that_a_restored_meta_database_has_lost_is_asked_though_nobody_owns_it(meta_url, shard_urls):
    """All hosts share the configuration: a standby knows of the shard."""
    async with running_host(meta_url, shard_urls) as host:
        await host.client.enqueue("jobs", "t", b"x")
    with closing(connect(meta_url)) as session, session.cursor() as cursor:
        cursor.execute("DELETE FROM shard")
        session.commit()
    with patch.object(limits, "CENSUS_MS_MAX", 300), patch.object(ShardStore, "open", _never):
        async with running_host(meta_url, shard_urls) as standby:
            with pytest.raises(UnavailableError, match="the owner of shard 0, 1, 2, 3 has not answered"):
                await standby.admin.delete_namespace("jobs")


def _never(self, tenure=None):
    raise OwnershipLostError("it has another owner")


async def test_who_takes_a_shard_over_knows_what_was_closed_before(meta_url, shard_urls, monkeypatch):
    monkeypatch.setattr(limits, "HEARTBEAT_MS", 60_000)
    monkeypatch.setattr(limits, "HOST_DEAD_MS", 600_000)
    async with running_host(meta_url, shard_urls) as host:
        await host.host._namespaces.calls.run(lambda meta: meta.namespaces.begin_deletion("jobs"))
        assert not host.host._namespaces.get("jobs").closing
        await asyncio.to_thread(host.host._factory.take_epoch, 0, EpochAsk(FOUND_NOTHING, 0))
        with pytest.raises(PausedError):
            await host.client.enqueue("jobs", "t", b"x")


async def test_a_meta_database_that_can_lose_what_it_acknowledged_is_not_relied_on(meta_url, shard_urls, monkeypatch):
    problems: list[str] = []
    monkeypatch.setattr(MetaStore, "check_durable", lambda self: list(problems))
    monkeypatch.setattr(limits, "DURABILITY_CHECK_MS", 0)
    async with running_host(meta_url, shard_urls) as host:
        problems.append("sync_binlog is 0")
        await until(lambda: host.host._namespaces._problems)
        for call in (
            host.admin.create_namespace("n"),
            host.admin.update_namespace("jobs", attempts_max=3),
            host.admin.delete_namespace("jobs"),
            asyncio.to_thread(host.host._factory.take_epoch, 0, EpochAsk(FOUND_NOTHING, 0)),
        ):
            with pytest.raises(UnavailableError, match="can lose what it acknowledged: sync_binlog is 0"):
                await call
        await host.client.enqueue("jobs", "t", b"x")
        problems.clear()
        await until(lambda: not host.host._namespaces._problems)
        await host.admin.create_namespace("n")
    problems.append("sync_binlog is 0")
    with pytest.raises(UnavailableError, match="sync_binlog is 0"):
        async with running_host(meta_url, shard_urls):
            pass
    async with running_host(meta_url, shard_urls, allow_undurable_servers=True) as host:
        await host.admin.create_namespace("m")


@pytest.mark.parametrize("restarted", [False, True])
async def test_after_a_restore_of_the_meta_database_nobody_gets_the_items_of_another(meta_url, shard_urls, restarted):
    async with running_host(meta_url, shard_urls) as host:
        backup = dump(meta_url)
        await host.admin.create_namespace("lost", attempts_max=3)
        lost = number_of(host, "lost")
        await host.enqueue_on_all_shards("lost", [[NewItem("t", b"secret")] for _ in range(16)])
        if not restarted:
            restore(meta_url, backup)
            await until(lambda: "lost" not in host.host._namespaces.view.by_name)
            await check_lost_and_recovered(host, lost)
    if restarted:
        restore(meta_url, backup)
        async with running_host(meta_url, shard_urls) as host:
            await check_lost_and_recovered(host, lost)


async def check_lost_and_recovered(host: RunningHost, lost: int) -> None:
    await until(lambda: unknown(host) == {lost: "lost"})
    assert gauge(host.host.metrics) == 1
    # A new tenant of the same name, and one of another name, get numbers of their own and see nothing.
    for name in ("other", "lost"):
        await host.admin.create_namespace(name)
        assert number_of(host, name) > lost
        assert await host.stats(name) == {}
        assert await host.client.dequeue(name, "t", wait_ms=0) == []
    with pytest.raises(FoqsError, match="exists already"):
        await host.admin.recover_namespace(lost)
    with pytest.raises(NotFoundError, match="lost namespace with number 77: ask the host alone that has it in its log"):
        await host.admin.recover_namespace(77)
    with pytest.raises(InvalidArgumentError, match=r"key_spread 3 is not a power of two: use 1, 2, 4, .* or 64"):
        await host.admin.recover_namespace(lost, "found", key_spread=3)
    recovered = await host.admin.recover_namespace(lost, "found", key_spread=4)
    assert recovered.name == "found"
    assert recovered.settings == NamespaceSettings(key_spread=4)
    assert number_of(host, "found") == lost
    assert unknown(host) == {}
    assert gauge(host.host.metrics) == 0
    found: list[bytes] = []
    while len(found) < 16:
        found += [one.payload for one in await host.client.dequeue("found", "t", count=20, wait_ms=500)]
    assert found == [b"secret"] * 16
    assert await host.client.dequeue("found", "t", count=20) == []
    await host.client.enqueue("found", "t", b"more")


def gauge(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("foqs_unknown_namespaces")


async def test_a_number_that_a_shard_knows_by_another_name_serves_neither(meta_url, halves):
    empty = dump(meta_url)
    async with (
        running_host(meta_url, halves[0], name="one", namespace=None),
        running_host(meta_url, halves[1], name="two", tier="two") as two,
    ):
        await two.admin.update_namespace("jobs", tier="two")
        await two.client.enqueue("jobs", "t", b"secret")
    restore(meta_url, empty)
    async with running_host(meta_url, halves[0], name="one", namespace="thief") as one:
        # Nothing told this host of the other shards: all that was known of them is lost.
        assert number_of(one, "thief") == 1
        async with running_host(meta_url, halves[1], name="two", tier="two", namespace=None) as two:
            await until(lambda: two.host.owned_count == len(halves[1]))
            for call in (two.client.dequeue, two.admin.peek_items):
                with pytest.raises(UnavailableError, match=r"has number 1, under which shard . holds items of 'jobs'"):
                    await call("thief", "t")
            # It holds no items of its own: so it goes, and comes back under a number of its own.
            await one.admin.delete_namespace("thief")
            await one.admin.create_namespace("thief")
            assert number_of(one, "thief") > 1
            await until(lambda: unknown(two) == {1: "jobs"})
            await until(lambda: "thief" in two.host._namespaces.view.by_name)
            assert await two.client.dequeue("thief", "t") == []
            await two.admin.recover_namespace(1)
            assert await consume(two, "jobs") == [b"secret"]
