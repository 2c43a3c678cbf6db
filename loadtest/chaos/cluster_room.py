"""The room of a chaotic cluster: servers, hosts that share their shards, and a network before each of them."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from foqs import AdminClient
from foqs.client.retry import RetryPolicy
from foqs.dev.local_server import LocalServer
from foqs.model.errors import FoqsError
from loadtest.chaos.cluster_links import Links, links
from tests.support.faults import FaultError
from tests.support.faults.cluster import Databases, make_databases, make_namespace
from tests.support.faults.network import BadNetwork, Connect, Streams
from tests.support.faults.programs import FOQS, HostProgram, free_port
from tests.support.waiting import until_true
from tests.support.zookeeper import ZookeeperServer

SHARDS_PER_HOST = 2
_BUFFER_POOL_MIB = 32
_LOG_FILE_MIB = 16
_ANSWER_MS_MAX = 500
_SHARED_S_MAX = 90.0


class Layout(NamedTuple):
    """How large a cluster is. Hosts and servers are numbered from 1; one more host comes and goes as a guest.

    Server 0 has the meta database alone.
    """

    hosts: int
    servers: int
    can_part: bool = False
    """Hosts are in network namespaces."""
    can_lose: bool = False
    """Packets can be lost there."""
    by_zookeeper: bool = False
    """Hosts find each other by a ZooKeeper server, which has the number after those of the servers."""

    @property
    def guest(self) -> int:
        return self.hosts + 1

    @property
    def server_numbers(self) -> range:
        """Of all that hosts need: the meta database, the servers of shards, and ZooKeeper."""
        return range(1 + self.servers + self.by_zookeeper)

    @property
    def shards(self) -> dict[int, int]:
        """Server by shard."""
        return {shard: 1 + shard % self.servers for shard in range(SHARDS_PER_HOST * self.hosts)}


class ClusterRoom:
    """As a context manager everything is started and stopped. Servers belong to the thread that entered.

    Each host has a network of its own to each server (`server_networks`, by host and server), one by which other hosts
    reach it (`doors`), and one for its clients.
    """

    def __init__(self, layout: Layout, command: Sequence[str] = (str(FOQS),)) -> None:
        """`command` is the program of the hosts."""
        self.layout = layout
        self.home = Path(tempfile.mkdtemp(prefix="foqs-chaos-"))
        self.servers: list[LocalServer] = []
        self.zookeeper: ZookeeperServer | None = None
        self.server_networks: dict[tuple[int, int], BadNetwork] = {}
        self.doors: dict[int, BadNetwork] = {}
        self.client_networks: dict[int, BadNetwork] = {}
        self.links = Links()
        self._command = command
        self._ports = {host: free_port() for host in self._numbers}
        self._hosts: dict[int, HostProgram] = {}
        self._events_before: Counter[str] = Counter()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.callback(shutil.rmtree, self.home)
            self.links = stack.enter_context(links(self.layout.guest, with_namespaces=self.layout.can_part))
            for number in range(self.layout.servers + 1):
                server = LocalServer(
                    self.home / f"server-{number}", buffer_pool_mib=_BUFFER_POOL_MIB, log_file_mib=_LOG_FILE_MIB
                )
                self.servers.append(stack.enter_context(server))
            if self.layout.by_zookeeper:
                (self.home / "zookeeper").mkdir()
                self.zookeeper = stack.enter_context(ZookeeperServer(self.home / "zookeeper"))
            self._databases()
            for host in self._numbers:
                self._make_networks(host, stack)
            stack.callback(self._kill_all)
            for host in range(1, self.layout.hosts + 1):
                self.start_host(host)
            make_namespace(self.address_of(1))
            self.wait_until_shared()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self._stack.close()

    @property
    def direct_urls(self) -> dict[int, str]:
        """The shards as root, past all networks."""
        return {shard: self.servers[server].url(f"shard_{shard}") for shard, server in self.layout.shards.items()}

    @property
    def client_addresses(self) -> list[str]:
        """The hosts by way of their clients' networks."""
        return [f"127.0.0.1:{self.client_networks[host].port}" for host in range(1, self.layout.hosts + 1)]

    @property
    def programs(self) -> dict[int, HostProgram]:
        """The hosts that run, by number."""
        return dict(self._hosts)

    def address_of(self, host: int) -> str:
        """Where the host listens, past all proxies."""
        return f"{self.links.host_address(host)}:{self._ports[host]}"

    def start_host(self, host: int) -> None:
        urls = {
            shard: self._url(self.server_networks[host, server], f"shard_{shard}")
            for shard, server in self.layout.shards.items()
        }
        door = self.doors[host]
        variables = {"FOQS_ADVERTISE_ADDRESS": f"{door.address}:{door.port}", "FOQS_ALLOW_OPEN": "true"}
        if self.layout.by_zookeeper:
            network = self.server_networks[host, self.layout.server_numbers[-1]]
            variables["FOQS_MEMBERSHIP"] = f"zookeeper://{network.address}:{network.port}/chaos"
        self._hosts[host] = HostProgram(
            f"host-{host}",
            self._ports[host],
            self._url(self.server_networks[host, 0], "meta"),
            urls,
            variables,
            command=self.links.command(host, self._command),
            listen=self.links.host_address(host),
        )

    def kill_host(self, host: int) -> None:
        program = self._hosts.pop(host, None)
        if program is not None:
            program.close()
            self._events_before += program.events

    def logged(self) -> Counter[str]:
        """How often hosts have logged each event."""
        return sum([program.events for program in self._hosts.values()], self._events_before)

    def owned(self, host: int) -> frozenset[int]:
        """The shards that the host says it serves in health; none if it does not answer."""
        try:
            with AdminClient(
                self.address_of(host),
                timeout_ms=_ANSWER_MS_MAX,
                connect_timeout_ms=_ANSWER_MS_MAX,
                retry=RetryPolicy(deadline_ms=0),
            ) as admin:
                return frozenset(shard.shard_id for shard in admin.host_status().shards if shard.state == "owned")
        except FoqsError:
            return frozenset()

    def wait_until_shared(self) -> None:
        """Return when all hosts run and have the same number of shards, and each is served. Raises FaultError."""

        def is_shared() -> bool:
            owned = [self.owned(host) for host in self._hosts]
            return all(len(some) == SHARDS_PER_HOST for some in owned) and frozenset().union(*owned) == frozenset(
                self.layout.shards
            )

        try:
            until_true(is_shared, _SHARED_S_MAX)
        except AssertionError as error:
            state = {host: sorted(self.owned(host)) for host in self._hosts}
            raise FaultError(f"after {_SHARED_S_MAX:.0f} s the hosts have not shared the shards: {state}") from error

    @property
    def _numbers(self) -> range:
        return range(1, self.layout.guest + 1)

    @staticmethod
    def _url(network: BadNetwork, database: str) -> str:
        return f"mysql+pymysql://root@{network.address}:{network.port}/{database}"

    def _databases(self) -> Databases:
        return make_databases(
            self.servers[0], {shard: self.servers[server] for shard, server in self.layout.shards.items()}
        )

    def _make_networks(self, host: int, stack: ExitStack) -> None:
        to_host = partial(asyncio.open_connection, self.links.host_address(host), self._ports[host])
        connects: list[Connect] = [partial(_to_server, server) for server in self.servers]
        if self.zookeeper is not None:
            connects.append(partial(asyncio.open_connection, "127.0.0.1", self.zookeeper.port))
        for number, connect in enumerate(connects):
            network = BadNetwork(connect, f"{host}-server-{number}", self.links.server_side)
            self.server_networks[host, number] = stack.enter_context(network)
        self.doors[host] = stack.enter_context(BadNetwork(to_host, f"{host}-door", self.links.door_address(host)))
        self.client_networks[host] = stack.enter_context(BadNetwork(to_host, f"{host}-clients"))

    def _kill_all(self) -> None:
        for host in list(self._hosts):
            self.kill_host(host)


async def _to_server(server: LocalServer) -> Streams:
    return await asyncio.open_unix_connection(str(server.data_dir / "mysql.sock"))
