"""A shard is added, another one drained and removed, under repeats and kill -9 of the hosts: each id makes one item."""

from __future__ import annotations

import random
import threading
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress

import pytest

from foqs import AdminClient, Client, FoqsError, NewItem, RetryPolicy, ShardUse
from foqs.model.slots import SlotMove, slot_of
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.places import place_of
from tests.e2e.conftest import StartHost
from tests.support.databases import Databases
from tests.support.faults.programs import free_port
from tests.support.taking import deliveries
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database, pytest.mark.slow]

NAMESPACES = ("narrow", "wide")
TOPIC = "t"
CALL_ITEMS, IDS_MAX = 40, 6_000
PATIENT = RetryPolicy(deadline_ms=60_000)
PATIENCE_S = 120.0


class Producer:
    """Enqueues new ids and repeats old ones, and holds every answer against the first one."""

    def __init__(self, namespace: str) -> None:
        self.answered: dict[str, str] = {}
        self.wrong: list[str] = []
        self.repeats_count = 0
        self._namespace = namespace
        self._chance = random.Random(namespace)

    def run(self, client: Client, ended: threading.Event) -> None:
        while not ended.is_set():
            self.enqueue(client)

    def enqueue(self, client: Client) -> None:
        known = list(self.answered)
        names = self._chance.sample(known, min(len(known), CALL_ITEMS // 2))
        if len(known) < IDS_MAX:
            names += [f"id-{len(known) + at}" for at in range(CALL_ITEMS // 2)]
        self.repeat(client, names)

    def repeat(self, client: Client, names: list[str]) -> None:
        items = [NewItem(TOPIC, name.encode(), dedup_id=name) for name in names]
        ids = client.enqueue_many(self._namespace, items).ids
        for name, item_id in zip(names, ids, strict=True):
            self.repeats_count += name in self.answered
            if self.answered.setdefault(name, item_id) != item_id:
                self.wrong.append(f"{name} was {self.answered[name]} and is {item_id}")


def in_meta(databases: Databases, condition: Callable[[SlotMove | None, Counter[int]], bool]) -> bool:
    with closing(MetaStore(databases.meta_url)) as meta:
        told = meta.namespaces.read()
    return condition(told.slot_move, Counter(told.slots.shards))


def take_all(client: Client, namespace: str, count: int, found: dict[str, set[str]]) -> None:
    for taken in deliveries(client, namespace, TOPIC, count):
        for item in taken:
            found[item.payload.decode()].add(item.id)
        client.ack(namespace, [item.receipt for item in taken])


def remove(admins: list[AdminClient], shard_id: int) -> bool:
    """Only the owner can."""
    for admin in admins:
        with suppress(FoqsError):
            admin.remove_shard(shard_id)
            return True
    return False


def test_each_id_makes_one_item_while_its_slot_moves_and_hosts_are_killed(
    own_databases: Databases, start_host: StartHost
) -> None:
    urls = {n: url for n, url in own_databases.shard_urls.items() if n < 3}
    ports = [free_port(), free_port()]
    hosts = [start_host(f"host-{at}", port, urls) for at, port in enumerate(ports)]
    addresses = [f"127.0.0.1:{port}" for port in ports]
    ended = threading.Event()
    producers = {name: Producer(name) for name in NAMESPACES}

    def wait(condition: Callable[[SlotMove | None, Counter[int]], bool]) -> None:
        until_true(lambda: in_meta(own_databases, condition), PATIENCE_S)

    def kill(at: int) -> None:
        hosts[at].kill()
        hosts[at] = start_host(f"host-{at}", ports[at], urls)

    with (
        Client(",".join(addresses), retry=PATIENT) as client,
        AdminClient(addresses[0], retry=PATIENT) as first,
        AdminClient(addresses[1], retry=PATIENT) as second,
        ThreadPoolExecutor(len(NAMESPACES)) as threads,
    ):
        first.create_namespace("narrow")
        first.create_namespace("wide", key_spread=64)
        running = [threads.submit(producer.run, client, ended) for producer in producers.values()]
        try:
            first.add_shard(3, place_of(own_databases.shard_urls[3]))
            # A move may be over before anybody has looked: then a host is killed between two, or after the last one.
            wait(lambda move, counts: move is not None or counts[3] > 0)
            kill(1)
            wait(lambda move, counts: counts[3] >= 64)
            kill(0)
            wait(lambda move, counts: move is None and min(counts[at] for at in range(4)) == 256)
            with closing(MetaStore(own_databases.meta_url)) as meta:
                giver = meta.namespaces.read().slots.shards[slot_of("narrow", "", 1)]
            second.update_shard(giver, state=ShardUse.DRAINING)
            wait(lambda move, counts: move is not None or counts[giver] < 256)
            kill(0)
            wait(lambda move, counts: counts[giver] <= 128)
            kill(1)
            wait(lambda move, counts: move is None and counts[giver] == 0)
        finally:
            ended.set()
        for done in running:
            done.result(PATIENCE_S)
        for name, producer in producers.items():
            for start in range(0, len(producer.answered), 500):
                producer.repeat(client, list(producer.answered)[start : start + 500])
            assert producer.wrong == []
            assert producer.repeats_count > len(producer.answered) > 100
            found: defaultdict[str, set[str]] = defaultdict(set)
            take_all(client, name, len(producer.answered), found)
            assert found == {dedup_id: {item_id} for dedup_id, item_id in producer.answered.items()}
        until_true(lambda: remove([first, second], giver), PATIENCE_S)
        for producer in producers.values():
            producer.repeat(client, list(producer.answered)[:500])
            assert producer.wrong == []
