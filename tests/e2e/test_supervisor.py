"""A host as systemd runs it: it reports its start, its reload, its beats and its end to NOTIFY_SOCKET."""

from __future__ import annotations

import http.client
import signal
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml

from tests.support.databases import Databases
from tests.support.faults.programs import HostProgram, free_port
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.database, pytest.mark.deep]

_ROOT = Path(__file__).parents[2]
_WATCHDOG_US = 200_000


class Supervisor:
    """The socket of a supervisor, and the reports that came."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(path))
        self._socket.settimeout(PATIENCE_S)

    def close(self) -> None:
        self._socket.close()

    def next(self, is_wanted: Callable[[list[str]], bool]) -> list[str]:
        """The lines of the first report that is wanted."""
        until_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < until_s:
            lines = self._socket.recv(4_096).decode().splitlines()
            if is_wanted(lines):
                return lines
        raise TimeoutError("the host has not reported what is wanted")

    def next_with(self, state: str) -> list[str]:
        return self.next(lambda lines: state in lines)


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    with closing(Supervisor(tmp_path / "notify")) as made:
        yield made


def test_a_supervisor_hears_of_start_beats_reload_and_end(own_databases: Databases, supervisor: Supervisor) -> None:
    variables = {"NOTIFY_SOCKET": str(supervisor.path), "WATCHDOG_USEC": str(_WATCHDOG_US)}
    port = free_port()
    host = HostProgram("host-1", port, own_databases.meta_url, own_databases.shard_urls, variables)
    try:
        ready = supervisor.next_with("READY=1")
        serves = f"STATUS=serves {len(own_databases.shard_urls)} shards on port {port}"
        if serves not in ready:  # It had not all shards yet when it began to serve.
            supervisor.next_with(serves)
        began_s = time.monotonic()
        for _ in range(10):
            assert supervisor.next_with("WATCHDOG=1")
        assert time.monotonic() - began_s >= 9 * _WATCHDOG_US / 4 / 1e6, "beats come at their time, not in a rush"
        host.signal(signal.SIGHUP)
        reloads = supervisor.next_with("RELOADING=1")
        assert reloads[1].startswith("MONOTONIC_USEC=")
        supervisor.next_with("READY=1")
        host.signal(signal.SIGTERM)
        assert supervisor.next_with("STOPPING=1")[1] == "STATUS=drains and stops: SIGTERM"
        host.wait()
    finally:
        host.close()


def test_the_probes_of_kubernetes_are_answered_by_a_host(own_databases: Databases) -> None:
    (pods,) = yaml.safe_load_all((_ROOT / "deploy/kubernetes/statefulset.yaml").read_text())
    (container,) = pods["spec"]["template"]["spec"]["containers"]
    paths = [container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")]
    port = free_port()
    variables = {"FOQS_METRICS_PORT": str(port)}
    host = HostProgram("host-1", free_port(), own_databases.meta_url, own_databases.shard_urls, variables)
    try:
        for path in [*paths, "/metrics"]:
            until_s = time.monotonic() + PATIENCE_S
            while (status := _status(port, path)) == 503 and time.monotonic() < until_s:
                pass  # It is not ready before it has a shard.
            assert status == 200, path
        assert _status(port, "/readyzz") == 404
    finally:
        host.close()


def _status(port: int, path: str) -> int:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
        connection.request("GET", path)
        return connection.getresponse().status
