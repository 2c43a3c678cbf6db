"""A cluster of an older version is brought to this one, host by host, under load: no call of a client fails.

The older version is the one before the newest optional field between hosts and the newest stored version that it has to
live with. docs/operations.md (Upgrade) says what may change between two versions, and this test holds it to that.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from foqs import AdminClient, Client, NewItem
from foqs.client.queue_items import Item
from foqs.dev.local_server import LocalServer
from foqs.model.errors import UnknownNamespaceError
from tests.support.databases import prepared_server
from tests.support.faults import FaultError
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, foqs, free_port
from tests.support.old_build import OldBuild
from tests.support.steady_traffic import PATIENCE_S, Traffic, owned_count
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database]

_OLDER, _NEWER = "72ee7f57cba7eb407435726c01704a73422f98f1", "9b92bd6b7aab495e70b46757af301fa8019c4a3c"
OLD_COMMITS = {_OLDER: "0010", _NEWER: "0014"}
"""Older versions, each with a migration of the meta database that it does not have.

Hosts of the first one share shards, and know neither moves of slots, nor caps that hosts share. Hosts of the second one
call each other, and prove who they are by the older of the two proofs alone.
"""
SHARDS = 4
WRITTEN = "written-before"
LEASED = "leased-before"
DEAD = "dead-before"


class Cluster:
    """Two hosts and their databases, first of the older version."""

    def __init__(self, old: OldBuild, unknown: str, server: LocalServer, stack: ExitStack) -> None:
        """`unknown` is a migration that the older version does not have."""
        self._old = old
        self._stack = stack
        self.meta_url = server.create_database("meta")
        self.shard_urls = {number: server.create_database(f"shard_{number}") for number in range(SHARDS)}
        old.run(*self._command("apply"))
        self.ports = {"host-1": free_port(), "host-2": free_port()}
        assert unknown not in old.run(*self._command("status")), "the older version is not the one that was meant"
        self.hosts = {name: self._start(name, is_old=True) for name in self.ports}
        self.wait_until_shared()
        with AdminClient(self.addresses) as admin:
            admin.create_namespace(NAMESPACE)
        for address in self.addresses:
            until_true(lambda address=address: knows_the_namespace(address), PATIENCE_S)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports.values()]

    def migrate(self) -> None:
        """Bring the databases to the schema of this version, under the hosts of the older one."""
        foqs(*self._command("apply"))

    def replace(self, name: str) -> None:
        """Stop an older host in order, and start one of this version in its place."""
        self.hosts[name].signal(signal.SIGTERM)
        assert self.hosts[name].wait() == 0, self.hosts[name].output
        self.hosts[name] = self._start(name, is_old=False)
        self.wait_until_shared()

    def wait_until_shared(self) -> None:
        until_true(lambda: [owned_count(host) for host in self.hosts.values()] == [2, 2], PATIENCE_S)

    def _command(self, verb: str) -> list[str]:
        shards = [flag for number, url in self.shard_urls.items() for flag in ("--shard", f"{number}={url}")]
        return ["schema", verb, "--meta-url", self.meta_url, *shards]

    def _start(self, name: str, *, is_old: bool) -> HostProgram:
        port, urls = self.ports[name], self.shard_urls
        if is_old:
            host = HostProgram(name, port, self.meta_url, urls, self._old.variables, command=self._old.command)
        else:
            host = HostProgram(name, port, self.meta_url, urls)
        self._stack.callback(host.close)
        return host


def knows_the_namespace(address: str) -> bool:
    try:
        with Client(address) as client:
            list(client.topics(NAMESPACE))
    except UnknownNamespaceError:
        return False
    return True


@pytest.fixture(params=[_NEWER, pytest.param(_OLDER, marks=pytest.mark.slow)])
def cluster(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    old = OldBuild(request.param, tmp_path / "old")
    with ExitStack() as stack:
        server = stack.enter_context(prepared_server(tmp_path / "mysql"))
        yield Cluster(old, OLD_COMMITS[request.param], server, stack)


def write_before(client: Client) -> list[Item]:
    """What the older version stores in each of its formats; returns items under lease."""
    for number in range(40):
        # Of each call the first is new, and the next is one that was enqueued before.
        ids = [f"id-{number}", f"id-{max(0, number - 1)}"]
        client.enqueue_many(NAMESPACE, [NewItem(WRITTEN, b"x", dedup_id=dedup_id) for dedup_id in ids])
    client.enqueue_many(NAMESPACE, [NewItem(LEASED, b"x") for _ in range(40)])
    client.enqueue_many(NAMESPACE, [NewItem(DEAD, b"x") for _ in range(10)])
    dead = take(client, DEAD, 10)
    client.nack(NAMESPACE, dead, dead_letter=True)
    return take(client, LEASED, 40)


def take(client: Client, topic: str, count: int) -> list[Item]:
    """So many items of the topic, each under a lease that outlasts the test."""
    items: dict[str, Item] = {}
    while len(items) < count:
        got = client.dequeue(NAMESPACE, topic, count, lease_ms=600_000, wait_ms=10_000)
        assert got, f"{len(items)} of {count} items of {topic} came"
        assert not items.keys() & {item.id for item in got}, "an item was delivered twice"
        items |= {item.id: item for item in got}
    return list(items.values())


@pytest.mark.deep
def test_hosts_of_an_older_version_are_replaced_in_turn_and_no_call_fails(cluster: Cluster) -> None:
    with Client(cluster.addresses) as client:
        leased = write_before(client)
        with Traffic(cluster.addresses) as traffic:
            traffic.go_on(consumed=200)
            cluster.migrate()
            traffic.go_on(consumed=200)
            for name in cluster.ports:
                cluster.replace(name)
                traffic.go_on(consumed=200)
            traffic.end()
        output = "\n".join(host.output for host in cluster.hosts.values())
        assert traffic.failures == [], output
        assert len(traffic.consumed) == len(set(traffic.consumed)), "an item was delivered twice"
        assert set(traffic.consumed) == traffic.enqueued
        client.ack(NAMESPACE, leased)
        again = client.enqueue_many(
            NAMESPACE, [NewItem(WRITTEN, b"y", dedup_id=f"id-{number}") for number in range(40)]
        )
        assert list(again.duplicates) == list(range(40))
        assert {item.id for item in take(client, WRITTEN, 40)} == set(again.ids)
        topics = {topic.topic: topic for topic in client.topics(NAMESPACE)}
    assert topics[DEAD].dead == 10
    assert LEASED not in topics, "all of them were acked"


def test_a_history_that_does_not_reach_back_is_told(tmp_path: Path) -> None:
    with pytest.raises(FaultError, match="git fetch --unshallow"):
        OldBuild("0" * 40, tmp_path / "old")
