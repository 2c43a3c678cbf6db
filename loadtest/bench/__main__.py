"""`python -m loadtest.bench`: measure foqs, plain SQL and other queues with the workloads of loadtest/workloads."""

from __future__ import annotations

import signal
import statistics
import sys
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import cast

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench import profile, results, shapes
from loadtest.bench.pairs import pairs
from loadtest.bench.raw import FORMS, RAW_SECONDS, Ceiling
from loadtest.bench.report import shown, write_docs, write_report
from loadtest.bench.results import Entry, Run, Session, Workload
from loadtest.bench.runner import run, unfit
from loadtest.bench.scale import scale
from loadtest.bench.scenario import Phase, Scenario, ScenarioError, Variant, load, names
from loadtest.peers import registry
from loadtest.peers.adapter import Adapter
from loadtest.peers.program import NotInstalledError

ROOT = Path(__file__).resolve().parents[2]
console = Console()


@click.group()
def main() -> None:
    """Measure queues on this machine, each run next to one of plain SQL on foqs's own table."""


@main.command("list")
def list_all() -> None:
    """Workloads and queues that there are."""
    table = Table("workload", "")
    for name in names():
        table.add_row(name, load(name).title)
    console.print(table)
    table = Table("queue", "", "lacks")
    for name in registry.names():
        try:
            adapter = registry.new_adapter(name)
            table.add_row(name, adapter.durability, ", ".join(sorted(adapter.lacks)))
        except NotInstalledError as error:
            table.add_row(name, f"not installed: {error}", "")
    console.print(table)


@main.command("run")
@click.argument("workloads", nargs=-1, required=True)
@click.option("--peer", default="foqs", show_default=True, help="Queues, with commas between them; `all` for all.")
@click.option("--runs", "runs_count", default=3, show_default=True, help="Of each; their median is the figure.")
@click.option("--quick", "variant", flag_value="quick", help="Shorter runs, smaller backlogs.")
@click.option("--smoke", "variant", flag_value="smoke", help="So small that the figures say nothing.")
@click.option("--full", "variant", flag_value="full", default="full", help="As the workload says (the default).")
@click.option("--out", type=click.Path(path_type=Path), help="Directory of the report; what it has of others is kept.")
@click.option("--add", "is_added", is_flag=True, help="Add to the runs of the same that the report has.")
@click.option(
    "--raw-seconds", default=RAW_SECONDS, show_default=True, help="Of plain SQL, half before each run and half after."
)
@click.option("--profile", "is_profiled", is_flag=True, help="Also show where the host's time goes; needs py-spy.")
@click.option("--write-docs", "is_for_docs", is_flag=True, help="Put the tables into the project's documents.")
def run_all(
    workloads: tuple[str, ...],
    peer: str,
    runs_count: int,
    variant: str,
    out: Path | None,
    is_added: bool,
    raw_seconds: float,
    is_profiled: bool,
    is_for_docs: bool,
) -> None:
    """Run WORKLOADS (see `list`), print their figures, and write a report."""
    queues = registry.names() if peer == "all" else peer.split(",")
    if unknown := sorted(set(queues) - {*registry.names()}):
        raise click.UsageError(f"no queue {', '.join(unknown)}: there are {', '.join(registry.names())}")
    try:
        scenarios = [load(name, cast(Variant, variant)) for name in workloads]
    except ScenarioError as error:
        raise click.UsageError(str(error)) from error
    kept = out is not None and (out / results.FILE_NAME).exists()
    session = results.load_session(out) if kept and out is not None else Session(results.this_machine())
    for scenario in scenarios:
        workload = session.workload(scenario)
        failed = [name for name, entry in workload.queues.items() if entry.not_run]
        workload.renew(scenario, failed if is_added else queues)
    with Ceiling() as ceiling:
        for scenario in scenarios:
            samples: Counter[str] | None = Counter() if is_profiled else None
            _measure(session, scenario, queues, runs_count, ceiling, raw_seconds, samples, out)
    if out is not None:
        console.print(f"report: {write_report(session, out)}")
    if is_for_docs:
        for told in write_docs(session, ROOT):
            console.print(told)
    if any(session.workloads[scenario.name].queues[name].not_run for scenario in scenarios for name in queues):
        sys.exit(1 if peer != "all" else 0)


@main.command("report")
@click.argument("directory", type=click.Path(path_type=Path, exists=True))
@click.option("--write-docs", "is_for_docs", is_flag=True, help="Put the tables into the project's documents.")
def report_again(directory: Path, is_for_docs: bool) -> None:
    """Write the report of the results in DIRECTORY again."""
    session = results.load_session(directory)
    console.print(f"report: {write_report(session, directory)}")
    for told in write_docs(session, ROOT) if is_for_docs else []:
        console.print(told)


