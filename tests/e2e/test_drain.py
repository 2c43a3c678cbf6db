"""A host that is told to drain ends, whatever its servers do."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import closing

import pytest

from foqs import Client, FoqsError, NewItem
from foqs.client.retry import RetryPolicy
from foqs.model import limits
from foqs.shard import mysql_server
from foqs.storage.shard.formats import unpack_entries
from tests.support.databases import Databases
from tests.support.faults.cluster import NAMESPACE, make_namespace
from tests.support.faults.load import Load
from tests.support.faults.programs import HostProgram, free_port
from tests.support.other_session import until_somebody_waits
from tests.support.taking import deliveries

pytestmark = [pytest.mark.database, pytest.mark.deep]

DRAIN_MS_MAX = 1_000
_RUNS_MAX = 100


def test_a_host_whose_server_hangs_ends_when_the_bound_of_its_drain_is_over(own_databases: Databases) -> None:
    variables = {"FOQS_DRAIN_MS_MAX": str(DRAIN_MS_MAX)}
    host = HostProgram("host-1", free_port(), own_databases.meta_url, own_databases.shard_urls, variables)
    try:
        make_namespace(host.address)
        with Load(host.address) as load:
            load.wait_for(enqueued=500, settled=500)
        own_databases.server.pause()
        began_s = time.monotonic()
        host.signal(signal.SIGTERM)
        host.wait()
        elapsed_ms = (time.monotonic() - began_s) * 1_000
    finally:
        host.close()
        own_databases.server.resume()
    assert elapsed_ms < limits.DRAIN_MS_MAX, f"it waits as long as if nothing were said: {host.output}"


def test_a_shard_that_is_well_gives_back_what_it_claimed_though_calls_hang_on_another(own_databases: Databases) -> None:
    """A host that just ended would keep from its successor what its prefetch buffer had claimed."""
    server, count = own_databases.server, len(own_databases.shard_urls) * mysql_server.PLACEMENT_RUN_ITEMS
    items = [NewItem("kept", b"%d" % number) for number in range(count)]
    port = free_port()
    host = HostProgram(
        "host-1", port, own_databases.meta_url, own_databases.shard_urls, {"FOQS_DRAIN_MS_MAX": str(DRAIN_MS_MAX)}
    )
    try:
        make_namespace(host.address)
        with Client(host.address) as client:
            client.enqueue_many(NAMESPACE, items)
            leased = len(client.dequeue(NAMESPACE, "kept", 10))
            hanging = next(shard for shard in own_databases.shard_urls if not _claimed_count(own_databases, shard))
            calls = [
                threading.Thread(target=_enqueue_until_refused, args=(host.address,)) for _ in own_databases.shard_urls
            ]
            with closing(server.connect(f"shard_{hanging}", autocommit=False)) as session, session.cursor() as cursor:
                cursor.execute("SELECT one FROM writer FOR UPDATE")
                for call in calls:
                    call.start()
                until_somebody_waits(server)
                # So much demand that the host claims ahead of it.
                leased += sum(len(client.dequeue(NAMESPACE, "kept", 10)) for _ in range(20))
                claimed = sum(_claimed_count(own_databases, shard) for shard in own_databases.shard_urls)
                host.signal(signal.SIGTERM)
                host.wait()
                session.rollback()
        assert claimed > leased
        for call in calls:
            call.join()
        host = HostProgram("host-1", port, own_databases.meta_url, own_databases.shard_urls)
        with Client(host.address) as client:
            taken = sum(len(items) for items in deliveries(client, NAMESPACE, "kept", count - leased))
    finally:
        host.close()
    assert taken == count - leased, host.output


def _claimed_count(databases: Databases, shard: int) -> int:
    with closing(databases.server.connect(f"shard_{shard}")) as session, session.cursor() as cursor:
        cursor.execute("SELECT entries FROM claim")
        return sum(len(list(unpack_entries(row[0]))) for row in cursor.fetchall())


def _enqueue_until_refused(address: str) -> None:
    """A run to one shard after the other, until one hangs and the host ends; what becomes of the items is no matter."""
    with Client(address, timeout_ms=10_000, retry=RetryPolicy(deadline_ms=0)) as client:
        try:
            for _ in range(_RUNS_MAX):
                client.enqueue_many(NAMESPACE, [NewItem("other", b"")] * mysql_server.PLACEMENT_RUN_ITEMS)
        except FoqsError as error:
            print(f"as expected: {error}")
