"""Hosts are killed with kill -9 in the midst of a redrive and of a deletion, and all is changed and counted once."""

from __future__ import annotations

from collections import Counter

import pytest

from foqs import AdminClient, BulkAction, Client, ItemFilter, ItemState, Job, JobState, NewItem, RetryPolicy
from tests.e2e.conftest import StartHost
from tests.support.databases import Databases
from tests.support.faults.load import NAMESPACE
from tests.support.faults.programs import HostProgram, free_port
from tests.support.waiting import PATIENCE_MS, until_given, until_true

pytestmark = [pytest.mark.database, pytest.mark.deep]

COUNT = 1_500
KILLS = 6
_PATIENT = RetryPolicy(deadline_ms=PATIENCE_MS)


def bury(address: str) -> None:
    """Make dead letters, every third with another reason."""
    with Client(address, retry=_PATIENT) as client:
        client.enqueue_many(NAMESPACE, [NewItem("t", b"%d" % n) for n in range(COUNT)])
        left_count = COUNT
        while left_count:
            items = client.dequeue(NAMESPACE, "t", 1_000, wait_ms=1_000)
            for third, reason in enumerate(("a timeout", "one more timeout", "no card")):
                some = [item for item in items if int(item.payload) % 3 == third]
                if some:
                    client.nack(NAMESPACE, some, dead_letter=True, reason=reason)
            left_count -= len(items)


def stored(address: str) -> Counter[tuple[ItemState, bool]]:
    """The items by their states, and whether their reason has the text."""
    with AdminClient(address, retry=_PATIENT) as admin:
        return Counter([(one.state, "timeout" in one.errors[0].reason) for one in admin.iterate_items(NAMESPACE)])


@pytest.mark.parametrize("action", [BulkAction.REDRIVE, BulkAction.DELETE])
def test_a_job_changes_each_item_once_while_its_hosts_are_killed(
    own_databases: Databases, start_host: StartHost, action: BulkAction
) -> None:
    ports = free_port(), free_port()
    hosts: list[HostProgram] = [start_host(f"host-{number}", port) for number, port in enumerate(ports)]
    bury(hosts[0].address)
    wanted_count = 2 * COUNT // 3
    with AdminClient(",".join(host.address for host in hosts), retry=_PATIENT) as admin:
        job = admin.create_bulk_job(
            NAMESPACE, action, ItemFilter(error_contains="timeout"), items_per_second_max=200, items_max=wanted_count
        )

        def done() -> Job:
            return admin.get_job(NAMESPACE, job.id)

        for kill in range(KILLS):
            least = (kill + 1) * wanted_count // (2 * KILLS)
            until_true(lambda least=least: done().items_count >= least)
            number = kill % 2
            hosts[number].kill()
            hosts[number] = start_host(f"host-{number}", ports[number])
        until_true(lambda: done().state is not JobState.RUNNING)
        ended = until_given(done)
    assert ended.bulk is not None
    assert ended.state is JobState.SUCCEEDED, ended
    assert (ended.bulk.matched, ended.bulk.done, ended.bulk.failed) == (wanted_count, wanted_count, 0)
    redriven = {(ItemState.READY, True): wanted_count} if action is BulkAction.REDRIVE else {}
    assert stored(hosts[0].address) == {(ItemState.DEAD, False): COUNT - wanted_count, **redriven}
    assert len(own_databases.shard_urls) == ended.bulk.shards
