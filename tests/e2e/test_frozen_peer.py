"""A host that hangs while another one fetches its items for a consumer: the consumer does not hang with it."""

from __future__ import annotations

import signal
import urllib.request

import pytest

from foqs import Client, NewItem
from tests.e2e.conftest import StartHost
from tests.e2e.test_take_over import owners, pin
from tests.support.databases import Databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import free_port
from tests.support.waiting import PATIENCE_S

pytestmark = [pytest.mark.database, pytest.mark.deep]

TOPICS = [f"mail-{number}" for number in range(16)]
"""Nearly always the second host is the home of some of them, which it can ask while the first one hangs."""
ITEMS_EACH = 3
LEASE_MS = 120_000
CALLS_MAX = 200


def pulls(metrics_port: int, outcome: str) -> float:
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=PATIENCE_S) as metrics:
        lines = metrics.read().decode().splitlines()
    return sum(float(line.split()[1]) for line in lines if line.startswith(f'foqs_pulls_total{{outcome="{outcome}"}}'))


def test_a_consumer_is_answered_soon_after_its_wait_and_what_the_host_had_leased_for_it_is_ready_again_at_once(
    own_databases: Databases, start_host: StartHost
) -> None:
    metrics_port = free_port()
    first = start_host("host-1", free_port())
    pin(own_databases, "host-1")
    second = start_host("host-2", free_port(), {}, {"FOQS_METRICS_PORT": str(metrics_port)})
    with Client(first.address) as of_first, Client(second.address) as of_second:
        items = [NewItem(topic, b"x") for topic in TOPICS for _ in range(ITEMS_EACH)]
        assert not of_first.enqueue_many(NAMESPACE, items).errors
        got = []
        for topic in TOPICS:  # The second host has no shard, and knows that there are more of each topic.
            got += of_second.dequeue(NAMESPACE, topic, wait_ms=10_000, lease_ms=LEASE_MS)
        assert len(got) == len(TOPICS)

        owned = owners(own_databases)
        first.signal(signal.SIGSTOP)
        try:
            wanted = dict.fromkeys(TOPICS, ITEMS_EACH)
            assert of_second.dequeue(NAMESPACE, wanted, wait_ms=100, lease_ms=LEASE_MS) == []
        finally:
            first.signal(signal.SIGCONT)
        for _ in range(CALLS_MAX):
            if len(got) == len(items):
                break
            got += of_second.dequeue(NAMESPACE, wanted, wait_ms=5_000, lease_ms=LEASE_MS)
        assert len({item.id for item in got}) == len(items)
        assert {item.attempt for item in got} == {1}, "nobody has seen what was given back"
        assert pulls(metrics_port, "late") > 0
        assert pulls(metrics_port, "given_back") > 0
        assert owners(own_databases) == owned, "the answer came before anybody took the host for dead"
