"""One real host for the tests of a file, each of which finds it empty.

To start a host takes ten times as much as most calls that a test then makes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from foqs.bootstrap import Host
from foqs.config import HostConfig
from tests.support.databases import Databases
from tests.support.running_host import RunningHost, clients_of


class SharedHost:
    """The host that runs now, if one does. It ends before the databases are wiped."""

    current: SharedHost | None = None

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._loop = asyncio.get_running_loop()
        self._host: Host | None = None
        SharedHost.current = self

    @asynccontextmanager
    async def running(self) -> AsyncIterator[RunningHost]:
        """The host with the namespace `jobs` and nothing else, and with clients of its own."""
        host = self._host
        if host is None:
            self._databases.wipe()
            shards = dict(self._databases.shard_urls)
            host = Host(HostConfig(meta_url=self._databases.meta_url, shards=shards, port=0, host_name="test-host"))
            await host.start()
            self._host = host
        async with clients_of(host, self._databases.shard_urls) as running:
            await running.begin_anew()
            yield running

    async def stop(self) -> None:
        host, self._host = self._host, None
        if host is not None:
            await host.drain()
            await host.stop()

    def stop_before_a_wipe(self) -> None:
        self._loop.run_until_complete(self.stop())