@main.command("shapes")
@click.option("--runs", "runs_count", default=3, show_default=True, help="Of each; their median is the figure.")
@click.option("--transactions", default=50, show_default=True, help="A run, of inserts and of deletes each.")
def show_shapes(runs_count: int, transactions: int) -> None:
    """CPU microseconds of the server an item, by the shape of the item table."""
    runs = [shapes.measure(transactions) for _ in range(runs_count)]
    table = Table("item table", "insert µs", "delete µs")
    for found in zip(*runs, strict=True):
        figures = [sorted(row[name] for row in found) for name in ("insert_us", "delete_us")]
        cells = [f"{statistics.median(each):.1f} ({each[0]:.1f} to {each[-1]:.1f})" for each in figures]
        table.add_row(found[0]["shape"], *cells)
    console.print(table)


@main.command("ceilings")
@click.option("--runs", "runs_count", default=3, show_default=True, help="Of each, by turns.")
@click.option("--raw-seconds", default=RAW_SECONDS, show_default=True, help="Of each run.")
def show_ceilings(runs_count: int, raw_seconds: float) -> None:
    """R, which everything is compared with, next to plain SQL of other forms."""
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in FORMS}
    with Ceiling() as ceiling:
        for _ in range(runs_count):
            for name, form in FORMS.items():
                runs[name].append(ceiling.measure(raw_seconds, form))
    of_r = [found["raw_per_s"] for found in runs[next(iter(FORMS))]]
    table = Table("plain SQL", "items/s", "of R", "server µs", "clients µs")
    for name, each in runs.items():
        ratios = [found["raw_per_s"] / r for found, r in zip(each, of_r, strict=True)]
        figures = [[found[key] for found in each] for key in ("raw_per_s", "raw_servers_us", "raw_clients_us")]
        rate, servers, clients = (shown(results.Figure.of(values)) for values in figures)
        table.add_row(name, rate, shown(results.Figure.of(ratios)), servers, clients)
    console.print(table)


def _measure(
    session: Session,
    scenario: Scenario,
    queues: list[str],
    runs_count: int,
    ceiling: Ceiling,
    raw_seconds: float,
    samples: Counter[str] | None,
    out: Path | None,
) -> None:
    """Queues take turns, so that what else the machine does meets them alike."""
    workload = session.workload(scenario)
    begun = results.code_and_time()
    for number in range(runs_count):
        # Each time another one first: none shall always follow the same other's writes.
        first = number % len(queues)
        for name in queues[first:] + queues[:first]:
            entry = workload.queues.setdefault(name, Entry())
            if entry.not_run:
                continue
            _one_run(entry, scenario, name, ceiling, raw_seconds, samples)
            entry.of = begun
            if out is not None:
                session.save(out)
    for name in queues:
        _print(scenario, workload, name, samples)


def _one_run(
    entry: Entry,
    scenario: Scenario,
    name: str,
    ceiling: Ceiling,
    raw_seconds: float,
    samples: Counter[str] | None,
) -> None:
    """A failure ends the runs of this queue at this workload; the others go on."""
    try:
        adapter = registry.new_adapter(name)
        if reason := unfit(scenario, adapter):
            entry.not_run = reason
            return
        entry.durability = adapter.durability
        entry.calls = {phase: calls_told(of, adapter) for phase, of in scenario.phases.items()}
        versions = []

        def observe(pids: dict[str, int]) -> AbstractContextManager[object]:
            versions.append(adapter.version())
            if samples is None or "host" not in pids:
                return nullcontext()
            return profile.Profiler(pids["host"], samples)

        raw, phases = ceiling.around(raw_seconds, lambda: run(scenario, adapter, observe))
        entry.runs.append(Run(raw, phases))
        entry.version = versions[0]
    except Exception as error:  # Whatever a peer and its driver raise: one that fails must not end the others' session.
        entry.not_run = f"{type(error).__name__}: {error}"
    console.print(
        f"{scenario.name} {name}: run {len(entry.runs)} {entry.not_run or 'done'}", highlight=False, markup=False
    )


def calls_told(phase: Phase, adapter: Adapter) -> str:
    """Calls in flight and items a call."""
    told = []
    for kind, clients in (("producers", phase.producers), ("consumers", phase.consumers)):
        if clients is not None:
            calls = clients.processes * clients.connections * clients.in_flight
            told.append(f"{kind} {calls} of {min(clients.batch, adapter.batch_max)}")
    return ", ".join(told)


def _print(scenario: Scenario, workload: Workload, name: str, samples: Counter[str] | None) -> None:
    entry = workload.queues[name]
    for phase in scenario.phases:
        figures = results.figures_of(entry, phase)
        if figures:
            table = Table(f"{scenario.name} {phase}", name, title=f"{len(entry.runs)} runs: median (least to greatest)")
            for figure_name, figure in figures.items():
                table.add_row(figure_name, shown(figure))
            console.print(table)
    for figure_name, figure in results.derived(workload, entry).items():
        console.print(f"{figure_name}: {shown(figure)}", highlight=False)
    if samples and name == "foqs":
        of_all_phases = [
            sum(phase.figures["host_us"] * phase.figures["items"] for phase in run.phases.values())
            / sum(phase.figures["items"] for phase in run.phases.values())
            for run in entry.runs
        ]
        for part in profile.report(samples, statistics.median(of_all_phases)):
            console.print(part)


main.add_command(pairs)
main.add_command(scale)

if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # Servers are stopped on the way out.
    main()
