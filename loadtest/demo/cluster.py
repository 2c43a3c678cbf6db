"""Two hosts that share the shards on two MySQL servers, all in processes of their own, which leave nothing behind."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from signal import SIGTERM
from types import TracebackType
from typing import Self

from foqs import AdminClient, FoqsError
from foqs.dev.local_server import LocalServer
from loadtest.demo.clients import NAMESPACE
from tests.support.faults.cluster import make_databases
from tests.support.faults.programs import HostProgram, free_port

HOSTS = 2
SERVERS = 2
SHARDS = 4
_START_S_MAX = 60
_POLL_S = 0.1


class DemoCluster:
    """`addresses` of the hosts once they run. Everything it made is gone on exit."""

    def __init__(self) -> None:
        self.addresses: list[str] = []
        self._servers: list[LocalServer] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="foqs-demo-")))
            self._servers = [
                stack.enter_context(LocalServer(home / f"server-{number}")) for number in range(1, SERVERS + 1)
            ]
            databases = make_databases(
                self._servers[0], {shard_id: self._servers[shard_id % SERVERS] for shard_id in range(SHARDS)}
            )
            for number in range(1, HOSTS + 1):
                host = HostProgram(f"host-{number}", free_port(), databases.meta_url, databases.shard_urls)
                stack.callback(_drain, host)
                self.addresses.append(host.address)
            self._wait_for_shards()
            with AdminClient(self.addresses[0]) as admin:
                admin.create_namespace(NAMESPACE)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def owners(self) -> dict[int, int]:
        """The number of the host that serves each shard."""
        owners: dict[int, int] = {}
        for number, address in enumerate(self.addresses):
            with AdminClient(address) as admin:
                owned = [shard.shard_id for shard in admin.host_status().shards if shard.state == "owned"]
            owners |= dict.fromkeys(owned, number)
        return owners

    def rows_left(self) -> dict[str, int]:
        """Rows with items, by shard database, asked of MySQL itself: those of one item, and those that many share."""
        found = {}
        for shard_id in range(SHARDS):
            name = f"shard_{shard_id}"
            with self._servers[shard_id % SERVERS].connect(name) as session, session.cursor() as cursor:
                cursor.execute("SELECT (SELECT COUNT(*) FROM item) + (SELECT COUNT(*) FROM pack)")
                found[name] = int(cursor.fetchone()[0])
        return found

    def _wait_for_shards(self) -> None:
        """Until each host has its part of the shards; none moves after that."""
        deadline_s = time.monotonic() + _START_S_MAX
        state: Mapping[int, int] | FoqsError = {}
        while time.monotonic() < deadline_s:
            try:
                state = self.owners()
            except FoqsError as error:
                state = error
            else:
                if _is_shared(list(state.values())):
                    return
            time.sleep(_POLL_S)
        raise SystemExit(f"the hosts have not shared the shards after {_START_S_MAX} s: {state}")


def _is_shared(owners: Sequence[int]) -> bool:
    return all(owners.count(number) == SHARDS // HOSTS for number in range(HOSTS))


def _drain(host: HostProgram) -> None:
    """As a supervisor ends it; whatever it does, nothing is left."""
    try:
        if host.is_running:
            host.signal(SIGTERM)
            host.wait()
    finally:
        host.close()
