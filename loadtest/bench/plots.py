"""Plots of a workload: rates, CPU an item, latency over the rate, and latency by percentile."""

from __future__ import annotations

import re
from pathlib import Path

from hdrh.histogram import HdrHistogram
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from loadtest.bench.results import Workload, figures_of, phase_names
from loadtest.bench.stamp import histogram

_PERCENTILES = (50, 75, 90, 95, 99, 99.5, 99.9, 99.99)


def draw(name: str, workload: Workload, directory: Path) -> list[tuple[str, str]]:
    """Titles and names of the files written."""
    if not phase_names(workload):
        return []
    drawn = [
        _save(_rates(workload), directory / f"{name}-rates.png", "items/s and CPU an item"),
        _save(_percentiles(workload), directory / f"{name}-latency.png", "latency by percentile"),
    ]
    if len(_by_rate(workload)) > 1:
        drawn.append(_save(_curve(workload), directory / f"{name}-curve.png", "from ready to claimed, by rate"))
    return drawn


def _save(figure: Figure, path: Path, title: str) -> tuple[str, str]:
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    return title, path.name


def _rates(workload: Workload) -> Figure:
    figure = Figure(figsize=(11, 4.5))
    rates, costs = figure.subplots(1, 2)
    phase = phase_names(workload)[-1]
    found = {queue: figures for queue, entry in workload.queues.items() if (figures := figures_of(entry, phase))}
    queues = list(found)
    items_per_s = [figures["items_per_s"] for figures in found.values()]
    below = [figure.median - figure.least for figure in items_per_s]
    above = [figure.greatest - figure.median for figure in items_per_s]
    rates.barh(queues, [figure.median for figure in items_per_s], xerr=[below, above])
    rates.set_xlabel(f"items/s, median with least and greatest ({phase})")
    servers = [figures["servers_us"].median for figures in found.values()]
    costs.barh(queues, servers, label="servers")
    costs.barh(queues, [figures["clients_us"].median for figures in found.values()], left=servers, label="clients")
    costs.set_xlabel("CPU, microseconds an item")
    costs.legend()
    return figure


def _percentiles(workload: Workload) -> Figure:
    """Of the last phase: from ready to claimed where that is measured, else of the enqueue call."""
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    phase = phase_names(workload)[-1]
    for queue, entry in workload.queues.items():
        runs = [run.phases[phase].histograms for run in entry.runs if phase in run.phases]
        kind = next((kind for kind in ("ready", "enqueue", "claim") if any(kind in run for run in runs)), None)
        if kind is None:
            continue
        merged = _merged([run[kind] for run in runs if kind in run])
        values = [merged.get_value_at_percentile(percentile) / 1_000 for percentile in _PERCENTILES]
        axes.plot(range(len(_PERCENTILES)), values, marker="o", label=f"{queue}: {kind}")
    axes.set_xticks(range(len(_PERCENTILES)), [f"{percentile}" for percentile in _PERCENTILES])
    axes.set_xlabel("percentile")
    _finish(axes, f"ms ({phase})")
    return figure


def _curve(workload: Workload) -> Figure:
    figure = Figure(figsize=(8, 4.5))
    axes = figure.subplots()
    for queue, entry in workload.queues.items():
        found = {rate: figures_of(entry, phase) for rate, phase in _by_rate(workload).items()}
        found = {rate: figures for rate, figures in found.items() if "ready_p99_ms" in figures}
        if not found:
            continue
        p99 = [figures["ready_p99_ms"].median for figures in found.values()]
        p50 = [figures["ready_p50_ms"].median for figures in found.values()]
        (line,) = axes.plot(list(found), p99, marker="o", label=f"{queue} p99")
        axes.plot(list(found), p50, marker=".", linestyle=":", color=line.get_color())
    axes.set_xscale("log")
    axes.set_xlabel("items due a second")
    _finish(axes, "ms, p99 solid and p50 dotted")
    return figure


def _by_rate(workload: Workload) -> dict[int, str]:
    """Phases that are named by their rate."""
    named = {phase: re.match(r"\d+", phase) for phase in phase_names(workload)}
    return {int(match[0]): phase for phase, match in named.items() if match}


def _merged(encoded: list[str]) -> HdrHistogram:
    merged = histogram()
    for one in encoded:
        merged.decode_and_add(one.encode())
    return merged


def _finish(axes: Axes, label: str) -> None:
    axes.set_ylabel(label)
    axes.grid(visible=True, which="both", alpha=0.3)
    if axes.lines:
        axes.set_yscale("log")
        axes.legend()
