"""Runs of the bench in small whose phases have a fixed time in which something must be done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from foqs.storage.sessions.session import connect
from foqs.storage.shard.formats import seen_count
from loadtest.bench.__main__ import main
from loadtest.bench.figures import Measured
from loadtest.bench.results import Entry, Run, Workload, derived
from loadtest.bench.runner import go_through
from loadtest.bench.scenario import Scenario, load
from loadtest.peers.foqs import Foqs
from tests.support.event_log import lives

pytestmark = [pytest.mark.database, pytest.mark.alone]


@pytest.mark.parametrize(("name", "shards_count"), [("w3-ids", 1), ("w3-ids-spread", 4), ("w3-ids-ungrouped", 4)])
def test_items_have_dedup_ids_in_the_phases_that_say_so_and_these_are_compared_with_the_others(
    name: str, shards_count: int, tmp_path: Path
) -> None:
    scenario = load(name, "smoke")
    with _set_up(scenario, tmp_path) as adapter:
        measured = go_through(scenario, adapter)
        ids_by_shard = [_ids_in_log(url) for url, _ in adapter._shard_schemas()]
    assert sum(ids_by_shard) == sum(measured[phase].figures["items"] for phase in ("ids", "ids again"))
    assert sum(count > 0 for count in ids_by_shard) == len(ids_by_shard) == shards_count
    assert _rates_kept(scenario, measured) == {"rate kept by CPU", "rate kept by CPU, again"}


def test_events_are_logged_in_the_phases_that_say_so(tmp_path: Path) -> None:
    scenario = load("w3-events", "smoke")
    with _set_up(scenario, tmp_path) as adapter:
        measured = go_through(scenario, adapter)
        adapter._stop_hosts()
    logged = [life for directory in tmp_path.glob("events-*") for life in lives(directory)]
    assert len(logged) == sum(measured[phase].figures["items"] for phase in ("events", "events again"))
    assert _rates_kept(scenario, measured) == {"rate kept by CPU", "rate kept by CPU, again"}


@contextmanager
def _set_up(scenario: Scenario, directory: Path) -> Iterator[Foqs]:
    adapter = Foqs()
    adapter.configure(scenario)
    try:
        adapter.start(directory, scenario.topic_names)
        yield adapter
    finally:
        adapter.stop()


def _rates_kept(scenario: Scenario, measured: dict[str, Measured]) -> set[str]:
    workload = Workload(scenario.title, scenario.variant, scenario.ratios, scenario.differences)
    found = derived(workload, Entry(runs=[Run({}, measured)]))
    assert all(0.02 < figure.median < 50 for figure in found.values())
    return set(found)


def _ids_in_log(url: str) -> int:
    with closing(connect(url)) as session, session.cursor() as cursor:
        cursor.execute("SELECT LENGTH(entries), ASCII(entries) FROM seen")
        return sum(seen_count(size_bytes, version) for size_bytes, version in cursor.fetchall())


def test_clients_are_dealt_out_to_two_hosts_and_servers_pinned_to_their_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtest.bench.scale._SHARDS", (2,))
    cores = os.sched_getaffinity(0)
    options = ["--smoke", "--runs", "1", "--raw-seconds", "0.2", "--out", str(tmp_path)]
    hosts = ["--hosts", "2", "--build", "interpreted", "--calls", "1"]
    done = CliRunner().invoke(main, ["scale", *options, *hosts], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert os.sched_getaffinity(0) == cores
    text = (tmp_path / "scale.md").read_text()
    for clients in ("any host", "shard map"):
        assert f"| hosts: 2, calls: 32, {clients}, interpreted |" in text
    assert "| shards: 2 |" in text
