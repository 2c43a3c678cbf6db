"""How long an item needs from the host that has it to a consumer that waits on another one.

    python -m loadtest.elsewhere [--rate 2 --rate 20 --rate 200] [--seconds 4]

Two hosts of one machine share a private server, each has a shard. The producer is at one, the consumer at the other.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from foqs.bootstrap import Host
from foqs.client.aio import AsyncAdminClient, AsyncClient
from foqs.config import HostConfig
from foqs.dev.local_server import LocalServer
from foqs.storage.schema.migrations import SchemaKind, apply

_NAMESPACE, _TOPIC = "elsewhere", "mail"
_WAIT_MS = 2_000
_ITEMS_AT_ONCE = 10
_WARM_UP = 10
_SETTLED_S = 30.0


@click.command()
@click.option("--rate", "rates", type=float, multiple=True, default=(2.0, 20.0, 200.0), show_default=True)
@click.option("--seconds", type=float, default=4.0, show_default=True, help="Of each rate.")
def main(rates: Sequence[float], seconds: float) -> None:
    """Print the time from an enqueue's begin to the item's arrival, by rate in items a second."""
    table = Table("items/s", "items", "p50, ms", "p99, ms", "most, ms")
    for rate, waits_ms in asyncio.run(_measure(rates, seconds)).items():
        waits_ms.sort()
        shown = [waits_ms[int(len(waits_ms) * part)] for part in (0.5, 0.99)] + waits_ms[-1:]
        table.add_row(f"{rate:g}", str(len(waits_ms)), *[f"{wait_ms:.1f}" for wait_ms in shown])
    Console().print(table)


async def _measure(rates: Sequence[float], seconds: float) -> dict[float, list[float]]:
    with tempfile.TemporaryDirectory(prefix="foqs-elsewhere-") as home, LocalServer(Path(home) / "data") as server:
        meta, *shards = [server.create_database(name) for name in ("meta", "shard_0", "shard_1")]
        apply(meta, SchemaKind.META)
        for shard in shards:
            apply(shard, SchemaKind.SHARD)
        async with _host(meta, "one", {0: shards[0]}) as one, _host(meta, "other", {1: shards[1]}) as other:
            await _until_shared([one, other])
            async with AsyncAdminClient(f"127.0.0.1:{one.port}") as admin:
                await admin.create_namespace(_NAMESPACE)
            async with (
                AsyncClient(f"127.0.0.1:{one.port}") as producer,
                AsyncClient(f"127.0.0.1:{other.port}") as consumer,
            ):
                await _trial(producer, consumer, 20.0, _WARM_UP)
                return {rate: await _trial(producer, consumer, rate, max(5, int(rate * seconds))) for rate in rates}


@asynccontextmanager
async def _host(meta_url: str, name: str, shards: dict[int, str]) -> AsyncIterator[Host]:
    config = HostConfig(meta_url=meta_url, shards=shards, port=0, host_name=name, allow_undurable_servers=True)
    host = Host(config)
    await host.start()
    try:
        yield host
    finally:
        await host.drain()
        await host.stop()


async def _until_shared(hosts: Sequence[Host]) -> None:
    """Return when all know of each other, and each has a shard."""
    ids = {host.id for host in hosts}
    async with asyncio.timeout(_SETTLED_S):
        while any({owner.host_id for owner in host.owners.owners.values()} != ids for host in hosts):  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def _trial(producer: AsyncClient, consumer: AsyncClient, rate: float, count: int) -> list[float]:
    """The waits of so many items at this rate, in ms."""
    waits_ms: list[float] = []
    done = asyncio.Event()

    async def consume() -> None:
        while len(waits_ms) < count:
            items = await consumer.dequeue(_NAMESPACE, _TOPIC, _ITEMS_AT_ONCE, wait_ms=_WAIT_MS)
            waits_ms.extend([(time.monotonic() - float(item.payload)) * 1000 for item in items])
            if items:
                await consumer.ack(_NAMESPACE, [item.receipt for item in items])
        done.set()

    consuming = asyncio.create_task(consume())
    chance = random.Random(os.getpid())
    for _ in range(count):
        await asyncio.sleep(chance.expovariate(rate))
        await producer.enqueue(_NAMESPACE, _TOPIC, str(time.monotonic()).encode())
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_SETTLED_S):
            await done.wait()
    consuming.cancel()
    return waits_ms


if __name__ == "__main__":
    main()
