"""kill -9 of hosts: limits of items in flight, copies for new groups, and dedup ids that living items hold."""

from __future__ import annotations

from collections import Counter
from contextlib import closing, suppress

import pytest

from foqs import AdminClient, Client, FoqsError, Item, NewItem, RetryPolicy
from foqs.model.calls import DedupUntil
from foqs.model.ids import parse
from foqs.model.jobs import JobState
from foqs.storage.meta.meta_store import MetaStore
from tests.e2e.conftest import StartHost
from tests.support.databases import Databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.impatient_foqs import CLAIM_MS_MAX
from tests.support.taking import deliveries
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.slow]

TOPIC = "t"
PATIENT = RetryPolicy(deadline_ms=60_000)
PATIENCE_S = 90.0
LEASE_MS = 120_000
"""Longer than the tests with their kills."""


class Pair:
    """Two hosts, of which any can be killed and started again. `address` names both."""

    def __init__(self, databases: Databases, start_host: StartHost) -> None:
        self._databases = databases
        self._start_host = start_host
        self._ports = {f"host-{number}": free_port() for number in (1, 2)}
        self._hosts: dict[str, HostProgram] = {name: start_host(name, port) for name, port in self._ports.items()}
        self.address = ",".join([host.address for host in self._hosts.values()])
        until_true(lambda: {self.owner_of(shard) for shard in databases.shard_urls} == set(self._ports), PATIENCE_S)

    def owner_of(self, shard_id: int) -> str:
        with closing(MetaStore(self._databases.meta_url)) as meta:
            return (meta.shards.owner(shard_id) or "").partition("#")[0]

    def kill(self, name: str) -> None:
        self._hosts[name].kill()

    def start(self, name: str) -> None:
        self._hosts[name] = self._start_host(name, self._ports[name])


def hold(client: Client, count: int) -> list[Item]:
    """So many items of the topic under long leases, after as many calls as it takes."""
    found: list[Item] = []

    def try_it() -> bool:
        with suppress(FoqsError):
            found.extend(client.dequeue(NAMESPACE, TOPIC, count - len(found), lease_ms=LEASE_MS, wait_ms=1_000))
        return len(found) >= count

    until_true(try_it, PATIENCE_S)
    return found


def is_empty(client: Client, wait_ms: int) -> bool:
    return not client.dequeue(NAMESPACE, TOPIC, 10, lease_ms=LEASE_MS, wait_ms=wait_ms)


def test_a_limit_of_items_in_flight_holds_through_kills_of_hosts_and_permits_come_back(
    own_databases: Databases, start_host: StartHost
) -> None:
    pair, in_flight_max, count = Pair(own_databases, start_host), 3, 40
    with Client(pair.address, retry=PATIENT) as client, AdminClient(pair.address, retry=PATIENT) as admin:
        admin.set_topic_policy(NAMESPACE, TOPIC, in_flight_max=in_flight_max)
        payloads = [b"%d" % number for number in range(count)]
        for payload in payloads:
            client.enqueue(NAMESPACE, TOPIC, payload)
        held = hold(client, in_flight_max)
        done: Counter[bytes] = Counter()
        for _ in range(3):
            killed = pair.owner_of(parse(held[0].id)[0])
            pair.kill(killed)
            # For so long a claim of the killed host is honoured, and the leases that run are longer.
            assert is_empty(client, 2 * CLAIM_MS_MAX), "as many as are possible are out"
            pair.start(killed)
            assert is_empty(client, 1_000)
            client.ack(NAMESPACE, [held[0].receipt])
            done[held.pop(0).payload] += 1
            held += hold(client, 1)
            assert is_empty(client, 500), "one permit was free"
        while done.total() < count:
            client.ack(NAMESPACE, [item.receipt for item in held])
            done.update([item.payload for item in held])
            held = hold(client, min(in_flight_max, count - done.total())) if done.total() < count else []
            assert len(held) <= in_flight_max
        assert done == Counter(payloads)


def test_the_copies_for_a_group_that_begins_with_what_waits_go_on_after_kills(
    own_databases: Databases, start_host: StartHost
) -> None:
    port, count = free_port(), 3_000
    host = start_host("host-1", port)
    payloads = [b"%d" % number for number in range(count)]
    with Client(host.address, retry=PATIENT) as client, AdminClient(host.address, retry=PATIENT) as admin:
        client.enqueue_many(NAMESPACE, [NewItem(TOPIC, payload) for payload in payloads])
        job_id = admin.create_group(NAMESPACE, TOPIC, "audit", from_queued=True).copy_job
        admin.update_job(NAMESPACE, job_id, items_per_second_max=600)
        for kills in range(1, 4):
            until_true(
                lambda kills=kills: admin.get_job(NAMESPACE, job_id).items_count > kills * count // 5, PATIENCE_S
            )
            assert admin.get_job(NAMESPACE, job_id).state is JobState.RUNNING, "there is something to go on with"
            host.kill()
            host = start_host("host-1", port)
        admin.update_job(NAMESPACE, job_id, items_per_second_max=0)
        until_true(lambda: admin.get_job(NAMESPACE, job_id).state is JobState.SUCCEEDED, PATIENCE_S)
        assert admin.get_job(NAMESPACE, job_id).items_count == count
        copies: Counter[bytes] = Counter()
        while copies.total() < count and (
            items := client.dequeue(NAMESPACE, TOPIC, 1_000, group="audit", lease_ms=LEASE_MS, wait_ms=10_000)
        ):
            copies.update(item.payload for item in items)
        assert client.dequeue(NAMESPACE, TOPIC, 1_000, group="audit", wait_ms=500) == []
        assert copies == Counter(payloads)
        originals = Counter(item.payload for items in deliveries(client, NAMESPACE, TOPIC, count) for item in items)
        assert originals == Counter(payloads)


def test_an_id_that_a_living_item_holds_is_taken_after_kills_and_free_once_the_item_has_ended(
    own_databases: Databases, start_host: StartHost
) -> None:
    port, names = free_port(), [f"id-{number}" for number in range(30)]
    host = start_host("host-1", port)
    news = [NewItem(TOPIC, name.encode(), dedup_id=name, dedup_until=DedupUntil.ACKED) for name in names]
    with Client(host.address, retry=PATIENT) as client:
        before = client.enqueue_many(NAMESPACE, news).ids
        held = hold(client, 20)
        client.ack(NAMESPACE, [item.receipt for item in held[:10]])
        host.kill()  # At once: the ends of the ids are in the transactions of the acks.
        host = start_host("host-1", port)
        acked = {item.id for item in held[:10]}
        result = client.enqueue_many(NAMESPACE, news)
        assert [old == new for old, new in zip(before, result.ids, strict=True)] == [one not in acked for one in before]
        assert [before[position] in acked for position in result.duplicates] == [False] * 20
        host.kill()
        host = start_host("host-1", port)
        assert client.enqueue_many(NAMESPACE, news).ids == result.ids, "all are taken"
        client.ack(NAMESPACE, [item.receipt for item in held[10:]])
        ended = {item.id for item in held[10:]}
        again = client.enqueue_many(NAMESPACE, news).ids
        assert [old == new for old, new in zip(result.ids, again, strict=True)] == [
            one not in ended for one in result.ids
        ]
