"""Power cuts in small: what `make power` does a hundred times; and a server that is not durable is refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foqs.client.sync import AdminClient
from loadtest.power.__main__ import losses
from loadtest.power.run import Series, run_series
from tests.e2e.conftest import StartHost
from tests.support.databases import Databases, prepared_server
from tests.support.faults.programs import free_port
from tests.support.faults.volume import missing_for_mounts

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
    """A cut right after a flush loses nothing, so there are cuts until one comes at another moment."""
    for seed in range(10):
        tally = run_series(Series(name="control", cuts=1, seed=seed, is_durable=False, host_dies=1.0), progress=print)
        if losses(tally):
            return
    pytest.fail("ten cuts lost nothing")


@pytest.fixture
def undurable_shards(tmp_path: Path) -> Iterator[dict[int, str]]:
    """On a server of their own, for a host does not start at all where that of the meta database is not durable."""
    with prepared_server(tmp_path, "--innodb-flush-log-at-trx-commit=2") as server:
        yield Databases(server).shard_urls


def test_a_host_takes_no_shard_of_a_server_that_could_lose_acknowledged_items(
    start_host: StartHost, undurable_shards: dict[int, str]
) -> None:
    host = start_host("host-1", free_port(), undurable_shards)
    assert "can lose acknowledged items: innodb_flush_log_at_trx_commit is 2" in host.wait_for_line("shard_lost")
    with AdminClient(host.address) as admin:
        assert {shard.state for shard in admin.host_status().shards} == {"lost"}
