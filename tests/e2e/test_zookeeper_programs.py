"""Two hosts that find each other by ZooKeeper: one is killed, one hangs, and ZooKeeper itself goes away."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from foqs import Client
from foqs.client.retry import RetryPolicy
from foqs.model.ids import item_id
from tests.e2e.conftest import StartHost
from tests.e2e.test_take_over import owners
from tests.histories.stored import item_rows
from tests.support.databases import SHARD_COUNT, Databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.waiting import PATIENCE_S
from tests.support.zookeeper import ZookeeperServer

pytestmark = [pytest.mark.database, pytest.mark.deep]

AWAY_S = 10.0
"""ZooKeeper is away for longer than a host has to be, to be dead."""
AFTER_S = 12.0
"""So long after its return, everybody who would be taken for dead has been."""


@pytest.fixture
def own_zookeeper(tmp_path: Path) -> Iterator[ZookeeperServer]:
    with ZookeeperServer(tmp_path) as server:
        yield server


class TwoHosts:
    """Both with half of the shards."""

    def __init__(self, start_host: StartHost, databases: Databases, zookeeper: ZookeeperServer) -> None:
        self._start_host = start_host
        self._databases = databases
        self._variables = {"FOQS_MEMBERSHIP": zookeeper.url()}
        self._ports = {"host-1": free_port(), "host-2": free_port()}
        self.first = self.start("host-1")
        self.second = self.start("host-2")
        self.wait_for({"host-1": SHARD_COUNT // 2, "host-2": SHARD_COUNT // 2})

    @property
    def addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self._ports.values()]

    @property
    def output(self) -> str:
        return f"{self.first.output}\n{self.second.output}"

    def start(self, name: str) -> HostProgram:
        return self._start_host(name, self._ports[name], variables=self._variables)

    def wait_for(self, counts: dict[str, int]) -> None:
        """Until each host owns so many shards."""
        self._until(lambda: Counter(owner for _, owner in owners(self._databases)) == counts)

    def stop(self) -> None:
        """All that was accepted is in the databases then."""
        for host in (self.first, self.second):
            if host.is_running:
                host.signal(signal.SIGTERM)
                assert host.wait() == 0, host.output

    def _until(self, condition: Callable[[], bool]) -> None:
        until_s = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < until_s, f"{owners(self._databases)}\n{self.output}"
            time.sleep(0.05)


@pytest.fixture
def two_hosts(start_host: StartHost, own_databases: Databases, own_zookeeper: ZookeeperServer) -> TwoHosts:
    return TwoHosts(start_host, own_databases, own_zookeeper)


class Producer:
    """Enqueues, and finds all of it in the end."""

    def __init__(self, addresses: list[str], retry_ms: int) -> None:
        self._client = Client(addresses, retry=RetryPolicy(deadline_ms=retry_ms))
        self._ids: set[str] = set()

    def enqueue(self, times: int) -> None:
        for _ in range(times):
            # One of unknown outcome may be there twice, which is no matter here.
            self._ids.add(self._client.enqueue(NAMESPACE, "t", b"x", retry_unknown=True))

    def check_stored(self, databases: Databases) -> None:
        stored = {
            item_id(shard_id, row.key) for shard_id, url in databases.shard_urls.items() for row in item_rows(url)
        }
        assert self._ids <= stored

    def close(self) -> None:
        self._client.close()


def test_the_shards_of_a_killed_host_go_to_the_other_one_and_its_part_comes_back_to_it(
    two_hosts: TwoHosts, own_databases: Databases
) -> None:
    with closing(Producer(two_hosts.addresses, 30_000)) as producer:
        producer.enqueue(100)
        two_hosts.second.kill()
        producer.enqueue(100)
        two_hosts.wait_for({"host-1": SHARD_COUNT})
        producer.enqueue(100)
        two_hosts.second = two_hosts.start("host-2")
        two_hosts.wait_for({"host-1": SHARD_COUNT // 2, "host-2": SHARD_COUNT // 2})
        producer.enqueue(100)
        two_hosts.stop()
        producer.check_stored(own_databases)


def test_the_shards_of_a_host_that_hangs_go_to_the_other_one(two_hosts: TwoHosts) -> None:
    two_hosts.second.signal(signal.SIGSTOP)
    two_hosts.wait_for({"host-1": SHARD_COUNT})
    two_hosts.second.signal(signal.SIGCONT)
    two_hosts.wait_for({"host-1": SHARD_COUNT // 2, "host-2": SHARD_COUNT // 2})


@pytest.mark.slow
@pytest.mark.alone  # A host that gets no processor for three seconds is dead, and is right to be.
def test_no_shard_moves_and_nobody_is_put_out_because_zookeeper_was_away(
    two_hosts: TwoHosts, own_databases: Databases, own_zookeeper: ZookeeperServer
) -> None:
    before = owners(own_databases)
    producers = [Producer([address], retry_ms=0) for address in two_hosts.addresses]  # Not one call may fail.

    def enqueue_for(seconds: float) -> None:
        until_s = time.monotonic() + seconds
        while time.monotonic() < until_s:
            for producer in producers:
                producer.enqueue(20)

    own_zookeeper.kill()
    enqueue_for(AWAY_S)
    own_zookeeper.start()
    enqueue_for(AFTER_S)
    assert owners(own_databases) == before, two_hosts.output
    for host in (two_hosts.first, two_hosts.second):
        assert host.events["heartbeat_missed"] >= 1, host.output
        assert host.events["session_lost"] == 0, host.output
    # They find each other again.
    two_hosts.second.kill()
    two_hosts.wait_for({"host-1": SHARD_COUNT})
    two_hosts.stop()
    for producer in producers:
        producer.check_stored(own_databases)
        producer.close()
