"""Enqueues with dedup ids through kill -9 of the host and lost responses: each makes one item."""

from __future__ import annotations

import random
import signal
import socket
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest

from foqs import Client, FoqsError, NewItem, RetryPolicy
from foqs.model.ids import item_id
from tests.e2e.conftest import StartHost
from tests.e2e.test_kill import CLAIM_TICKS_MS_MAX, CLOCK_TOLERANCE_MS, wall_ms
from tests.histories.checker import check
from tests.histories.dedup_checks import WHOLE_WINDOW
from tests.histories.stored import at_most_once_claims, item_rows
from tests.support.databases import Databases
from tests.support.faults.load import NAMESPACE, Load, Pressure
from tests.support.faults.programs import free_port
from tests.support.faults.proxy import Cut, CuttingProxy
from tests.support.impatient_foqs import CLAIM_MS_MAX
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.database, pytest.mark.slow]

PRODUCERS, ITEMS_EACH, CALL_ITEMS = 3, 1_500, 50
KILLS, CUTS = 2, 12
TOPIC = "t"
PATIENT = RetryPolicy(deadline_ms=60_000)


class Books:
    """Who was answered what, and which items there were, by the payloads that producers give out."""

    def __init__(self) -> None:
        self.answered: dict[bytes, str] = {}
        self.items: defaultdict[bytes, set[str]] = defaultdict(set)
        self._changed = threading.Condition()

    def enqueue(self, client: Client, producer: int) -> None:
        """Items by twos: one by the verb of one, the others by that of many. Nothing may fail."""
        payloads = [b"%d/%d" % (producer, number) for number in range(ITEMS_EACH)]
        for start in range(0, ITEMS_EACH, CALL_ITEMS):
            first, *rest = payloads[start : start + CALL_ITEMS]
            ids = [client.enqueue(NAMESPACE, TOPIC, first)]
            ids += client.enqueue_many(NAMESPACE, [NewItem(TOPIC, payload) for payload in rest]).ids
            with self._changed:
                self.answered |= zip([first, *rest], ids, strict=True)
                self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.answered) >= count, 60)

    def take(self, client: Client, ended: threading.Event) -> None:
        """Take and ack; what fails is tried again, or stays."""
        while not ended.is_set():
            try:
                taken = client.dequeue(NAMESPACE, TOPIC, 100, wait_ms=100)
                for item in taken:
                    self.items[item.payload].add(item.id)
                client.ack(NAMESPACE, [item.receipt for item in taken], return_errors=True)
            except FoqsError:
                continue


def test_an_idempotent_client_makes_each_item_once_through_kills_and_lost_responses(
    own_databases: Databases, start_host: StartHost
) -> None:
    port, books, ended, total = free_port(), Books(), threading.Event(), PRODUCERS * ITEMS_EACH
    host = start_host("host-1", port)
    with (
        CuttingProxy(lambda: socket.create_connection(("127.0.0.1", port))) as proxy,
        Client(f"127.0.0.1:{proxy.port}", idempotent=True, retry=PATIENT) as producer,
        Client(f"127.0.0.1:{port}") as consumer,
        ThreadPoolExecutor(PRODUCERS + 1) as threads,
    ):
        taking = threads.submit(books.take, consumer, ended)
        producing = [threads.submit(books.enqueue, producer, number) for number in range(PRODUCERS)]
        for step in range(1, KILLS + CUTS + 1):
            books.wait_for(total * step // (KILLS + CUTS + 2))
            if step % ((KILLS + CUTS) // KILLS):
                proxy.cut(Cut.LATE)
            else:
                host.kill()
                host = start_host("host-1", port)
        for done in producing:
            done.result(PATIENCE_S)
        ended.set()
        taking.result(PATIENCE_S)
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.output
    for shard, url in own_databases.shard_urls.items():
        for row in item_rows(url):
            books.items[row.content.payload].add(item_id(shard, row.key))
    assert len(books.answered) == total
    assert {payload: {found} for payload, found in books.answered.items()} == books.items


def test_the_record_of_clients_that_repeat_holds_every_promise_through_kills(
    own_databases: Databases, start_host: StartHost
) -> None:
    port = free_port()
    host = start_host("host-1", port)
    faults: list[tuple[int, int]] = []
    claims: dict[str, set[int]] = {}
    chance = random.Random(3)
    with Load(host.address, pressure=Pressure(dedup_share=0.5)) as load:
        for _ in range(KILLS):
            load.wait_for(enqueued=chance.randrange(1_000, 2_000), settled=500)
            killed_at_ms = wall_ms()
            host.kill()
            for url in own_databases.shard_urls.values():
                claims |= at_most_once_claims(url)
            host = start_host("host-1", port)
            faults.append((killed_at_ms, wall_ms() + CLAIM_MS_MAX + CLAIM_TICKS_MS_MAX))
        load.wait_for(enqueued=500, settled=300)
        stored = load.drain(own_databases.shard_urls)
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.output
    calls = load.history.calls
    report = check(
        calls, stored, tolerance_ms=CLOCK_TOLERANCE_MS, disturbed=faults, claims_left=claims, dedup=WHOLE_WINDOW
    )
    assert not report.violations, f"{report}\n{host.output}"
    assert report.counts["dedup ids"] > 500, str(report)
    assert report.counts["repeats answered with the first one's id"] > 100, str(report)
