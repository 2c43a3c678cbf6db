"""What one form of foqs costs next to another: `python -m loadtest.bench pairs`."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import cast

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.figures import Measured
from loadtest.bench.results import code_and_time
from loadtest.bench.runner import run
from loadtest.bench.scenario import Variant, load
from loadtest.peers.registry import forms, new_adapter

RATIOS = ("host_us", "servers_us", "items_per_s")
"""The figures of which the ratio is told: CPU an item, and the rate that stands beside it."""
P50 = "enqueue_p50_ms"
"""The figure of which the difference is told: what a call takes longer."""
console = Console()


@click.command()
@click.argument("workloads", nargs=-1, required=True)
@click.option("--of", "base", type=click.Choice(forms()), default="foqs", show_default=True)
@click.option("--with", "other", type=click.Choice(forms()), required=True)
@click.option("--pairs", "pairs_count", default=7, show_default=True, type=click.IntRange(min=1))
@click.option(
    "--together",
    is_flag=True,
    help="Run both of a pair at the same time, so that they share what else the machine does.",
)
@click.option("--quick", "variant", flag_value="quick", default="quick")
@click.option("--full", "variant", flag_value="full")
@click.option("--smoke", "variant", flag_value="smoke")
@click.option("--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Where the figures go.")
def pairs(
    workloads: tuple[str, ...],
    base: str,
    other: str,
    pairs_count: int,
    together: bool,
    variant: str,
    json_path: Path | None,
) -> None:
    """Run WORKLOADS with both queues by turns, each time another one first. Prints medians of the ratios of the pairs.

    A ratio of CPU below 1 is of a dearer other queue, as is one of rates. Of the p50 of an enqueue the difference is
    told, which says most of the workload `lone`.
    """
    told: dict[str, dict[str, float | list[float]]] = {}
    for name in workloads:
        scenario = load(name, cast(Variant, variant))
        found: list[dict[str, dict[str, Measured]]] = []
        for number in range(pairs_count):
            order = (base, other) if number % 2 == 0 else (other, base)
            with ThreadPoolExecutor(len(order) if together else 1) as threads:
                runs = {queue: threads.submit(run, scenario, new_adapter(queue)) for queue in order}
                found.append({queue: running.result() for queue, running in runs.items()})
            console.print(f"{name}: pair {number + 1} done", highlight=False)
        for phase in scenario.phases:
            if not all(phase in measured for pair in found for measured in pair.values()):
                continue  # One was saturated before, and left it out.
            told[f"{name} {phase}"] = _compared([(pair[base][phase], pair[other][phase]) for pair in found])
    _print(told, base, other)
    if json_path is not None:
        json_path.parent.mkdir(parents=True, exist_ok=True)
        of = code_and_time()
        json_path.write_text(
            json.dumps({"of": of, "base": base, "other": other, "together": together, "phases": told}, indent=1) + "\n"
        )


def _compared(pairs_of_phase: list[tuple[Measured, Measured]]) -> dict[str, float | list[float]]:
    found: dict[str, float | list[float]] = {}
    for key in RATIOS:
        values = [(before.figures[key], after.figures[key]) for before, after in pairs_of_phase]
        ratios = [after / before if key == "items_per_s" else before / after for before, after in values]
        found |= {f"{key}_ratio": median(ratios), f"{key}_ratios": sorted(ratios)}
        found |= {f"{key}_base": median(v[0] for v in values), f"{key}_other": median(v[1] for v in values)}
    p50s = [(before.figures[P50], after.figures[P50]) for before, after in pairs_of_phase if P50 in before.figures]
    if p50s:
        more = [after - before for before, after in p50s]
        found |= {f"{P50}_more": median(more), f"{P50}_mores": sorted(more)}
        found |= {f"{P50}_base": median(v[0] for v in p50s), f"{P50}_other": median(v[1] for v in p50s)}
    return found


def _print(told: dict[str, dict[str, float | list[float]]], base: str, other: str) -> None:
    table = Table(
        "phase",
        "CPU of the host",
        "least to greatest",
        "µs an item",
        "CPU of servers",
        "rate",
        "items/s",
        "enqueue p50, ms",
    )
    for phase, found in told.items():
        ratios = cast(list[float], found["host_us_ratios"])
        table.add_row(
            phase,
            f"{found['host_us_ratio']:.3f}",
            f"{ratios[0]:.3f} to {ratios[-1]:.3f}",
            f"{found['host_us_base']:.1f}, {found['host_us_other']:.1f}",
            f"{found['servers_us_ratio']:.3f}",
            f"{found['items_per_s_ratio']:.3f}",
            f"{found['items_per_s_base']:,.0f}, {found['items_per_s_other']:,.0f}",
            _p50_told(found),
        )
    console.print(f"{base} over {other}, medians of the ratios of pairs", highlight=False)
    console.print(table)


def _p50_told(found: dict[str, float | list[float]]) -> str:
    if f"{P50}_more" not in found:
        return ""
    more = cast(list[float], found[f"{P50}_mores"])
    return (
        f"{found[f'{P50}_base']:.2f}, {found[f'{P50}_other']:.2f}: {found[f'{P50}_more']:+.2f} "
        f"({more[0]:+.2f} to {more[-1]:+.2f})"
    )
