"""The bench in small, so that it cannot rot: foqs goes through every workload, and loses and doubles nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from loadtest.bench import shapes
from loadtest.bench.__main__ import main
from loadtest.bench.figures import Measured, RunError
from loadtest.bench.raw import FORMS
from loadtest.bench.results import figures_of, load_session
from loadtest.bench.runner import go_through
from loadtest.bench.scenario import Scenario, load, parse
from loadtest.bench.stamp import histogram
from loadtest.peers.foqs import Foqs

pytestmark = [pytest.mark.database, pytest.mark.slow]
WORKLOADS = ("w1", "w2", "w3", "w4", "w5", "w6", "w7", "w8", "w9", "mix")


@pytest.fixture(scope="module")
def foqs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Foqs]:
    adapter = Foqs()
    try:
        adapter.start(tmp_path_factory.mktemp("bench"), ())
        yield adapter
    finally:
        adapter.stop()


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_item_of_a_workload_is_done_and_costs_something(foqs: Foqs, name: str) -> None:
    scenario = load(name, "smoke")
    measured = go_through(scenario, foqs)
    assert list(measured) == list(scenario.phases)
    for phase in measured.values():
        assert phase.figures["items_per_s"] > 0
        assert phase.figures["host_us"] + phase.figures["mysql_us"] == pytest.approx(phase.figures["servers_us"])
        assert phase.figures["host_mib_max"] > 1
    if name == "w7":
        assert measured["all"].figures["topics_served"] == scenario.topics
    if name == "w8":
        assert measured["deep"].figures["restart_to_exact_counts_s"] > 0


def _open_loop(fault: dict[str, object]) -> Scenario:
    base = {"seconds": 1.0, "producers": {"items_per_s": 500, "in_flight": 4}, "fault": fault}
    return parse({"name": "stall", "title": "", "variant": "smoke", "base": base})


def test_a_stall_of_the_server_is_a_delay_of_all_that_was_due_meanwhile(foqs: Foqs) -> None:
    """With four calls in flight only those four would have seen it, had they been timed from their sending."""
    measured = go_through(_open_loop({"server": "mysql", "at_s": 0.3, "for_s": 0.4}), foqs)["all"]
    assert measured.figures["items"] == 500
    assert _percentile_ms(measured, "enqueue", 80) > 100


def test_a_phase_that_never_ends_fails(foqs: Foqs) -> None:
    document = {"name": "never", "title": "", "variant": "smoke", "deadline_s": 0.2}
    with pytest.raises(RunError, match="5 items are left"):
        go_through(parse(document | {"base": {"items": 5, "consumers": {"wait_ms": 10}}}), foqs)


def test_a_client_that_fails_ends_the_run_with_its_error(foqs: Foqs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foqs, "lease_ms", 1)
    document = {"name": "whole-life", "title": "", "variant": "smoke"}
    document |= {"base": {"items": 5, "producers": {}, "consumers": {}}}
    with pytest.raises(RunError, match="lease"):
        go_through(parse(document), foqs)


def test_the_command_measures_and_writes_a_report(tmp_path: Path) -> None:
    options = ["--smoke", "--runs", "1", "--raw-seconds", "0.2", "--peer", "raw", "--out", str(tmp_path)]
    done = CliRunner().invoke(main, ["run", "w3", *options], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    session = load_session(tmp_path)
    assert figures_of(session.workloads["w3"].queues["raw"], "all")["of_raw"].median > 0
    assert "| raw |" in (tmp_path / "index.md").read_text()
    assert (tmp_path / "w3-rates.png").stat().st_size > 1_000


def test_every_shape_of_the_item_table_takes_and_gives_up_its_items() -> None:
    done = CliRunner().invoke(main, ["shapes", "--runs", "1", "--transactions", "1"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert len(shapes.SHAPES) == done.output.count(" to ") / 2


def test_plain_sql_of_each_form_lets_items_live() -> None:
    done = CliRunner().invoke(main, ["ceilings", "--runs", "1", "--raw-seconds", "0.2"], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    assert all(name in done.output for name in FORMS)


def _percentile_ms(measured: Measured, kind: str, percentile: float) -> float:
    of = histogram()
    of.decode_and_add(measured.histograms[kind].encode())
    return float(of.get_value_at_percentile(percentile)) / 1_000
