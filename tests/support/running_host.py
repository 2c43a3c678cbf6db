"""A real host on real shards, and everything that talks to it over its port."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from foqs.bootstrap import Host
from foqs.client.aio import AsyncAdminClient, AsyncClient
from foqs.client.queue_items import Item, NewItem
from foqs.client.retry import RetryPolicy
from foqs.config import HostConfig
from foqs.model import limits
from foqs.model.calls import TopicStats
from foqs.model.errors import NotFoundError
from foqs.shard import mysql_server
from foqs.storage.sessions.session import connect
from foqs.wire.codec import Reply, structs
from tests.histories.stored import item_rows
from tests.support.raw_client import RawClient
from tests.support.waiting import PATIENCE_MS, PATIENCE_S, longer, until

ONCE = RetryPolicy(deadline_ms=0)
"""No repetition: tests see the host's own answer."""


@dataclass(frozen=True, slots=True)
class RunningHost:
    """`client` and `admin` repeat nothing; `raw` sends what the clients would not."""

    host: Host
    client: AsyncClient
    admin: AsyncAdminClient
    raw: RawClient
    shard_urls: Mapping[int, str]

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.host.port}"

    async def call(self, method: str, request: Any) -> Reply:
        """One call with any request struct of the wire; the answer as it came."""
        return await self.raw.call(method, request)

    async def enqueue_on_all_shards(self, namespace: str, batches: list[list[NewItem]]) -> list[str]:
        """Enqueue the batches, each on the next shard; the ids in order.

        By itself the host stays on one shard for many items.
        """
        with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
            results = await asyncio.gather(*[self.client.enqueue_many(namespace, batch) for batch in batches])
        assert not any(result.errors for result in results)
        ids = [item_id for result in results for item_id in result.ids]
        assert {shard_of(item_id) for item_id in ids} == set(self.shard_urls)
        return ids

    async def begin_anew(self) -> None:
        """Delete all namespaces with their items and make `jobs` again, which takes less than to start another host."""
        for namespace in [one.name async for one in self.admin.list_namespaces()]:
            ids = [item.id async for item in self.admin.iterate_items(namespace)]
            for first in range(0, len(ids), limits.BATCH_ITEMS_MAX):
                await self.admin.delete_items(namespace, ids[first : first + limits.BATCH_ITEMS_MAX])
            await self.admin.delete_namespace(namespace)
        await self.admin.create_namespace("jobs")

    async def leased(self, count: int, topic: str = "t", lease_ms: int = 600_000) -> list[Item]:
        """Items of the namespace `jobs` that are there, under leases that outlast the test."""
        items: list[Item] = []
        async with asyncio.timeout(PATIENCE_S):
            while len(items) < count:
                items += await self.client.dequeue(
                    "jobs", topic, count - len(items), lease_ms=lease_ms, wait_ms=limits.WAIT_MS_MAX
                )
        return items

    async def short_lived(self, count: int, topic: str = "t") -> list[Item]:
        """New items of the namespace `jobs` under leases, whose TTLs end in a second or, on a busy machine, later."""
        for ttl_ms in longer(1_000):
            ids = (await self.client.enqueue_many("jobs", [NewItem(topic, b"x", ttl_ms=ttl_ms)] * count)).ids
            items = await self.client.dequeue("jobs", topic, count, wait_ms=500)
            if len(items) == count:
                return items
            await self.admin.delete_items("jobs", ids, return_errors=True)
        raise AssertionError("no item was delivered before its TTL had ended")

    async def until_expired(self, item_id: str) -> None:
        """Return when the TTL of an item of the namespace `jobs` is over."""
        try:
            expires_at_ms = (await self.admin.get_item("jobs", item_id)).expires_at_ms
        except NotFoundError:
            return  # It has expired, and is gone already.
        await until(lambda: time.time_ns() // 1_000_000 > expires_at_ms)

    async def stats(self, namespace: str, prefix: str = "") -> dict[str, TopicStats]:
        return {stats.topic: stats async for stats in self.client.topics(namespace, prefix)}

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        return rows(self.shard_urls, statement)

    def items_stored(self) -> int:
        return sum(len(item_rows(url)) for url in self.shard_urls.values())


@asynccontextmanager
async def running_host(
    meta_url: str,
    shard_urls: Mapping[int, str],
    *,
    name: str = "test-host",
    namespace: str | None = "jobs",
    **settings: Any,
) -> AsyncIterator[RunningHost]:
    """A host with the namespace `jobs`, another one or none; drained at the end."""
    host = Host(HostConfig(meta_url=meta_url, shards=dict(shard_urls), port=0, host_name=name, **settings))
    await host.start()
    try:
        async with clients_of(host, shard_urls) as running:
            admin = running.admin
            if namespace is not None and namespace not in [one.name async for one in admin.list_namespaces()]:
                await admin.create_namespace(namespace)
            yield running
        await host.drain()
    finally:
        await host.stop()


@asynccontextmanager
async def clients_of(host: Host, shard_urls: Mapping[int, str]) -> AsyncIterator[RunningHost]:
    """Clients of a host that is started."""
    address = f"127.0.0.1:{host.port}"
    async with (
        AsyncAdminClient(address, retry=ONCE, timeout_ms=PATIENCE_MS, connect_timeout_ms=PATIENCE_MS) as admin,
        AsyncClient(address, retry=ONCE, timeout_ms=PATIENCE_MS, connect_timeout_ms=PATIENCE_MS) as client,
        RawClient.connect("127.0.0.1", host.port) as raw,
    ):
        # A connection without a first frame is closed before long, and the test may need it late.
        await raw.call("getHostStatus", structs.HostStatusRequest())
        yield RunningHost(host, client, admin, raw, shard_urls)


async def has_read(host: RunningHost) -> None:
    """Return when it has read the namespaces and policies of the meta database once more, from now on."""
    namespaces, ended = host.host._namespaces, asyncio.Event()
    refresh = namespaces.refresh

    async def counted() -> None:
        await refresh()
        ended.set()

    with patch.object(namespaces, "refresh", counted):
        async with asyncio.timeout(PATIENCE_S):
            await ended.wait()


def rows(shard_urls: Mapping[int, str], statement: str) -> list[tuple[Any, ...]]:
    """What the statement reads on every shard, past the host."""
    found: list[tuple[Any, ...]] = []
    for url in shard_urls.values():
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute(statement)
            found += cursor.fetchall()
    return found


def shard_of(item_id: str) -> int:
    return int(item_id.split("-")[0], 16)


@contextmanager
def host_beside(meta_url: str, shard_urls: dict[int, str], namespace: str) -> Iterator[str]:
    """The address of a host that runs in a thread of its own."""
    ready = threading.Event()
    told: list[tuple[asyncio.AbstractEventLoop, asyncio.Event, str]] = []

    async def serve() -> None:
        stop = asyncio.Event()
        async with running_host(meta_url, shard_urls, namespace=namespace) as host:
            told.append((asyncio.get_running_loop(), stop, host.address))
            ready.set()
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=[serve()], name="host-beside")
    thread.start()
    try:
        assert ready.wait(PATIENCE_S), "the host did not start"
        yield told[0][2]
    finally:
        for loop, stop, _ in told:
            loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
