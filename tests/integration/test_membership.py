"""Heartbeats and the watch of other hosts, on a real meta database and a clock that the test moves."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager

import pytest
from structlog.testing import capture_logs

from foqs.cluster.members import host_watch
from foqs.cluster.members.backends.meta_backend import MetaBackend
from foqs.cluster.members.membership import Follower, Membership
from foqs.dev.local_server import LocalServer
from foqs.host.registry.meta_calls import MetaCalls
from foqs.model import limits
from foqs.model.cluster import HostRow
from foqs.model.errors import FoqsError
from foqs.storage.meta.meta_hosts import MetaHosts
from foqs.storage.meta.meta_store import MetaStore
from tests.support.waiting import until

pytestmark = pytest.mark.database

DEAD_S = limits.HOST_DEAD_MS / 1000
EPOCH = 7


class CountedHosts(MetaHosts):
    """Counts the heartbeats that were asked for, and those that were answered."""

    asked_count = answered_count = 0

    def beat(self, host: HostRow) -> list[HostRow]:
        self.asked_count += 1
        rows = super().beat(host)
        self.answered_count += 1
        return rows


class Hosts:
    """Some hosts with one clock."""

    def __init__(self, meta_url: str) -> None:
        self.now_s = 100.0
        self.metas: dict[str, CountedHosts] = {}
        self._url = meta_url

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[Membership]:
        meta = MetaStore(self._url)
        meta.hosts = self.metas[name] = CountedHosts(meta._sessions)
        me = HostRow(name, "127.0.0.1:7600", len(self.metas), 0)
        busy = Follower(is_busy=lambda: True)
        membership = Membership(MetaBackend(meta, meta), meta, me, {}, lambda: self.now_s, lambda _: 0, busy)
        await membership.start()
        try:
            yield membership
        finally:
            await membership.stop()
            del self.metas[name]

    async def beat(self) -> None:
        """Everybody goes through whole rounds: when a third one has begun to be answered, two are over."""
        counts = {name: meta.answered_count for name, meta in self.metas.items()}
        await until(lambda: all(meta.answered_count >= counts[name] + 3 for name, meta in self.metas.items()))

    async def go_on(self, seconds: float) -> None:
        """With heartbeats in between, so that no watch has a gap."""
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            self.now_s = min(until_s, self.now_s + limits.HEARTBEAT_MS / 1000)
            await self.beat()


@pytest.fixture
def hosts(meta_url: str, monkeypatch: pytest.MonkeyPatch) -> Hosts:
    hosts = Hosts(meta_url)
    # Rounds come as fast as they can, whatever the clock says.
    monkeypatch.setattr("foqs.cluster.members.membership.BUSY_BEAT_MS", 5)
    return hosts


async def test_a_host_that_stops_beating_is_dead_and_one_that_beats_is_not(hosts: Hosts) -> None:
    async with hosts.host("one") as one, hosts.host("two"), hosts.host("three") as three:
        three._tasks.cancel()  # As by kill -9: its row stays.
        del hosts.metas["three"]
        await hosts.go_on(DEAD_S)
        assert not one.is_dead("three", EPOCH)
        assert not one.is_dead("somebody who never was", EPOCH), "it may have come since the last round"
        await hosts.go_on(1)
        assert one.is_dead("three", EPOCH)
        assert not one.is_dead("two", EPOCH)
        assert one.is_dead("somebody who never was", EPOCH)
        hosts.metas["three"] = CountedHosts(MetaStore("mysql+pymysql://nobody@127.0.0.1:1/meta")._sessions)


async def test_a_host_that_ended_in_order_has_no_row_and_is_dead_after_as_long(hosts: Hosts) -> None:
    async with hosts.host("one") as one:
        async with hosts.host("two"):
            await hosts.go_on(DEAD_S + 1)
            assert not one.is_dead("two", EPOCH)
        await hosts.go_on(DEAD_S - 1)
        assert not one.is_dead("two", EPOCH)
        await hosts.go_on(2)
        assert one.is_dead("two", EPOCH)


@pytest.mark.parametrize("hang_s", [host_watch.HOST_WATCH_GAP_MS_MAX / 2000, DEAD_S, 30])
async def test_nobody_is_dead_because_nobody_could_beat(hosts: Hosts, mysql_server: LocalServer, hang_s: float) -> None:
    async with hosts.host("one") as one, hosts.host("two") as two:
        await hosts.go_on(DEAD_S + 1)
        for _ in range(20 if hang_s == 30 else 3):
            with hosts_locked(mysql_server):
                await until(lambda: all(meta.asked_count > meta.answered_count for meta in hosts.metas.values()))
                hosts.now_s += hang_s
                assert not one.is_dead("two", EPOCH)
            for _ in range(3):
                await hosts.beat()
                assert not one.is_dead("two", EPOCH)
                assert not two.is_dead("one", EPOCH)


async def test_who_cannot_write_a_heartbeat_calls_nobody_dead(hosts: Hosts, mysql_server: LocalServer) -> None:
    """On a meta database that takes no writes all rows stand still, and anybody can read them."""
    async with hosts.host("one") as one, hosts.host("two"):
        assert not one.is_dead("nobody", EPOCH)
        await hosts.go_on(DEAD_S + 1)
        assert one.is_dead("nobody", EPOCH)
        with hosts_only_to_read(mysql_server), capture_logs() as logged:
            await until(lambda: not one.is_dead("nobody", EPOCH))
            for _ in range(10):
                hosts.now_s += 1
                counts = {name: meta.asked_count for name, meta in hosts.metas.items()}
                await until(lambda seen=counts: all(meta.asked_count > seen[n] for n, meta in hosts.metas.items()))
                assert not one.is_dead("two", EPOCH)
        # One line a minute for each reason. Between the renaming and the view a round can find another one: no table.
        missed = Counter(event["error"] for event in logged if event["event"] == "heartbeat_missed")
        assert missed
        assert max(missed.values()) <= len(hosts.metas)
        await hosts.go_on(1)
        assert not one.is_dead("two", EPOCH)


async def test_heartbeats_go_on_while_calls_of_operators_hang(hosts: Hosts, meta_url: str) -> None:
    calls = MetaCalls(MetaStore(meta_url))
    released = threading.Event()
    hanging = [asyncio.ensure_future(calls.run(lambda _: released.wait(30))) for _ in range(10)]
    try:
        async with hosts.host("one") as one, hosts.host("two"):
            assert not one.is_dead("nobody", EPOCH)
            await hosts.go_on(DEAD_S + 1)
            assert one.is_dead("nobody", EPOCH)
            assert not one.is_dead("two", EPOCH)
    finally:
        released.set()
        await asyncio.gather(*hanging, return_exceptions=True)
        await calls.stop()


async def test_a_host_does_not_start_without_the_meta_database() -> None:
    meta = MetaStore("mysql+pymysql://nobody@127.0.0.1:1/meta")
    membership = Membership(MetaBackend(meta, meta), meta, HostRow("one", "", 1, 0), {}, lambda: 0.0, lambda _: 0)
    with pytest.raises(FoqsError):
        await membership.start()


@contextmanager
def hosts_locked(server: LocalServer) -> Iterator[None]:
    with closing(server.connect("meta")) as session, session.cursor() as cursor:
        cursor.execute("LOCK TABLES host WRITE")
        yield
        cursor.execute("UNLOCK TABLES")


@contextmanager
def hosts_only_to_read(server: LocalServer) -> Iterator[None]:
    with closing(server.connect("meta")) as session, session.cursor() as cursor:
        cursor.execute("RENAME TABLE host TO host_away")
        cursor.execute(
            "CREATE VIEW host AS SELECT name, address, started_at, heartbeat_at + 0 AS heartbeat_at, beat_number, "
            "state, tier FROM host_away"
        )
        try:
            yield
        finally:
            cursor.execute("DROP VIEW host")
            cursor.execute("RENAME TABLE host_away TO host")
