"""A host that hangs while another one fetches its items for a consumer: the consumer does not hang with it."""

from __future__ import annotations

import signal

import pytest

from foqs import Client, NewItem
from tests.e2e.conftest import StartHost
from tests.e2e.test_take_over import owners, pin
from tests.support.databases import Databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import free_port

pytestmark = [pytest.mark.database, pytest.mark.slow]

ITEMS = 20
LEASE_MS = 120_000


def test_a_consumer_is_answered_soon_after_its_wait_and_what_the_host_had_leased_for_it_is_ready_again_at_once(
    own_databases: Databases, start_host: StartHost
) -> None:
    first = start_host("host-1", free_port())
    pin(own_databases, "host-1")
    second = start_host("host-2", free_port())
    with Client(first.address) as of_first, Client(second.address) as of_second:
        before = of_first.enqueue_many(NAMESPACE, [NewItem("mail", b"1"), NewItem("mail", b"2")])
        assert not before.errors
        taken = [item.id for _ in range(2) for item in of_second.dequeue(NAMESPACE, "mail", wait_ms=10_000)]
        assert set(taken) == set(before.ids), "hosts know each other, and the second one has no shard"
        of_first.enqueue_many(NAMESPACE, [NewItem("mail", b"x")] * ITEMS)
        waiting = of_second.dequeue(NAMESPACE, "mail", wait_ms=10_000, lease_ms=LEASE_MS)
        assert waiting, "it knows that there are more"

        owned = owners(own_databases)
        first.signal(signal.SIGSTOP)
        try:
            assert of_second.dequeue(NAMESPACE, "mail", count=ITEMS, wait_ms=100, lease_ms=LEASE_MS) == []
        finally:
            first.signal(signal.SIGCONT)
        got = list(waiting)
        while len(got) < ITEMS:
            got += of_second.dequeue(NAMESPACE, "mail", count=ITEMS, wait_ms=30_000, lease_ms=LEASE_MS)
        assert {item.attempt for item in got} == {1}, "nobody has seen what was given back"
        assert owners(own_databases) == owned, "the answer came before anybody took the host for dead"
