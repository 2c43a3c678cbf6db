"""Ordering keys hold their order through kill -9 of hosts and take-overs of their shards."""

from __future__ import annotations

import random
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from foqs import Client, FoqsError, Item, NewItem, RetryPolicy
from tests.e2e.conftest import StartHost
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import free_port
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.database, pytest.mark.slow]

KEYS, ITEMS_EACH, CONSUMERS, KILLS = 12, 150, 3, 3
PATIENT = RetryPolicy(deadline_ms=60_000)
LEASE_MS = 2_000


class Order:
    """The deliveries of each key, whose items are numbered in their order."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._seen: defaultdict[str, int] = defaultdict(int)
        """The items of a key that were delivered so far; their numbers begin with 0."""
        self._out: dict[str, int] = {}
        """The item of a key that a consumer works on, by its number."""
        self._lock = threading.Lock()
        self.done_count = 0

    def begin(self, item: Item) -> None:
        key, number = item.ordering_key or "", int(item.payload)
        with self._lock:
            if key in self._out:
                self.problems.append(f"{key}: {number} was delivered while {self._out[key]} is in work")
            if number not in (self._seen[key], self._seen[key] - 1):
                self.problems.append(f"{key}: {number} was delivered after {self._seen[key]} items")
            self._seen[key] = max(self._seen[key], number + 1)
            self._out[key] = number

    def end(self, item: Item, *, is_acked: bool) -> None:
        with self._lock:
            self._out.pop(item.ordering_key or "", None)
            self.done_count += is_acked


def produce(address: str, ended: threading.Event) -> None:
    with Client(address, retry=PATIENT, idempotent=True) as client:
        for number in range(ITEMS_EACH):
            if ended.is_set():
                return
            items = [NewItem("t", b"%d" % number, ordering_key=f"k{key}") for key in range(KEYS)]
            client.enqueue_many(NAMESPACE, items)


def consume(address: str, order: Order, ended: threading.Event) -> None:
    with Client(address, retry=RetryPolicy(deadline_ms=0)) as client:
        while not ended.is_set():
            try:
                items = client.dequeue(NAMESPACE, "t", 3, lease_ms=LEASE_MS, wait_ms=200)
            except FoqsError:
                continue
            for item in items:
                order.begin(item)
            for item in items:
                try:
                    order.end(item, is_acked=False)  # Before the ack, whose answer can come after the next delivery.
                    client.ack(NAMESPACE, item)
                    order.end(item, is_acked=True)
                except FoqsError:
                    continue


def test_each_key_is_delivered_in_order_through_kills_of_hosts(start_host: StartHost) -> None:
    ports, order, ended, chance = [free_port(), free_port()], Order(), threading.Event(), random.Random(5)
    hosts = [start_host(f"host-{number}", port) for number, port in enumerate(ports)]
    address = ",".join([host.address for host in hosts])
    with ThreadPoolExecutor(CONSUMERS + 1) as pool:
        try:
            producing = pool.submit(produce, address, ended)
            consuming = [pool.submit(consume, address, order, ended) for _ in range(CONSUMERS)]
            total = KEYS * ITEMS_EACH
            for kill in range(KILLS):
                _wait_for(order, (kill + 1) * total // (KILLS + 2))
                at = chance.randrange(2)
                hosts[at].kill()
                hosts[at] = start_host(f"host-{at}", ports[at])
            producing.result(PATIENCE_S)
            _wait_for(order, total - CONSUMERS * 3 * KILLS)
        finally:
            ended.set()
        for one in consuming:
            one.result(PATIENCE_S)
    assert not order.problems, "\n".join([*order.problems[:10], *[host.output[-2_000:] for host in hosts]])


def _wait_for(order: Order, count: int) -> None:
    """Wait until so many items were acked."""
    idle = threading.Event()
    for _ in range(int(3 * PATIENCE_S * 10)):
        if order.done_count >= count or order.problems:
            return
        idle.wait(0.1)
    raise AssertionError(f"{order.done_count} of {count} items were acked")
