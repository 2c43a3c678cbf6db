"""Hosts of one cluster as processes, on one server."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from foqs import AdminClient
from foqs.client.retry import RetryPolicy
from foqs.dev.local_server import LocalServer
from loadtest.stress.stand import NO_QUOTA
from tests.support.faults import FaultError
from tests.support.faults.cluster import Databases, make_databases
from tests.support.faults.programs import FOQS, HostProgram, free_port

SHARD_COUNT = 8
_CACHE_MIB = 512
_PATIENCE_S = 60.0
_ONCE = RetryPolicy(deadline_ms=0)


@dataclass(slots=True)
class Hosts:
    """What is there of a cluster. `cluster` makes it."""

    databases: Databases
    command: Sequence[str]
    stack: ExitStack
    variables: Mapping[str, str]
    programs: list[HostProgram] = field(default_factory=list)

    def start(self) -> None:
        """One more, which answers when this returns."""
        name = f"host-{len(self.programs) + 1}"
        urls = self.databases
        host = HostProgram(name, free_port(), urls.meta_url, urls.shard_urls, self.variables, command=self.command)
        self.stack.callback(host.close)
        self.programs.append(host)

    @property
    def addresses(self) -> list[str]:
        return [host.address for host in self.programs]

    def create(self, namespaces: Sequence[str]) -> None:
        """Namespaces that have no quota to speak of."""
        with AdminClient(self.addresses[0]) as admin:
            for name in namespaces:
                admin.create_namespace(name, enqueues_per_minute_max=NO_QUOTA)

    def shards(self) -> list[set[int]]:
        """Those of each host, once all have about as many."""
        until_s = time.monotonic() + _PATIENCE_S
        while time.monotonic() < until_s:
            found = []
            for address in self.addresses:
                with AdminClient(address, retry=_ONCE) as admin:
                    found.append({shard.shard_id for shard in admin.host_status().shards if shard.state == "owned"})
            counts = [len(some) for some in found]
            if sum(counts) == SHARD_COUNT and max(counts) - min(counts) <= 1:
                return found
            time.sleep(0.2)
        raise FaultError(f"the hosts have not shared the shards within {_PATIENCE_S:.0f} s: {found}")


@contextmanager
def cluster(
    count: int, command: Sequence[str] = (str(FOQS),), variables: Mapping[str, str] | None = None
) -> Iterator[Hosts]:
    """So many hosts, which have shared the shards. `command` is another program instead of `foqs`, and `variables` are
    added to its environment.
    """
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-hosts-")))
        server = stack.enter_context(LocalServer(home / "mysql", buffer_pool_mib=_CACHE_MIB, log_file_mib=_CACHE_MIB))
        databases = make_databases(server, dict.fromkeys(range(SHARD_COUNT), server))
        hosts = Hosts(databases, command, stack, variables or {})
        for _ in range(count):
            hosts.start()
        hosts.shards()
        yield hosts
