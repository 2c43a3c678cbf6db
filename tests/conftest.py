"""Fixtures for all tests. A test that uses a database fixture is marked `database` by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadFileScheduling

from foqs.dev.local_server import LocalServer, LocalServerError
from tests.support import databases
from tests.support.zookeeper import ZookeeperServer

_DATABASE_FIXTURES = {"mysql_server", "databases_of_session", "meta_url", "shard_urls"}
_SIMULATED = "tests/sim/"
_OF_SPARK = "tests/spark/"

# How long an example takes, or is made, says nothing of the code; nor does a chance run of large ones.
settings.register_profile(
    "busy_machine",
    settings(),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
settings.load_profile("busy_machine")


def pytest_report_header() -> str:
    try:
        return f"MySQL server: {databases.server_binary().version}"
    except LocalServerError as error:
        return f"MySQL server: none ({error})"


class _FilesThenSeeds(LoadFileScheduling):
    """A file at a time, whose tests share what they start.

    All files of Spark go to one worker: a JVM takes very long until it is fast, and the next session of the process has
    it again. They take the longest, and come first. Each test of the simulation, which starts nothing, goes by itself.
    They come last, so that side by side all workers have something to do until the end.
    """

    def _split_scope(self, nodeid: str) -> str:
        if nodeid.startswith(_OF_SPARK):
            return _OF_SPARK
        return nodeid if nodeid.startswith(_SIMULATED) else str(super()._split_scope(nodeid))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling | None:
    return _FilesThenSeeds(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith(_SIMULATED) - item.nodeid.startswith(_OF_SPARK))
    for item in items:
        if _DATABASE_FIXTURES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.database)


@pytest.fixture(scope="session")
def mysql_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    """The private server of this test process. Never skipped: without a server the tests prove nothing."""
    try:
        server = databases.prepared_server(tmp_path_factory.mktemp("mysql"))
        server.start()
    except LocalServerError as error:
        pytest.fail(str(error), pytrace=False)
    yield server
    server.stop()


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZookeeperServer]:
    """The ZooKeeper of this test process; who freezes or kills it brings it back."""
    with ZookeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture(scope="session")
def databases_of_session(mysql_server: LocalServer) -> databases.Databases:
    return databases.Databases(mysql_server)


@pytest.fixture
def _wiped_databases(databases_of_session: databases.Databases) -> databases.Databases:
    databases_of_session.wipe()
    return databases_of_session


@pytest.fixture
def meta_url(_wiped_databases: databases.Databases) -> str:
    """The URL of a migrated meta database without rows."""
    return _wiped_databases.meta_url


@pytest.fixture
def shard_urls(_wiped_databases: databases.Databases) -> dict[int, str]:
    """The URLs by shard id of four migrated shard databases without items."""
    return dict(_wiped_databases.shard_urls)
