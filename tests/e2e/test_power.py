"""Power cuts in small: what `make power` does a hundred times; and a server that is not durable is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from foqs.client.sync import AdminClient
from foqs.storage.local_server import LocalServer
from loadtest.faults.programs import free_port
from loadtest.faults.volume import missing_for_mounts
from loadtest.power.__main__ import losses
from loadtest.power.run import Series, run_series
from tests.e2e.conftest import StartHost

pytestmark = [pytest.mark.database, pytest.mark.slow]
needs_mounts = pytest.mark.skipif(bool(missing_for_mounts()), reason="; ".join(missing_for_mounts()))


@needs_mounts
def test_nothing_acknowledged_is_lost_when_the_power_of_the_server_is_cut_under_load() -> None:
    tally = run_series(Series(name="durable", cuts=2, seed=7), progress=print)
    assert not tally.violation_count, tally.examples
    assert tally.counts["calls under way at a cut"] > 0
    assert tally.counts["items"] > 400
    assert len(tally.recovery_ms["power cut to the first enqueue"]) == 2


@needs_mounts
def test_a_server_that_flushes_once_a_second_loses_what_it_acknowledged_and_that_is_seen() -> None:
    tally = run_series(Series(name="control", cuts=1, seed=7, is_durable=False, host_dies=1.0), progress=print)
    assert losses(tally) > 0, tally.counts


@pytest.fixture
def undurable_server(own_server: LocalServer) -> Iterator[LocalServer]:
    with own_server.connect() as session, session.cursor() as cursor:
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 2")
        yield own_server
        cursor.execute("SET GLOBAL innodb_flush_log_at_trx_commit = 1")


def test_a_host_takes_no_shard_of_a_server_that_could_lose_acknowledged_items(
    start_host: StartHost, undurable_server: LocalServer
) -> None:
    host = start_host("host-1", free_port())
    assert "can lose acknowledged items: innodb_flush_log_at_trx_commit is 2" in host.wait_for_line("shard_lost")
    with AdminClient(host.address) as admin:
        assert {shard.state for shard in admin.host_status().shards} == {"lost"}
