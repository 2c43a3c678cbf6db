"""A private MySQL server for tests that may kill it, and processes that end with their test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing
from typing import Protocol

import pytest

from foqs.dev.local_server import BINARY_VARIABLE, LocalServer
from foqs.model.namespace import NamespaceSettings
from foqs.storage.meta.meta_store import MetaStore
from tests.support.databases import Databases, prepared_server, server_binary
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram
from tests.support.impatient_foqs import COMMAND


class StartHost(Protocol):
    def __call__(
        self,
        name: str,
        port: int,
        shard_urls: Mapping[int, str] | None = None,
        variables: Mapping[str, str] | None = None,
    ) -> HostProgram: ...


@pytest.fixture(scope="session", autouse=True)
def _server_of_the_tests() -> Iterator[None]:
    """Programs that the tests start run their servers with it too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(BINARY_VARIABLE, str(server_binary().path))
        yield


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalServer]:
    with prepared_server(tmp_path_factory.mktemp("mysql")) as server:
        yield server


@pytest.fixture(scope="module")
def _own_databases(own_server: LocalServer) -> Databases:
    return Databases(own_server)


@pytest.fixture
def own_databases(_own_databases: Databases) -> Databases:
    """Migrated and empty, on a server that a test may kill if it starts it again."""
    _own_databases.wipe()
    return _own_databases


@pytest.fixture
def start_host(own_databases: Databases) -> Iterator[StartHost]:
    """Start a host of this name on this port, of all shards by their own URLs; which has the namespace.

    What it claims ahead of consumers is ready again some seconds after it was killed: see `impatient_foqs`.
    """
    with ExitStack() as programs:

        def start(
            name: str,
            port: int,
            shard_urls: Mapping[int, str] | None = None,
            variables: Mapping[str, str] | None = None,
        ) -> HostProgram:
            with closing(MetaStore(own_databases.meta_url)) as meta:
                if not meta.namespaces.read().namespaces:  # A host that gets no shard could not make one.
                    meta.namespaces.insert(NAMESPACE, NamespaceSettings(), 0)
            urls = shard_urls or own_databases.shard_urls
            host = HostProgram(name, port, own_databases.meta_url, urls, variables, command=COMMAND)
            programs.callback(host.close)
            return host

        yield start
