"""What is made of the bench's runs: medians, ratios, tables, and the part of the documents that holds them."""

from __future__ import annotations

from pathlib import Path

import pytest

from loadtest.bench.figures import Measured
from loadtest.bench.report import shown, summary, write_docs, write_report
from loadtest.bench.results import Entry, Figure, Run, Session, Workload, derived, figures_of, load_session, with_ratios
from loadtest.bench.scenario import load

_RAW = {"raw_per_s": 20_000.0, "raw_servers_us": 40.0, "raw_clients_us": 10.0, "raw_steadiness": 1.0}
_BEGIN, _END = "<!-- against-peers: begin -->", "<!-- against-peers: end -->"


def _run(items_per_s: float, deep_ms: float) -> Run:
    figures = {"items_per_s": items_per_s, "servers_us": 80.0, "clients_us": 20.0, "claim_p99_ms": 2.0}
    return Run(_RAW, {"few": Measured(figures), "deep": Measured(figures | {"claim_p99_ms": deep_ms})})


def _session() -> Session:
    ratios = {"deep_to_few": ("deep.claim_p99_ms", "few.claim_p99_ms")}
    foqs = Entry(
        "1",
        "fsync",
        {"few": "8 of 100", "deep": "8 of 100"},
        runs=[_run(10_000.0, 3.0), _run(16_000.0, 8.0), _run(12_000.0, 4.0)],
    )
    queues = {"slow": Entry(runs=[_run(5_000.0, 2.0)]), "foqs": foqs, "other": Entry(not_run="has no delay")}
    return Session({"cores": "2"}, {"w5": Workload("drain", "quick", ratios, {}, queues)})


def test_the_rate_and_the_cpu_of_all_processes_are_compared_with_plain_sql() -> None:
    figures = with_ratios(_RAW, _run(15_000.0, 2.0).phases["few"].figures)
    assert figures["of_raw"] == pytest.approx(0.75)
    assert figures["of_raw_by_cpu"] == pytest.approx(0.5)


def test_a_figure_is_the_median_with_the_least_and_the_greatest() -> None:
    entry = _session().workloads["w5"].queues["foqs"]
    assert figures_of(entry, "deep")["items_per_s"] == Figure(12_000.0, 10_000.0, 16_000.0)


def test_a_workloads_ratio_is_made_within_each_run() -> None:
    workload = _session().workloads["w5"]
    assert derived(workload, workload.queues["foqs"])["deep_to_few"] == Figure(2.0, 1.5, 4.0)


def test_a_phase_that_a_run_did_not_come_to_counts_in_the_others() -> None:
    entry = _session().workloads["w5"].queues["foqs"]
    del entry.runs[0].phases["deep"]
    assert figures_of(entry, "deep")["items_per_s"] == Figure(14_000.0, 12_000.0, 16_000.0)


def test_the_report_says_so_where_not_all_runs_came_to_a_phase(tmp_path: Path) -> None:
    session = _session()
    del session.workloads["w5"].queues["foqs"].runs[0].phases["deep"]
    text = write_report(session, tmp_path).read_text()
    assert "| foqs (2 of 3 runs) | 8 of 100 |" in text
    assert "| foqs | 8 of 100 |" in text


def test_the_report_says_of_which_code_the_runs_are(tmp_path: Path) -> None:
    session = _session()
    session.workloads["w5"].queues["foqs"].of = "Commit b."
    session.workloads["w5"].queues["slow"].of = "Commit a."
    assert "Runs: 1, 3. Commit a. Commit b." in write_report(session, tmp_path).read_text()


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    session = _session()
    session.save(tmp_path)
    read = load_session(tmp_path)
    assert read.machine == session.machine
    assert read.workloads["w5"].queues == session.workloads["w5"].queues


def test_the_report_has_the_fastest_first_and_says_what_was_not_run(tmp_path: Path) -> None:
    text = write_report(_session(), tmp_path).read_text()
    assert text.index("| foqs | 8 of 100 |") < text.index("| slow |")
    assert "other: n/a, has no delay" in text
    assert all((tmp_path / f"w5-{kind}.png").exists() for kind in ("rates", "latency"))


def test_documents_are_written_between_their_markers_only(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    performance, readme = tmp_path / "docs" / "performance.md", tmp_path / "README.md"
    performance.write_text(f"before\n{_BEGIN}\nold\n{_END}\nafter\n")
    readme.write_text("no place for it\n")
    told = write_docs(_session(), tmp_path)
    text = performance.read_text()
    assert text.startswith(f"before\n{_BEGIN}\n")
    assert text.endswith(f"{_END}\nafter\n")
    assert "old" not in text
    assert summary(_session()).splitlines()[2] in text
    assert readme.read_text() == "no place for it\n"
    assert len(told) == 1, "a session without the workloads of the short table leaves it alone"


def test_the_readme_has_a_row_a_queue_with_the_fastest_first(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "performance.md").write_text("no place for it\n")
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{_BEGIN}\nold\n{_END}\nafter\n")
    ratios: dict[str, tuple[str, str]] = {}
    rates = {"foqs": 12_000.0, "redis": 20_000.0, "raw": 50_000.0, "another": 1_000.0}
    runs = {queue: Run(_RAW, {"all": _run(rate, 1.0).phases["few"]}) for queue, rate in rates.items()}
    queues = {queue: Entry(f"{queue} v=7.0.15", runs=[run]) for queue, run in runs.items()}
    single = {"foqs": Entry(runs=[runs["another"]]), "redis": Entry(not_run="it was not there")}
    session = Session(
        {},
        {
            "w1": Workload("one", "quick", ratios, ratios, single),
            "w3": Workload("many", "quick", ratios, ratios, queues),
        },
    )
    told = write_docs(session, tmp_path)
    assert "performance.md: has no markers" in told[0]
    rows = readme.read_text().splitlines()
    assert (rows[0], rows[-1]) == ("before", "after")
    assert [row for row in rows if row.startswith("| ")][2:] == [
        "| Redis 7.0.15, `appendfsync always`, by Lua script | 20,000 | 1.00 |  |",
        "| **foqs** | 12,000 | 0.60 | 1,000 |",
        "| another | 1,000 | 0.05 |  |",
    ]


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (Figure(1.234, 1.0, 2.0), "1.23 (1.00 to 2.00)"),
        (Figure(5.0, 5.0, 5.0), "5.00"),
        (Figure(12_345.6, 12_345.6, 12_345.6), "12,346"),
    ],
)
def test_figures_are_shown_to_three_digits_or_so(figure: Figure, text: str) -> None:
    assert shown(figure) == text


def test_runs_that_are_made_anew_replace_their_own_and_those_of_another_size_replace_all() -> None:
    workload = _session().workloads["w5"]
    workload.renew(load("w5", "quick"), ["slow"])
    assert list(workload.queues) == ["foqs", "other"]
    workload.renew(load("w5", "full"), ["slow"])
    assert not workload.queues
    assert workload.variant == "full"
