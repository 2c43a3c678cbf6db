"""One host on one server with four shards, and what the host has of memory."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from foqs import AdminClient
from foqs.dev.local_server import LocalServer
from loadtest.bench.usage import memory_mib
from loadtest.chaos.room import Room
from loadtest.cores import Cores
from tests.support.faults.cluster import make_databases, wait_until_owned
from tests.support.faults.own_thread import OwnThread
from tests.support.faults.programs import HostProgram, free_port

SHARD_COUNT = 4
_CACHE_MIB = 1_024
"""Less than the four million items of five minutes of overload need: the backlog has to come from the disk."""
_LOOK_EVERY_S = 1.0
NO_QUOTA = 1_000_000_000


class Stand:
    """As a context manager everything is started and stopped, with cores for the servers and others for clients."""

    def __init__(self, prepare: Callable[[str], None] = lambda meta_url: None) -> None:
        """`prepare` may fill the meta database before the host starts."""
        self.port = free_port()
        self.metrics_port = free_port()
        self.host: HostProgram
        self._start: Callable[[], HostProgram]
        self.mysql_pid = 0
        self._prepare = prepare
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-stress-")))
            cores = stack.enter_context(Cores())
            server = stack.enter_context(LocalServer(home / "mysql", buffer_pool_mib=_CACHE_MIB, log_file_mib=512))
            self.mysql_pid = server.pid
            databases = make_databases(server, dict.fromkeys(range(SHARD_COUNT), server))
            self._prepare(databases.meta_url)
            variables = {"FOQS_METRICS_PORT": str(self.metrics_port)}
            self._start = lambda: HostProgram("host-1", self.port, databases.meta_url, databases.shard_urls, variables)
            self.host = self._start()
            cores.go_on_with_clients()
            stack.callback(self._close_host)
            wait_until_owned(self.host.address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    def _close_host(self) -> None:
        self.host.close()

    def kill_and_start_again(self) -> None:
        """Kill the host with kill -9, and start another one in its place."""
        self.host.kill()
        self.host.close()
        self.host = self._start()

    def make_namespace(self, name: str, enqueues_per_minute_max: int = NO_QUOTA) -> None:
        with AdminClient(self.host.address) as admin:
            admin.create_namespace(name, enqueues_per_minute_max=enqueues_per_minute_max)


def quiet_room(*, with_small_disk: bool) -> Room:
    """A room of the chaos whose host has the clock of the machine: the library that moves it makes each look slow."""
    room = Room(with_small_disk)
    room.faketime = None
    return room


class Memory(OwnThread):
    """Looks at a process once a second while it is entered. `mib`: what it had, in order."""

    def __init__(self, pid: int) -> None:
        super().__init__("memory")
        self.mib: list[float] = []
        self._pid = pid

    def _run(self) -> None:
        while True:
            self.mib.append(memory_mib(self._pid))
            if self._stopped.wait(_LOOK_EVERY_S):
                return
