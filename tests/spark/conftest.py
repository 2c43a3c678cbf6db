"""One Spark session and one host for all tests here: both are slow to start."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from foqs import AdminClient, Client
from loadtest.demo.cluster import DevCluster
from loadtest.spark.session import local_session
from tests.support.databases import BINARY_VARIABLE, server_binary

ROOT = Path(__file__).parents[2]
_numbers = count(1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Two tasks at a time, each tried three times. Never skipped: without Spark the tests prove nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))  # Python workers find the writers of the tests.
        with local_session(tmp_path_factory.mktemp("spark")) as session:
            yield session


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """A host with a MySQL server of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BINARY_VARIABLE, str(server_binary().path))
        with DevCluster() as cluster:
            yield cluster.address


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
