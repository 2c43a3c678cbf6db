"""A gate of serial topics stands while the hosts of both of its shards are killed: order, one item out, no loss."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress

import pytest

from foqs import AdminClient, Client, FoqsError, Item, RetryPolicy, ShardUse
from foqs.model.serial import serial_slot
from foqs.storage.meta.meta_store import MetaStore
from tests.e2e.conftest import StartHost
from tests.support.databases import Databases
from tests.support.faults.programs import free_port
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.slow]

NAMESPACE, TOPIC = "orders", "ledger"
OLD_COUNT, NEW_COUNT = 5, 5
PATIENT = RetryPolicy(deadline_ms=60_000)
PATIENCE_S = 120.0
LEASE_MS = 60_000
"""Longer than the moves and kills that an item under lease waits for."""


def gates_count(databases: Databases) -> int:
    with closing(MetaStore(databases.meta_url)) as meta:
        return len(meta.gates.read())


def counts_of(databases: Databases) -> Counter[int]:
    """The number of slots by shard, once no slots move."""
    with closing(MetaStore(databases.meta_url)) as meta:
        told = meta.namespaces.read()
    return Counter(told.slots.shards) if told.slot_move is None else Counter()


def owner_of(databases: Databases, shard_id: int) -> str:
    with closing(MetaStore(databases.meta_url)) as meta:
        return meta.shards.owner(shard_id) or ""


def take(client: Client) -> Item:
    """The next item, after as many calls as it takes."""
    found: list[Item] = []

    def try_it() -> bool:
        with suppress(FoqsError):
            found.extend(client.dequeue(NAMESPACE, TOPIC, count=3, lease_ms=LEASE_MS, wait_ms=1_000))
        return bool(found)

    until_true(try_it, PATIENCE_S)
    assert len(found) == 1
    return found[0]


def test_serial_topics_keep_their_order_while_hosts_with_a_standing_gate_are_killed(
    own_databases: Databases, start_host: StartHost
) -> None:
    urls = {n: url for n, url in own_databases.shard_urls.items() if n < 2}
    ports = [free_port(), free_port()]
    hosts = {f"host-{at}": start_host(f"host-{at}", port, urls) for at, port in enumerate(ports)}
    addresses = [f"127.0.0.1:{port}" for port in ports]

    def kill_owner_of(shard_id: int) -> None:
        """Kill the host of a shard, and start another process of its name."""
        name = owner_of(own_databases, shard_id).partition("#")[0]
        hosts[name].kill()
        hosts[name] = start_host(name, ports[int(name[-1])], urls)

    with (
        Client(",".join(addresses), retry=PATIENT) as client,
        AdminClient(",".join(addresses), retry=PATIENT) as admin,
    ):
        admin.create_namespace(NAMESPACE)
        admin.set_topic_policy(NAMESPACE, TOPIC, serial=True)
        numbers = iter(range(OLD_COUNT + NEW_COUNT))

        def enqueue(count: int) -> None:
            for _ in range(count):
                client.enqueue(NAMESPACE, TOPIC, b"%d" % next(numbers))

        enqueue(OLD_COUNT)
        with closing(MetaStore(own_databases.meta_url)) as meta:
            giver = meta.namespaces.read().slots.shards[serial_slot(NAMESPACE, TOPIC)]
        taker = 1 - giver
        seen = [take(client)]
        admin.update_shard(giver, state=ShardUse.DRAINING)
        until_true(lambda: counts_of(own_databases)[taker] == 1024, PATIENCE_S)
        assert gates_count(own_databases) == 1, "one item is under lease, and four wait"
        enqueue(NEW_COUNT)
        kill_owner_of(taker)
        client.ack(NAMESPACE, [seen[0].receipt])
        seen.append(take(client))
        kill_owner_of(giver)
        client.ack(NAMESPACE, [seen[1].receipt])
        for at in range(2, OLD_COUNT + NEW_COUNT):
            seen.append(take(client))
            if at == OLD_COUNT - 1:
                assert gates_count(own_databases) == 1, "the last of the old items is under lease"
                kill_owner_of(giver)
            client.ack(NAMESPACE, [seen[-1].receipt])
        assert [int(item.payload) for item in seen] == list(range(OLD_COUNT + NEW_COUNT))
        until_true(lambda: gates_count(own_databases) == 0, PATIENCE_S)
        assert client.dequeue(NAMESPACE, TOPIC, count=1, wait_ms=100) == []
