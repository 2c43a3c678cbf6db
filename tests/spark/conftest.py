"""One host for all tests here, which a test may kill, and Spark sessions of several kinds: all are slow to start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from foqs import AdminClient, Client
from loadtest.spark.faulty import FaultySource
from loadtest.spark.session import local_session
from loadtest.spark.standalone import standalone_session
from tests.support.databases import Databases, prepared_server
from tests.support.faults.programs import HostProgram, free_port
from tests.support.impatient_foqs import COMMAND

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
_SESSIONS = {"spark", "quick_jvm", "two_executors", "cluster"}
_QUICK = "test_rows.py"
_numbers = count(1)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test` has one session, the one of a file that needs no other."""
    for item in items:
        if item.path.parent == HERE and item.path.name != _QUICK and _SESSIONS.intersection(item.fixturenames):
            item.add_marker(pytest.mark.deep)


class KillableHost:
    """A host with a MySQL server of its own, always under one address."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._port = free_port()
        self._program = self._start()
        self.address = self._program.address

    def kill(self) -> None:
        """kill -9, and start it again."""
        self._program.kill()
        self._program = self._start()

    def close(self) -> None:
        self._program.close()

    def _start(self) -> HostProgram:
        databases = self._databases
        return HostProgram("spark", self._port, databases.meta_url, databases.shard_urls, command=COMMAND)


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KillableHost]:
    with prepared_server(tmp_path_factory.mktemp("mysql")) as server:
        host = KillableHost(Databases(server))
        try:
            yield host
        finally:
            host.close()


@pytest.fixture
def address(host: KillableHost) -> str:
    return host.address


@pytest.fixture(scope="module")
def _python_path() -> Iterator[None]:
    """Python workers find the writers of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        yield


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory, _python_path: None) -> Iterator[Any]:
    """Two tasks at a time, each tried three times. Never skipped: without Spark the tests prove nothing."""
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "2000"}  # A task has several batches to die between.
    with local_session(tmp_path_factory.mktemp("spark"), settings=small) as session:
        session.dataSource.register(FaultySource)
        yield session


@pytest.fixture(scope="module")
def quick_jvm(tmp_path_factory: pytest.TempPathFactory, _python_path: None) -> None:
    """The JVM that commands find here, which make sessions of their own, has the options of the other sessions."""
    with local_session(tmp_path_factory.mktemp("spark")):
        pass


@pytest.fixture(scope="module")
def two_executors(tmp_path_factory: pytest.TempPathFactory, _python_path: None) -> Iterator[Any]:
    """Two executors with a core each, in processes of their own: only such a shuffle brings rows in another order."""
    small = {"spark.sql.execution.arrow.maxRecordsPerBatch": "400"}  # A task has several batches to fail between.
    home = tmp_path_factory.mktemp("spark")
    with local_session(home, master="local-cluster[2,1,1024]", settings=small) as session:
        session.dataSource.register(FaultySource)
        yield session


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, _python_path: None) -> Iterator[Any]:
    """A standalone master with two workers that have addresses of their own, and speculation."""
    with standalone_session(tmp_path_factory.mktemp("spark")) as session:
        session.dataSource.register(FaultySource)
        yield session


@pytest.fixture
def namespace(address: str) -> str:
    """A new one."""
    name = f"spark-{next(_numbers)}"
    with AdminClient(address) as admin:
        admin.create_namespace(name)
    return name


@pytest.fixture
def client(address: str) -> Iterator[Client]:
    with Client(address) as client:
        yield client


@pytest.fixture
def states(client: Client, namespace: str) -> dict[str, str]:
    """The ids of a ready, a delayed, a leased and a dead item of topic `t`, and a ready one of topic `other`."""
    ids = {}
    for state in ("dead", "leased"):
        ids[state] = client.enqueue(namespace, "t", state.encode(), priority=-1)
        [item] = client.dequeue(namespace, "t", lease_ms=600_000, wait_ms=5_000)
        if state == "dead":
            client.nack(namespace, [item], dead_letter=True, reason="poison")
    ids["ready"] = client.enqueue(namespace, "t", b"ready", metadata=b"m", priority=3, trace_context="trace")
    ids["delayed"] = client.enqueue(namespace, "t", b"delayed", delay_ms=600_000)
    ids["other"] = client.enqueue(namespace, "other", b"other")
    return ids
