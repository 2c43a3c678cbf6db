"""The room that the chaos goes on in: servers, the networks before them and before the host, and the host."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pymysql

from foqs.dev.local_server import LocalServer
from foqs.storage.schema.migrations import SchemaKind, apply
from tests.support.faults.cluster import make_namespace
from tests.support.faults.network import BadNetwork, Streams
from tests.support.faults.programs import HostProgram, free_port
from tests.support.faults.volume import SmallVolume

SERVER_COUNT = 4
SMALL = SERVER_COUNT - 1
"""This server's disk is small, where such can be mounted."""
SHARDS = {0: 0, 1: 0, 2: 1, 3: 2, 4: SMALL}
"""Server by shard."""
USER = "foqs"
_SMALL_MIB = 220
_BUFFER_POOL_MIB = 32
_LOG_FILE_MIB = 16
_FAKETIME_PLACES = ("/usr/lib/*/faketime/libfaketimeMT.so.1", "/usr/lib*/faketime/libfaketimeMT.so.1")
_SHARED_MEMORY = Path("/dev/shm")
_FAKETIME_SHARED = ("faketime_shm_{}", "sem.faketime_sem_{}")


def find_faketime() -> Path | None:
    """The library of Debian's package libfaketime, or None."""
    root = Path("/")
    found = [path for place in _FAKETIME_PLACES for path in root.glob(place.removeprefix("/"))]
    return found[0] if found else None


class Room:
    """As a context manager everything is started and stopped. `servers[SERVER_COUNT]` has the meta database only.

    Servers are started by the thread that entered: it has to live on.
    """

    def __init__(self, with_small_disk: bool) -> None:
        self.home = Path(tempfile.mkdtemp(prefix="foqs-chaos-"))
        self.small_disk = SmallVolume(_SMALL_MIB) if with_small_disk else None
        self.servers: list[LocalServer] = []
        self.networks: list[BadNetwork] = []
        self.host: HostProgram | None = None
        self.host_port = free_port()
        self._events_before: Counter[str] = Counter()
        """What the hosts before the present one logged."""
        self.faketime = find_faketime()
        self._clock_file = self.home / "clock"
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(shutil.rmtree, self.home)
            small = stack.enter_context(self.small_disk).path if self.small_disk else self.home
            for number in range(SERVER_COUNT + 1):
                home = (small if number == SMALL else self.home) / f"server-{number}"
                server = LocalServer(home, buffer_pool_mib=_BUFFER_POOL_MIB, log_file_mib=_LOG_FILE_MIB)
                self.servers.append(stack.enter_context(server))
                self.networks.append(stack.enter_context(BadNetwork(partial(_to_server, server), f"server-{number}")))
            self.client_network = stack.enter_context(BadNetwork(self._to_host, "clients"))
            self._make_databases()
            self.set_host_clock(0)
            stack.callback(self.kill_host)
            self.start_host()
            make_namespace(self.host_address)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    @property
    def host_address(self) -> str:
        return f"127.0.0.1:{self.host_port}"

    @property
    def client_address(self) -> str:
        """The host by way of the clients' network."""
        return f"127.0.0.1:{self.client_network.port}"

    @property
    def direct_urls(self) -> dict[int, str]:
        """The shards as root, past all networks."""
        return {shard: self.servers[server].url(f"shard_{shard}") for shard, server in SHARDS.items()}

    def root(self, server: int, **arguments: Any) -> pymysql.Connection[Any]:
        """A session that faults are made with."""
        return self.servers[server].connect(read_timeout=10, write_timeout=10, **arguments)

    # ---- the host ----

    def start_host(self) -> None:
        variables = {}
        if self.faketime is not None:
            variables = {
                "LD_PRELOAD": str(self.faketime),
                "FAKETIME_TIMESTAMP_FILE": str(self._clock_file),
                "FAKETIME_CACHE_DURATION": "1",
                "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            }
        urls = {
            shard: f"mysql+pymysql://{USER}@127.0.0.1:{self.networks[server].port}/shard_{shard}"
            for shard, server in SHARDS.items()
        }
        meta_url = f"mysql+pymysql://{USER}@127.0.0.1:{self.networks[SERVER_COUNT].port}/meta"
        self.host = HostProgram("host-1", self.host_port, meta_url, urls, variables)

    def kill_host(self) -> None:
        host, self.host = self.host, None
        if host is not None:
            host.close()
            # What a killed process leaves of libfaketime makes a later one of the same pid wait for ever.
            for name in _FAKETIME_SHARED:
                (_SHARED_MEMORY / name.format(host.pid)).unlink(missing_ok=True)
            self._events_before += host.events

    def logged(self) -> Counter[str]:
        """How often hosts have logged each event."""
        return self._events_before + (self.host.events if self.host is not None else Counter())

    def set_host_clock(self, offset_s: int) -> None:
        """The wall clock of the host, from now on, against that of the machine."""
        partial_file = self._clock_file.with_suffix(".partial")
        partial_file.write_text(f"{offset_s:+d}s\n")
        partial_file.rename(self._clock_file)

    # ---- the servers ----

    def restart_server(self, server: int) -> None:
        """After it was killed, or died."""
        self.servers[server].start()

    def revive_server(self, server: int) -> None:
        """Start it again if it died by itself."""
        try:
            self.root(server).close()
        except pymysql.err.OperationalError:
            self.servers[server].kill()
            self.servers[server].start()

    def _make_databases(self) -> None:
        """The host has an account that may not write to a server that is read-only, as it should in production."""
        apply(self.servers[SERVER_COUNT].url("meta"), SchemaKind.META)
        for url in self.direct_urls.values():
            apply(url, SchemaKind.SHARD)
        for number in range(SERVER_COUNT + 1):
            names = ["meta"] if number == SERVER_COUNT else [f"shard_{s}" for s, at in SHARDS.items() if at == number]
            with self.root(number) as session, session.cursor() as cursor:
                cursor.execute(f"CREATE USER {USER}@localhost")
                for name in names:
                    cursor.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO {USER}@localhost")
                cursor.execute("CREATE DATABASE chaos")
                cursor.execute("CREATE TABLE chaos.ballast (id INT AUTO_INCREMENT PRIMARY KEY, filling MEDIUMBLOB)")

    async def _to_host(self) -> Streams:
        return await asyncio.open_connection("127.0.0.1", self.host_port)


async def _to_server(server: LocalServer) -> Streams:
    return await asyncio.open_unix_connection(str(server.data_dir / "mysql.sock"))
