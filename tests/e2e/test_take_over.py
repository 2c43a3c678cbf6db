"""A second host takes the shards of one that hangs; when that one wakes up, it can change nothing (P8)."""

from __future__ import annotations

import signal
from contextlib import closing

import pytest

from foqs.model.cluster import host_name_of
from foqs.storage.meta.meta_store import MetaStore
from foqs.storage.sessions.session import connect
from tests.e2e.conftest import StartHost
from tests.e2e.test_kill import CLAIM_TICKS_MS_MAX, CLOCK_TOLERANCE_MS
from tests.histories.checker import check
from tests.histories.history import Outcome, Verb, now_ns
from tests.support.databases import SHARD_COUNT, Databases
from tests.support.faults.load import Load
from tests.support.faults.programs import HostProgram, free_port
from tests.support.impatient_foqs import CLAIM_MS_MAX

pytestmark = [pytest.mark.database, pytest.mark.slow]


def owners(databases: Databases) -> list[tuple[int, str]]:
    """Epoch and owner of each shard."""
    found = []
    for url in databases.shard_urls.values():
        with closing(connect(url)) as session, session.cursor() as cursor:
            cursor.execute("SELECT epoch, owner FROM writer")
            ((epoch, owner),) = cursor.fetchall()
            found.append((epoch, host_name_of(owner.decode())))
    return found


def pin(databases: Databases, host_name: str) -> None:
    """Let that host keep all the shards that it has, and no other host get some of them back."""
    with closing(MetaStore(databases.meta_url)) as meta:
        for shard_id in databases.shard_urls:
            meta.shards.update(shard_id, None, host_name, None)


def wait_until_all_are_owned(host: HostProgram) -> None:
    for shard_id in range(SHARD_COUNT):
        host.wait_for_line(f'"shard": {shard_id}, "epoch"')


def wait_until_all_are_lost(host: HostProgram) -> None:
    for shard_id in range(SHARD_COUNT):
        host.wait_for_line(f'"shard": {shard_id}, "error": "shard {shard_id} ')


def test_a_host_that_lost_its_shards_while_it_hung_can_change_nothing(
    own_databases: Databases, start_host: StartHost
) -> None:
    first = start_host("host-1", free_port())
    pin(own_databases, "host-1")
    second = start_host("host-2", free_port())
    first_load = Load(first.address, "first")
    second_load = Load(second.address, "second", first_load.history)
    with first_load:
        with second_load:
            first_load.wait_for(enqueued=1_500, settled=1_500)
            of_first = owners(own_databases)
            stopped_at_ms = now_ns() // 1_000_000
            first.signal(signal.SIGSTOP)
            wait_until_all_are_owned(second)
            pin(own_databases, "host-2")
            second_load.wait_for(enqueued=800, settled=800)
            of_second = owners(own_databases)

            continued_at_ms = now_ns() // 1_000_000
            first.signal(signal.SIGCONT)
            wait_until_all_are_lost(first)
            second_load.wait_for(enqueued=500, settled=500)
            first_load.wait_for(enqueued=1_500, settled=1_500)
            after = owners(own_databases)

        # Its clients are gone, so that the host does not wait for them when it ends.
        handed_over_at_ms = now_ns() // 1_000_000
        second.signal(signal.SIGTERM)
        assert second.wait() == 0, second.output
        first_load.wait_for(enqueued=200, settled=200)
        stored = first_load.drain(own_databases.shard_urls)

    assert [owner for _, owner in of_first] == ["host-1"] * SHARD_COUNT
    assert [owner for _, owner in of_second] == ["host-2"] * SHARD_COUNT
    assert all(new > old for (new, _), (old, _) in zip(of_second, of_first, strict=True))
    assert after == of_second
    tried = [
        call
        for call in first_load.history.calls
        if call.client.startswith("first-") and continued_at_ms < call.invoked_at_ms
        and call.returned_at_ms is not None and call.returned_at_ms < handed_over_at_ms
    ]  # fmt: skip
    assert {Verb.ENQUEUE, Verb.DEQUEUE} <= {call.verb for call in tried}
    # It hands them on to the owner of the shards, and writes nothing itself: `after` has the same epochs.
    unknown = [call for call in tried if call.outcome is Outcome.INFO]
    assert not unknown, f"{unknown}\n{first.output}"
    disturbed = [(stopped_at_ms, handed_over_at_ms + CLAIM_MS_MAX + CLAIM_TICKS_MS_MAX)]
    report = check(
        first_load.history.calls,
        stored,
        tolerance_ms=CLOCK_TOLERANCE_MS,
        disturbed=disturbed,
        # What the host that hung had leased for the other one is lost with the connection between them.
        hand_overs_lost="pull_not_given_back" in second.output,
    )
    assert not report.violations, f"{report}\n{first.output}\n{second.output}"
    assert report.counts["items"] > 3_000
