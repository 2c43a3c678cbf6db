"""kill -9 of the host and of the MySQL server under load: the promises hold, by the record of every call."""

from __future__ import annotations

import signal
from contextlib import closing

import pytest

from foqs.client.queue_items import Item, NewItem
from foqs.client.sync import Client
from foqs.model.calls import DeliveryPolicy
from tests.e2e.conftest import StartHost
from tests.histories.checker import Report, check
from tests.histories.history import History, Outcome, now_ns
from tests.histories.lives import Stored, returned_at_ms
from tests.support.databases import Databases
from tests.support.faults.load import ANSWER_ITEMS_MAX, NAMESPACE, Load
from tests.support.faults.programs import free_port
from tests.support.impatient_foqs import CLAIM_MS_MAX
from tests.support.taking import deliveries

Window = tuple[int, int]
pytestmark = [pytest.mark.database]

CLOCK_TOLERANCE_MS = 60
"""The host guesses the server's clock from a round trip, which takes this long on a busy machine."""
CLAIM_TICKS_MS_MAX = 5_000
"""So long after its end a busy host may need to see that a claim has ended."""
RECOVERY_MS_MAX = 3_000
"""From the start of a server to a closed circuit breaker."""
KILLS = 2
ITEMS_BETWEEN_KILLS = 2_000


def verdict(history: History, stored: list[Stored], faults: list[Window]) -> Report:
    """The report of a history that can prove something: enough was done, and each fault hit calls under way."""
    report = check(history.calls, stored, tolerance_ms=CLOCK_TOLERANCE_MS, disturbed=faults)
    for start_ms, _ in faults:
        hit = [call for call in history.calls if call.invoked_at_ms <= start_ms <= returned_at_ms(call)]
        assert len(hit) > 1, f"a kill hit nothing: {report}"
    unknown = sum(call.outcome is Outcome.INFO for call in history.calls)
    assert unknown < len(history.calls) / 5, f"too much is unknown: {report}"
    assert report.counts["items"] > 2 * ITEMS_BETWEEN_KILLS, str(report)
    assert report.counts["redeliveries"] > 50, str(report)
    assert report.counts["stale receipts refused"] > 20, str(report)
    return report


def wall_ms() -> int:
    return now_ns() // 1_000_000


@pytest.mark.deep
def test_without_faults_nothing_is_unknown_lost_or_late(own_databases: Databases, start_host: StartHost) -> None:
    host = start_host("host-1", free_port())
    with Load(host.address) as load:
        load.wait_for(enqueued=2 * ITEMS_BETWEEN_KILLS, settled=2 * ITEMS_BETWEEN_KILLS)
        stored = load.drain(own_databases.shard_urls)
    report = verdict(load.history, stored, [])
    assert not report.violations, f"{report}\n{host.output}"
    assert Outcome.INFO not in {call.outcome for call in load.history.calls}, str(report)
    assert report.counts["at-most-once lost"] == 0, str(report)
    assert report.counts["expired leases watched"] > 20, str(report)


@pytest.mark.deep
def test_nothing_acknowledged_is_lost_when_the_host_is_killed_under_load(
    own_databases: Databases, start_host: StartHost
) -> None:
    port = free_port()
    host = start_host("host-1", port)
    faults: list[Window] = []
    with Load(host.address) as load:
        for _ in range(KILLS):
            load.wait_for(enqueued=ITEMS_BETWEEN_KILLS, settled=ITEMS_BETWEEN_KILLS)
            killed_at_ms = wall_ms()
            host.kill()
            # Once more, before it has settled down: what the first left behind is taken over twice.
            start_host("host-1", port).kill()
            host = start_host("host-1", port)
            faults.append((killed_at_ms, wall_ms() + CLAIM_MS_MAX + CLAIM_TICKS_MS_MAX))
        load.wait_for(enqueued=300, settled=300)
        stored = load.drain(own_databases.shard_urls)
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.output
    report = verdict(load.history, stored, faults)
    assert not report.violations, f"{report}\n{host.output}"


@pytest.mark.deep
def test_nothing_acknowledged_is_lost_when_the_mysql_server_is_killed_under_load(
    own_databases: Databases, start_host: StartHost
) -> None:
    host = start_host("host-1", free_port())
    faults: list[Window] = []
    with Load(host.address) as load:
        for _ in range(KILLS):
            load.wait_for(enqueued=ITEMS_BETWEEN_KILLS, settled=ITEMS_BETWEEN_KILLS)
            killed_at_ms = wall_ms()
            own_databases.server.kill()
            own_databases.server.start()
            faults.append((killed_at_ms, wall_ms() + RECOVERY_MS_MAX))
        load.wait_for(enqueued=ITEMS_BETWEEN_KILLS, settled=ITEMS_BETWEEN_KILLS)
        stored = load.drain(own_databases.shard_urls)
    host.signal(signal.SIGTERM)
    assert host.wait() == 0, host.output
    report = verdict(load.history, stored, faults)
    assert not report.violations, f"{report}\n{host.output}"
    assert report.counts["at-most-once lost"] <= ANSWER_ITEMS_MAX * report.counts["dequeue info"], str(report)


def test_what_no_consumer_saw_when_the_host_is_killed_is_delivered(
    own_databases: Databases, start_host: StartHost
) -> None:
    """Of items that are delivered at most once nobody has to wait for a claim to end."""
    port, topic, count = free_port(), "once", 600
    host = start_host("host-1", port)
    seen: set[str] = set()
    with Client(host.address) as client:
        news = [NewItem(topic, b"x", delivery=DeliveryPolicy.AT_MOST_ONCE)] * count
        client.enqueue_many(NAMESPACE, news)
        for _ in range(20):
            seen.update(item.id for item in client.dequeue(NAMESPACE, topic, 10, lease_ms=600_000, wait_ms=2_000))
    host.kill()
    assert 10 < len(seen) < count
    with closing(own_databases.server.connect("shard_0")) as session, session.cursor() as cursor:
        cursor.execute("SELECT COUNT(*), COALESCE(MAX(due_at), 0) FROM claim WHERE ahead")
        ((_, due_at),) = cursor.fetchall()
        cursor.execute("SELECT steady_ms FROM writer")
        ((steady_ms,),) = cursor.fetchall()
    assert due_at <= steady_ms + CLAIM_MS_MAX, "however long leases are"
    host = start_host("host-1", port)
    taken: list[Item] = []
    with Client(host.address) as client:
        for found in deliveries(client, NAMESPACE, topic, count - len(seen)):
            taken += found
    assert len(taken) == count - len(seen), host.output
    assert {item.attempt for item in taken} == {1}
    assert seen.isdisjoint([item.id for item in taken])
