"""Membership by a real ZooKeeper: sessions that end, servers that lose their data, and who is dead in all this."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from itertools import count

import pytest
from kazoo.client import KazooClient
from structlog.testing import capture_logs

from foqs.cluster.members.backends import zookeeper_backend, zookeeper_url
from foqs.cluster.members.backends.meta_backend import MetaBackend
from foqs.cluster.members.backends.zookeeper_backend import RETURN_MS, VANISHED_MS, ZookeeperBackend
from foqs.cluster.members.host_watch import RETURN_MS_MAX
from foqs.cluster.members.membership import Follower, Membership
from foqs.cluster.members.view import ClusterView
from foqs.model import limits
from foqs.model.cluster import HostRow, ShardRow
from foqs.model.errors import FoqsError, InvalidArgumentError, UnavailableError
from foqs.storage.meta.meta_shards import MetaShards
from foqs.storage.meta.meta_store import MetaStore
from tests.support.waiting import PATIENCE_S, until
from tests.support.zookeeper import ZookeeperServer

pytestmark = [pytest.mark.deep]

DEAD_S = limits.HOST_DEAD_MS / 1000
EPOCH = 1
NAMES = ("one#1", "two#1", "three#1", "nobody")

_paths = count()


class Hosts:
    """Some hosts on one ZooKeeper, and their clock."""

    def __init__(self, server: ZookeeperServer, meta_url: str) -> None:
        self.now_s = 100.0
        self.url = zookeeper_url.parse(server.url(f"/zookeeper-{next(_paths)}"))
        self.directory = f"{self.url.path}/foqs/hosts"
        self._meta_url = meta_url
        self._made: list[ZookeeperBackend] = []
        self.metas: list[MetaStore] = []

    def meta(self) -> MetaStore:
        self.metas.append(MetaStore(self._meta_url))
        return self.metas[-1]

    def backend(self) -> ZookeeperBackend:
        self._made.append(ZookeeperBackend(self.url, "foqs", self.meta(), lambda: self.now_s))
        return self._made[-1]

    def joined(self, name: str) -> ZookeeperBackend:
        backend = self.backend()
        backend.join(row(name))
        return backend

    def close(self) -> None:
        for closable in [*self._made, *self.metas]:
            closable.close()

    @contextmanager
    def client(self) -> Iterator[KazooClient]:
        """Somebody else who talks to the server."""
        client = KazooClient(self.url.servers[0])
        client.start()
        try:
            yield client
        finally:
            client.stop()
            client.close()

    def nodes(self) -> set[str]:
        with self.client() as client:
            return set(client.get_children(self.directory))


@pytest.fixture
def hosts(zookeeper_server: ZookeeperServer, meta_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    # A slow round is an outage, and so is a server or a client that is silent for most of a session, as on a busy
    # machine: the clock of these tests would not go on until it counts as over.
    monkeypatch.setattr(zookeeper_backend, "ROUND_MS_MAX", 20_000)
    monkeypatch.setattr(zookeeper_backend, "SESSION_MS", 60_000)
    with closing(Hosts(zookeeper_server, meta_url)) as hosts:
        yield hosts


def row(name: str, beat_number: int = 1) -> HostRow:
    return HostRow(name, "127.0.0.1:7600", 17, beat_number)


def others(backend: ZookeeperBackend, me: str, beat_number: int = 1) -> dict[str, HostRow]:
    return {found.id: found for found in backend.beat(row(me, beat_number)) if found.id != me}


def beat_again(hosts: Hosts, backend: ZookeeperBackend, host: HostRow) -> list[HostRow]:
    """The first round that is answered after an outage; as much time passes as has to."""
    until_s = time.monotonic() + PATIENCE_S
    while True:
        try:
            return backend.beat(host)
        except UnavailableError:
            if time.monotonic() > until_s:
                raise
            hosts.now_s += 0.05
            time.sleep(0.01)


def lose_session(client: KazooClient, server: str) -> None:
    """End it at the server, as that does with one it has not heard of for long."""
    other = KazooClient(server, client_id=client.client_id)
    other.start()
    other.stop()
    other.close()


def test_a_host_whose_session_has_expired_makes_its_node_anew(hosts: Hosts) -> None:
    one, two = hosts.joined("one#1"), hosts.joined("two#1")
    one.beat(row("one#1"))
    two.beat(row("two#1"))
    before = one._client.client_id
    lose_session(one._client, hosts.url.servers[0])
    # The node is gone; who has seen it takes the host for one that does not beat.
    assert hosts.nodes() == {"two#1"}
    assert others(two, "two#1", 2) == {"one#1": row("one#1")}
    beat_again(hosts, one, row("one#1", 2))
    assert one._client.client_id != before
    assert others(two, "two#1", 3) == {"one#1": row("one#1", 2)}


def test_a_heartbeat_writes_the_node_and_makes_no_new_one(hosts: Hosts) -> None:
    one = hosts.joined("one#1")
    stats = []
    for number in range(3):
        one.beat(row("one#1", number))
        with hosts.client() as client:
            stats.append(client.exists(f"{hosts.directory}/one#1"))
    assert len({stat.czxid for stat in stats}) == 1
    assert [stat.version for stat in stats] == [0, 1, 2]
    assert stats[0].ephemeralOwner


def test_a_host_can_end_while_zookeeper_hangs(
    hosts: Hosts, zookeeper_server: ZookeeperServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zookeeper_backend, "SESSION_MS", 2_000)  # So long it waits for the server at its end.
    one = hosts.joined("one#1")
    beat_again(hosts, one, row("one#1"))
    monkeypatch.setattr(zookeeper_backend, "ROUND_MS_MAX", limits.BEAT_STATEMENT_MS_MAX)
    zookeeper_server.freeze()
    try:
        with pytest.raises(UnavailableError):
            one.leave(row("one#1"))
        one.close()
    finally:
        zookeeper_server.thaw()


def test_the_node_of_a_session_that_is_still_to_expire_is_taken_over(hosts: Hosts) -> None:
    """The host has a new session, and the server has not found out yet that the old one is gone."""
    one = hosts.joined("one#1")
    one.beat(row("one#1"))
    old, one._client = one._client, one._connect()
    assert one._client.start_async().wait(PATIENCE_S)
    one.beat(row("one#1", 2))
    old.stop()
    old.close()
    assert hosts.nodes() == {"one#1"}


def test_a_host_that_vanished_without_a_word_is_one_that_does_not_beat_and_is_forgotten_in_time(hosts: Hosts) -> None:
    one, two = hosts.joined("one#1"), hosts.joined("two#1")
    one.beat(row("one#1", 7))
    two.beat(row("two#1"))
    one.close()
    assert hosts.nodes() == {"two#1"}
    for number in range(2, 5):
        assert others(two, "two#1", number) == {"one#1": row("one#1", 7)}
        hosts.now_s += VANISHED_MS / 4_000
    hosts.now_s += VANISHED_MS / 4_000
    assert others(two, "two#1", 5) == {}


def test_the_mark_of_a_host_that_ended_in_order_is_removed_in_time(hosts: Hosts) -> None:
    one, two = hosts.joined("one#1"), hosts.joined("two#1")
    one.beat(row("one#1"))
    one.leave(row("one#1"))
    one.close()
    assert others(two, "two#1") == {}
    assert hosts.nodes() == {"one#1", "two#1"}
    hosts.now_s += VANISHED_MS / 1000
    assert others(two, "two#1", 2) == {}
    assert hosts.nodes() == {"two#1"}


def test_after_an_outage_others_have_time_to_come_back_before_rounds_count(
    hosts: Hosts, zookeeper_server: ZookeeperServer
) -> None:
    one, two = hosts.joined("one#1"), hosts.joined("two#1")
    one.beat(row("one#1"))
    assert others(two, "two#1") == {"one#1": row("one#1")}
    zookeeper_server.kill()
    try:
        with pytest.raises(UnavailableError):
            two.beat(row("two#1", 2))
        hosts.now_s += 10 * VANISHED_MS / 1000
        zookeeper_server.forget()  # The worst case: not even sessions are as they were.
    finally:
        zookeeper_server.start()
    began_s = hosts.now_s
    assert {found.id for found in beat_again(hosts, two, row("two#1", 3))} == {"one#1", "two#1"}
    assert hosts.now_s - began_s >= RETURN_MS / 1000
    assert hosts.nodes() == {"two#1"}
    beat_again(hosts, one, row("one#1", 2))
    assert others(two, "two#1", 4) == {"one#1": row("one#1", 2)}


def test_a_client_that_has_given_up_is_replaced(hosts: Hosts) -> None:
    one = hosts.joined("one#1")
    one.beat(row("one#1"))
    given_up = one._client
    given_up.stop()
    beat_again(hosts, one, row("one#1", 2))
    assert one._client is not given_up


def test_a_node_that_is_no_host_keeps_anybody_from_being_called_dead(hosts: Hosts) -> None:
    one = hosts.joined("one#1")
    one.beat(row("one#1"))
    with hosts.client() as client:
        for junk in (b"", b"[]", b"{}", b'{"address": "a", "started_at_ms": "x"}', b"\xff"):
            client.create(f"{hosts.directory}/junk", junk)
            with pytest.raises(UnavailableError, match=f"{hosts.directory}/junk of ZooKeeper holds no row"):
                one.beat(row("one#1", 2))
            client.delete(f"{hosts.directory}/junk")
    assert one.beat(row("one#1", 3))


def test_more_hosts_than_the_limit_are_refused(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = hosts.joined("one#1"), hosts.joined("two#1")
    two.beat(row("two#1"))
    monkeypatch.setattr(limits, "HOSTS_MAX", 1)
    with pytest.raises(UnavailableError, match="has 2 nodes, more than 1, the limit"):
        one.beat(row("one#1"))


def test_an_ensemble_that_cannot_be_reached_is_told_at_the_start(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_backend, "CONNECT_MS_MAX", 300)
    backend = ZookeeperBackend(zookeeper_url.parse("zookeeper://127.0.0.1:1"), "foqs", hosts.meta(), lambda: 0.0)
    with pytest.raises(
        UnavailableError, match=r"ZooKeeper at 127\.0\.0\.1:1 does not answer within .*check membership"
    ):
        backend.join(row("one#1"))
    backend.close()


def test_hosts_of_one_cluster_with_different_memberships_do_not_start(hosts: Hosts) -> None:
    """They would take each other for dead."""
    by_meta, by_zookeeper = MetaBackend(hosts.meta(), hosts.meta()), hosts.backend()
    by_meta.join(row("one#1"))
    by_meta.beat(row("one#1"))
    with pytest.raises(InvalidArgumentError, match="one#1 beats in the meta database"):
        by_zookeeper.join(row("two#1"))
    by_meta.leave(row("one#1"))
    by_zookeeper.join(row("two#1"))
    by_zookeeper.announce(row("two#1"))
    with pytest.raises(InvalidArgumentError, match="two#1 finds others by ZooKeeper"):
        by_meta.join(row("one#2"))
    # One that runs already takes no host for dead that it cannot see.
    found = {found.id: found.is_leaving for found in by_meta.beat(row("one#2"))}
    assert found == {"one#2": False, "two#1": True}
    hosts.now_s += 2
    by_zookeeper.announce(row("two#1", 2))
    assert {found.id: found.beat_number for found in by_meta.beat(row("one#2", 2))} == {"one#2": 2, "two#1": 2}
    by_zookeeper.leave(row("two#1"))
    by_meta.leave(row("one#2"))
    by_meta.join(row("one#3"))


class SlowShards(MetaShards):
    """`is_away`: it does not give the shards, and says so; `hangs`: it says nothing until that is set."""

    is_away = False
    hangs: threading.Event | None = None

    def read_all(self) -> list[ShardRow]:
        if self.hangs is not None:
            self.hangs.wait(PATIENCE_S)
        if self.is_away:
            raise UnavailableError("the meta database does not answer")
        return super().read_all()


class Cluster:
    """Memberships of hosts on one ZooKeeper; rounds come as fast as they can, and the test moves the clock."""

    def __init__(self, hosts: Hosts, meta_url: str) -> None:
        self.hosts = hosts
        self.rounds: dict[str, int] = {}
        """Of the hosts that the clock waits for."""
        self.metas: dict[str, SlowShards] = {}
        self.views: dict[str, ClusterView] = {}
        self.shrunk: list[ClusterView] = []
        """Views in which less hosts lived than the one that saw it had seen before."""
        self._meta_url = meta_url

    @asynccontextmanager
    async def host(self, name: str) -> AsyncIterator[Membership]:
        meta = MetaStore(self._meta_url)
        meta.shards = self.metas[name] = SlowShards(meta._sessions)
        backend = ZookeeperBackend(self.hosts.url, "foqs", meta, lambda: self.hosts.now_s)

        async def look(view: ClusterView) -> None:
            for other in NAMES:  # As hosts do that want their shards: who asks for the first time gets no answer.
                membership.is_dead(other, EPOCH)
            if name in self.rounds:
                self.rounds[name] += 1
            if name in self.views and not self.views[name].hosts.keys() <= view.hosts.keys():
                self.shrunk.append(view)
            self.views[name] = view

        follower = Follower(look, is_busy=lambda: True)
        membership = Membership(backend, meta, row(name, 0), {}, lambda: self.hosts.now_s, lambda _: 0, follower)
        self.rounds[name] = 0
        await membership.start()
        try:
            yield membership
        finally:
            self.forget(name)
            await membership.stop()

    def forget(self, name: str) -> None:
        """It takes part in no more rounds, but for one that is under way."""
        self.rounds.pop(name, None)

    async def go_on(self, seconds: float) -> None:
        """With whole rounds of all hosts in between, so that no watch has a gap."""
        until_s = self.hosts.now_s + seconds
        while self.hosts.now_s < until_s:
            self.hosts.now_s = min(until_s, self.hosts.now_s + limits.HEARTBEAT_MS / 1000)
            before = dict(self.rounds)
            await until(lambda seen=before: all(self.rounds[name] >= seen[name] + 2 for name in seen), PATIENCE_S)


@pytest.fixture
def cluster(hosts: Hosts, meta_url: str, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setattr("foqs.cluster.members.membership.BUSY_BEAT_MS", 5)
    return Cluster(hosts, meta_url)


async def test_a_host_that_hangs_is_dead_though_its_session_lives_and_one_that_beats_is_not(cluster: Cluster) -> None:
    async with cluster.host("one#1") as one, cluster.host("two#1"), cluster.host("three#1") as three:
        await cluster.go_on(DEAD_S + 1)
        assert not one.is_dead("three#1", EPOCH)
        three._tasks.cancel()  # Its event loop stands still, and kazoo's threads go on.
        cluster.forget("three#1")
        await cluster.go_on(DEAD_S - 1)
        assert not one.is_dead("three#1", EPOCH)
        await cluster.go_on(2)
        assert one.is_dead("three#1", EPOCH)
        assert "three#1" in cluster.hosts.nodes()
        assert cluster.views["one#1"].hosts.keys() == {"one#1", "two#1"}


async def test_a_host_that_is_gone_is_dead_from_its_last_heartbeat_on_and_stays_dead(cluster: Cluster) -> None:
    async with cluster.host("one#1") as one, cluster.host("two#1") as two:
        await cluster.go_on(DEAD_S + 1)
        two._tasks.cancel()
        cluster.forget("two#1")
        await cluster.go_on(DEAD_S / 2)
        await two._beats.run(two._backend.close)  # As the server does some seconds after kill -9.
        await cluster.go_on(DEAD_S / 2 - 1)
        assert not one.is_dead("two#1", EPOCH)
        assert "two#1" in cluster.views["one#1"].hosts
        await cluster.go_on(2)
        for _ in range(2 * VANISHED_MS // 1000):
            assert one.is_dead("two#1", EPOCH)
            await cluster.go_on(1)


@pytest.mark.slow
async def test_nobody_is_dead_and_nobody_missing_because_zookeeper_was_away(
    cluster: Cluster, zookeeper_server: ZookeeperServer
) -> None:
    async with cluster.host("one#1") as one, cluster.host("two#1") as two:
        await cluster.go_on(DEAD_S + 1)
        assert one.is_dead("nobody", EPOCH)
        for loses_data in (False, True):
            zookeeper_server.kill()
            try:
                with capture_logs() as logged:
                    await until(lambda seen=logged: [event["event"] for event in seen].count("heartbeat_missed") >= 2)
                cluster.hosts.now_s += 10 * DEAD_S
                assert not one.is_dead("nobody", EPOCH)
                if loses_data:
                    zookeeper_server.forget()
            finally:
                zookeeper_server.start()
            began_s, before = cluster.hosts.now_s, dict(cluster.rounds)
            while any(cluster.rounds[name] < before[name] + 3 for name in before):
                assert not one.is_dead("two#1", EPOCH)
                assert not two.is_dead("one#1", EPOCH)
                await asyncio.sleep(0.01)
                cluster.hosts.now_s += 0.005  # Half as fast as kazoo's clock: machines are busy.
            assert cluster.hosts.now_s - began_s >= RETURN_MS / 1000
            await cluster.go_on(2 * DEAD_S + RETURN_MS_MAX / 1000)
            assert not one.is_dead("two#1", EPOCH)
            assert not two.is_dead("one#1", EPOCH)
            assert one.is_dead("nobody", EPOCH)
        assert cluster.shrunk == []


async def test_while_the_meta_database_is_away_heartbeats_go_on_and_nobody_is_called_dead(cluster: Cluster) -> None:
    async with cluster.host("one#1") as one, cluster.host("two#1") as two, cluster.host("three#1") as three:
        await cluster.go_on(DEAD_S + 1)
        assert one.is_dead("nobody", EPOCH)
        for meta in cluster.metas.values():
            meta.is_away = True
        await until(lambda: not one.is_dead("nobody", EPOCH))
        three._tasks.cancel()
        cluster.forget("three#1")
        beats = one.me.beat_number
        for _ in range(round(DEAD_S) + 2):
            cluster.hosts.now_s += 1
            now = {membership: membership.me.beat_number for membership in (one, two)}
            await until(lambda seen=now: all(one.me.beat_number > number + 2 for one, number in seen.items()))
            assert not one.is_dead("three#1", EPOCH)
        assert one.me.beat_number > beats
        for meta in cluster.metas.values():
            meta.is_away = False
        await until(lambda: one.is_dead("three#1", EPOCH))  # Its heartbeats were watched all the time.
        assert not one.is_dead("two#1", EPOCH)
        assert not two.is_dead("one#1", EPOCH)


async def test_a_host_that_the_meta_database_does_not_answer_is_alive_to_those_that_it_answers(
    cluster: Cluster,
) -> None:
    async with cluster.host("one#1") as one, cluster.host("two#1") as two:
        await cluster.go_on(DEAD_S + 1)
        cluster.metas["two#1"].hangs = released = threading.Event()
        cluster.forget("two#1")
        try:
            for _ in range(2 * round(DEAD_S)):
                beats = two.me.beat_number
                await until(lambda seen=beats: two.me.beat_number > seen + 2)
                await cluster.go_on(1)
                assert one.is_dead("nobody", EPOCH)
                assert not one.is_dead("two#1", EPOCH)
                assert cluster.views["one#1"].hosts.keys() == {"one#1", "two#1"}
        finally:
            released.set()


async def test_a_host_does_not_start_without_zookeeper(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper_backend, "CONNECT_MS_MAX", 300)
    url, meta = zookeeper_url.parse("zookeeper://127.0.0.1:1"), hosts.meta()
    backend = ZookeeperBackend(url, "foqs", meta, lambda: 0.0)
    membership = Membership(backend, meta, row("one#1"), {}, lambda: 0.0, lambda _: 0)
    with pytest.raises(FoqsError, match="ZooKeeper at"):
        await membership.start()
