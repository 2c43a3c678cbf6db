"""`python -m loadtest.bench [SCENARIO...]`: every figure the median of some runs, and as a ratio of that minute's R."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.backlog import backlog
from loadtest.bench.cluster import Cluster, running_cluster
from loadtest.bench.latency import single_enqueues, to_waiting_consumer
from loadtest.bench.profile import Profiler, report
from loadtest.bench.raw import raw
from loadtest.bench.whole_life import whole_life

Figures = dict[str, float]
SCENARIOS = ("whole-life", "single-enqueue", "waiting-consumer", "backlog")


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS))
@click.option("--runs", default=3, show_default=True, help="Runs of each; their median is the figure.")
@click.option("--seconds", default=5.0, show_default=True, help="Length of a run that has no count.")
@click.option("--items", default=100_000, show_default=True, help="Of whole-life.")
@click.option("--backlog", "backlog_items", default=5_000_000, show_default=True, help="Items of the backlog.")
@click.option("--profile", "is_profiled", is_flag=True, help="Also show where the host's time goes; needs py-spy.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all runs there.")
def main(
    scenarios: tuple[str, ...],
    runs: int,
    seconds: float,
    items: int,
    backlog_items: int,
    is_profiled: bool,
    json_path: Path | None,
) -> None:
    """Measure this machine: each run of a scenario next to a run of plain SQL."""
    console = Console()
    runners: dict[str, Callable[[Cluster], Figures]] = {
        "whole-life": lambda cluster: whole_life(cluster, items),
        "single-enqueue": lambda cluster: single_enqueues(cluster, seconds),
        "waiting-consumer": lambda cluster: to_waiting_consumer(cluster, seconds),
    }
    results: dict[str, list[Figures]] = {}
    for scenario in scenarios or SCENARIOS:
        samples: Counter[str] = Counter()
        if scenario == "backlog":
            with running_cluster() as cluster:
                results[scenario] = backlog(cluster, backlog_items, runs)
        else:
            results[scenario] = [
                _run(runners[scenario], seconds, samples if is_profiled else None) for _ in range(runs)
            ]
        console.print(table(scenario, results[scenario]))
        if samples:
            for part in report(samples, statistics.median(run["host_us"] for run in results[scenario])):
                console.print(part)
    if json_path is not None:
        json_path.write_text(json.dumps(results, indent=1))


def _run(scenario: Callable[[Cluster], Figures], seconds: float, samples: Counter[str] | None) -> Figures:
    """One run right after one of plain SQL, on a server of its own; the host's samples go to `samples`."""
    plain = raw(seconds)
    with running_cluster() as cluster, Profiler(cluster.host_pid) if samples is not None else nullcontext() as profiler:
        figures = scenario(cluster)
    if samples is not None and profiler is not None:
        samples += profiler.samples
    return with_ratios(plain | figures)


def with_ratios(figures: Figures) -> Figures:
    """What is to be compared with plain SQL: the rate, and the CPU of server, host and clients together.

    The second bears other work on the machine far better than the first.
    """
    ratios = {}
    if "items_per_s" in figures:
        ratios["of_raw"] = figures["items_per_s"] / figures["raw_per_s"]
    if "clients_us" in figures:
        cpu_us = figures["mysql_us"] + figures["host_us"] + figures["clients_us"]
        ratios["of_raw_by_cpu"] = (figures["raw_mysql_us"] + figures["raw_clients_us"]) / cpu_us
    return figures | ratios


def table(scenario: str, runs: list[Figures]) -> Table:
    found = Table(scenario, "median", "min", "max", title=f"{len(runs)} runs")
    for name in runs[0]:
        values = [run[name] for run in runs]
        found.add_row(name, *[f"{value:,.2f}" for value in (statistics.median(values), min(values), max(values))])
    return found


if __name__ == "__main__":
    main()
