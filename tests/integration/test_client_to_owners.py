"""Clients go straight to the owners of shards where they know them, and to any host where they do not."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from unittest.mock import patch

import pytest

from foqs import Client
from foqs.client.addresses import Address
from foqs.client.aio import AsyncClient
from foqs.client.queue_items import Item, NewItem
from foqs.model import limits
from foqs.shard import mysql_server
from tests.support.cluster import cluster, shards_of
from tests.support.running_host import RunningHost, shard_of
from tests.support.waiting import until

pytestmark = [pytest.mark.deep]

Hosts = list[RunningHost]


@pytest.fixture
async def hosts(meta_url: str, shard_urls: dict[int, str]) -> AsyncIterator[Hosts]:
    async with cluster(meta_url, shard_urls, 2) as hosts:
        yield hosts


def handed_on(host: RunningHost, verb: str) -> int:
    """How often the host has asked another one for it."""
    counts = host.host._routing._peers.calls_total
    return sum(count for (name, _), count in counts.items() if name == verb)


async def items_of(host: RunningHost, count: int) -> list[Item]:
    """Leased items of the shards of a host."""
    with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
        for number in range(count):
            await host.client.enqueue("jobs", "t", b"%d" % number)
    found: list[Item] = []
    while len(found) < count:
        found += await host.client.dequeue("jobs", "t", count=count - len(found), wait_ms=20_000, lease_ms=600_000)
    assert {shard_of(item.id) for item in found} <= shards_of(host)
    return found


async def test_settlements_go_to_the_owner_of_the_shard(hosts: Hosts) -> None:
    first, second = hosts
    one, other, third = await items_of(second, 3)
    async with AsyncClient(first.address, to_owners=True) as client:
        await client.extend("jobs", one, lease_ms=300_000)
        await client.ack("jobs", one)
        await client.nack("jobs", other)
        await client.release("jobs", third)
    for verb in ("ack", "nack", "extendLease"):
        assert handed_on(first, verb) == 0, verb
    async with AsyncClient(first.address) as client:
        (again,) = await client.dequeue("jobs", "t", wait_ms=20_000)
        await client.ack("jobs", again)
    assert handed_on(first, "ack") == 1, "a client that was not told to goes to the host that it knows"


async def test_a_blocking_client_goes_to_the_owner_as_well(hosts: Hosts) -> None:
    first, second = hosts
    items = await items_of(second, 4)

    def settle() -> None:
        with Client(first.address, to_owners=True) as client:
            client.ack("jobs", items[:2])
            client.nack("jobs", items[2])
            client.ack("jobs", items[3])

    await asyncio.to_thread(settle)
    assert handed_on(first, "ack") == handed_on(first, "nack") == 0


async def test_items_with_dedup_ids_go_to_the_owner_of_their_slot(hosts: Hosts) -> None:
    first, second = hosts
    for host, other in ((first, second), (second, first)):
        async with AsyncClient(host.address, to_owners=True) as client:
            await client.enqueue("jobs", "t", b"x", dedup_id=f"a-{host.address}")
            await client.enqueue_many("jobs", [NewItem("t", b"x", dedup_id=f"{host.address}-{at}") for at in range(20)])
        assert handed_on(host, "enqueue") == handed_on(other, "enqueue") == 0


async def test_a_shard_that_has_moved_costs_a_hop_until_the_map_is_told_anew(hosts: Hosts) -> None:
    first, second = hosts
    items = await items_of(second, 4)
    shard_id = shard_of(items[0].id)
    items = [item for item in items if shard_of(item.id) == shard_id] + [
        item for item in items if shard_of(item.id) != shard_id
    ]
    async with AsyncClient(first.address, to_owners=True) as client:
        await client.extend("jobs", items, lease_ms=600_000)
        assert client._terms.owners is not None
        client._terms.owners.ask_again_at_ms = limits.NEVER_MS  # However long the move takes, the map is the old one.
        await first.admin.update_shard(shard_id, pinned_to="host-0")
        await until(
            lambda: (
                shard_id in shards_of(first)
                # Both know it: one hands on what comes, and of the other the client gets the map.
                and all(host.host.owners.get(shard_id).address == first.address for host in hosts)
            )
        )
        await client.ack("jobs", items[0])
        assert handed_on(second, "ack") == 1, "the last owner hands it on"
        client._terms.owners.ask_again_at_ms = 0
        (after,) = [*await items_on(first, shard_id)]
        await client.ack("jobs", after)
        assert handed_on(second, "ack") == 1
        assert handed_on(first, "ack") == 0
        assert await client.ack("jobs", items[1:], return_errors=True) == {}


async def items_on(host: RunningHost, shard_id: int) -> list[Item]:
    """One leased item of that shard."""
    while True:
        with patch.object(mysql_server, "PLACEMENT_RUN_ITEMS", 1):
            item_id = await host.client.enqueue("jobs", "u", b"x")
        items = await host.client.dequeue("jobs", "u", wait_ms=20_000, lease_ms=600_000)
        if shard_of(item_id) == shard_id:
            return items


async def test_an_owner_that_cannot_be_reached_from_here_is_no_trouble(hosts: Hosts) -> None:
    first, second = hosts
    items = await items_of(second, 3)
    async with AsyncClient(first.address, to_owners=True) as client:
        await client.extend("jobs", items[0], lease_ms=600_000)
        assert client._terms.owners is not None
        owners = client._terms.owners.addresses
        owners.update(dict.fromkeys(owners, Address("127.0.0.1", 1)))
        for item in items:
            await client.ack("jobs", item)
    assert handed_on(first, "ack") == 3

    def settle_blocking(receipts: list[str]) -> None:
        with Client(first.address, to_owners=True) as client:
            client.extend("jobs", receipts[0], lease_ms=600_000)
            assert client._terms.owners is not None
            owners = client._terms.owners.addresses
            owners.update(dict.fromkeys(owners, Address("127.0.0.1", 1)))
            client.ack("jobs", receipts)

    await asyncio.to_thread(settle_blocking, [item.receipt for item in await items_of(second, 2)])


async def test_the_owner_that_dies_is_replaced_by_any_host(hosts: Hosts) -> None:
    first, second = hosts
    (item, other) = await items_of(first, 2)
    async with AsyncClient([second.address, first.address], to_owners=True) as client:
        await client.extend("jobs", item, lease_ms=600_000)
        shard_id = shard_of(item.id)
        await first.admin.update_shard(shard_id, pinned_to="host-1")
        await until(lambda: shard_id in shards_of(second))
        await first.host.drain()
        assert await client.ack("jobs", [item, other], return_errors=True) == {}
