"""`python -m loadtest.bench [SCENARIO...]`: every figure the median of some runs, and as a ratio of that minute's R."""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.backlog import backlog
from loadtest.bench.cluster import running_cluster
from loadtest.bench.latency import single_enqueues, to_waiting_consumer
from loadtest.bench.raw import raw_rate
from loadtest.bench.whole_life import whole_life

Figures = dict[str, float]
SCENARIOS = ("whole-life", "single-enqueue", "waiting-consumer", "backlog")


@click.command()
@click.argument("scenarios", nargs=-1, type=click.Choice(SCENARIOS))
@click.option("--runs", default=3, show_default=True, help="Runs of each; their median is the figure.")
@click.option("--seconds", default=5.0, show_default=True, help="Length of a run that has no count.")
@click.option("--items", default=100_000, show_default=True, help="Of whole-life.")
@click.option("--backlog", "backlog_items", default=5_000_000, show_default=True, help="Items of the backlog.")
@click.option("--json", "json_path", type=click.Path(path_type=Path), help="Write all runs there.")
def main(
    scenarios: tuple[str, ...], runs: int, seconds: float, items: int, backlog_items: int, json_path: Path | None
) -> None:
    """Measure this machine: each run of a scenario next to a run of plain SQL."""
    console = Console()
    results: dict[str, list[Figures]] = {}
    for scenario in scenarios or SCENARIOS:
        results[scenario] = []
        for _ in range(1 if scenario == "backlog" else runs):
            figures = {"raw_per_s": raw_rate(seconds)} | _run(scenario, seconds, items, backlog_items)
            if "items_per_s" in figures:
                figures["of_raw"] = figures["items_per_s"] / figures["raw_per_s"]
            results[scenario].append(figures)
            console.print(scenario, {name: round(value, 3) for name, value in figures.items()})
    console.print(_table(results))
    if json_path is not None:
        json_path.write_text(json.dumps(results, indent=1))


def _run(scenario: str, seconds: float, items: int, backlog_items: int) -> Figures:
    run: dict[str, Callable[..., Figures]] = {
        "whole-life": lambda cluster: whole_life(cluster, items),
        "single-enqueue": lambda cluster: single_enqueues(cluster, seconds),
        "waiting-consumer": lambda cluster: to_waiting_consumer(cluster, seconds),
        "backlog": lambda cluster: backlog(cluster, backlog_items),
    }
    with running_cluster() as cluster:
        return run[scenario](cluster)


def _table(results: dict[str, list[Figures]]) -> Table:
    table = Table("scenario", "figure", "median", "min", "max")
    for scenario, runs in results.items():
        for name in runs[0]:
            values = [run[name] for run in runs]
            table.add_row(
                scenario, name, *[f"{value:,.2f}" for value in (statistics.median(values), min(values), max(values))]
            )
    return table


if __name__ == "__main__":
    main()
