"""A cluster gets a port for hosts alone, host by host under load, and loses it again: no call of a client fails.

It begins with hosts of an older version, which do not know such ports, and one of which stays for a while.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from foqs import AdminClient
from foqs.dev.local_server import LocalServer
from foqs.wire.codec import ApplicationError, structs
from tests.support.databases import prepared_server
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, foqs, free_port
from tests.support.old_build import OldBuild
from tests.support.raw_client import RawClient
from tests.support.steady_traffic import PATIENCE_S, Traffic, owned_count
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.slow]

OLD_COMMIT = "80be8cd93a98dfaa3087059b46db19611f0021c0"
"""A version whose hosts know certificates of each other, and no addresses for hosts alone."""
SHARDS = 4
CALM_ITEMS = 100
AT_CLIENTS = "peer_at_port_for_clients"


class Cluster:
    """Two hosts and their databases, first of the older version."""

    def __init__(self, old: OldBuild, server: LocalServer, stack: ExitStack) -> None:
        self._old = old
        self._stack = stack
        self.meta_url = server.create_database("meta")
        self.shard_urls = {number: server.create_database(f"shard_{number}") for number in range(SHARDS)}
        old.run("schema", "apply", *self._databases())
        self.ports = {"host-1": free_port(), "host-2": free_port()}
        self.peer_ports = {name: free_port() for name in self.ports}
        self.hosts: dict[str, HostProgram] = {}
        for name in self.ports:
            self.start(name, is_old=True)
        with AdminClient(self.addresses) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=1_000_000_000)

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.ports.values()]

    def migrate(self) -> None:
        foqs("schema", "apply", *self._databases())

    def _databases(self) -> list[str]:
        shards = [flag for number, url in self.shard_urls.items() for flag in ("--shard", f"{number}={url}")]
        return ["--meta-url", self.meta_url, *shards]

    def start(self, name: str, *, is_old: bool = False, has_peer_port: bool = False) -> None:
        """Start a host, in the place of the one before, which is stopped in order."""
        if name in self.hosts:
            self.hosts[name].signal(signal.SIGTERM)
            assert self.hosts[name].wait() == 0, self.hosts[name].output
        variables = {"FOQS_PEER_PORT": str(self.peer_ports[name])} if has_peer_port else {}
        if is_old:
            old = self._old
            host = HostProgram(
                name, self.ports[name], self.meta_url, self.shard_urls, old.variables, command=old.command
            )
        else:
            host = HostProgram(name, self.ports[name], self.meta_url, self.shard_urls, variables)
        self._stack.callback(host.close)
        self.hosts[name] = host
        wanted = [SHARDS // len(self.hosts)] * len(self.hosts)
        if len(self.hosts) == len(self.ports):
            until_true(lambda: [owned_count(one) for one in self.hosts.values()] == wanted, PATIENCE_S)

    def knows_hosts_at(self, port: int) -> bool:
        """Whether the verbs between hosts exist at this port."""

        async def greet() -> bool:
            async with RawClient.connect("127.0.0.1", port) as client:
                reply = await client.call("greet", structs.GreetRequest(2, "x#1", "y#1", b"0" * 32))
                return not isinstance(reply.error, ApplicationError)

        return asyncio.run(greet())


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    old = OldBuild(OLD_COMMIT, tmp_path / "old")
    with ExitStack() as stack:
        server = stack.enter_context(prepared_server(tmp_path / "mysql"))
        yield Cluster(old, server, stack)


def test_a_port_for_hosts_comes_and_goes_host_by_host_and_no_call_fails(cluster: Cluster) -> None:
    one, two = cluster.ports
    with Traffic(cluster.addresses, pause_s=0.01) as traffic:
        traffic.go_on(consumed=CALM_ITEMS)
        cluster.migrate()
        cluster.start(one, has_peer_port=True)
        traffic.go_on(consumed=CALM_ITEMS)
        # The older host calls it there.
        until_true(lambda: bool(cluster.hosts[one].events[AT_CLIENTS]), PATIENCE_S)
        assert cluster.knows_hosts_at(cluster.ports[one])
        cluster.start(two, has_peer_port=True)
        traffic.go_on(consumed=CALM_ITEMS)
        for name in cluster.ports:
            until_true(lambda name=name: not cluster.knows_hosts_at(cluster.ports[name]), PATIENCE_S)
            assert cluster.knows_hosts_at(cluster.peer_ports[name])
        for name in cluster.ports:
            cluster.start(name)
            traffic.go_on(consumed=CALM_ITEMS)
            assert cluster.knows_hosts_at(cluster.ports[name])
        traffic.end()
    output = "\n".join(host.output for host in cluster.hosts.values())
    assert traffic.failures == [], output
    assert not any(host.events["peer_not_reached"] for host in cluster.hosts.values()), output
    assert len(traffic.consumed) == len(set(traffic.consumed)), "an item was delivered twice"
    assert set(traffic.consumed) == traffic.enqueued
