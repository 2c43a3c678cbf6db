"""What more hosts and more shards cost: `python -m loadtest.bench scale`."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from loadtest.bench.figures import Measured
from loadtest.bench.raw import RAW_SECONDS, Ceiling
from loadtest.bench.report import shown
from loadtest.bench.results import Figure, with_ratios
from loadtest.bench.runner import run
from loadtest.bench.scenario import Clients, Consumers, Phase, Producers, Scenario, Variant, load
from loadtest.peers.adapter import Adapter
from loadtest.peers.foqs import CompiledFoqs, Foqs, compiled_fault
from loadtest.peers.registry import installed, new_adapter

_HOSTS = ("1", "2", "4")
_SHARDS_OF_HOSTS = 8
"""All hosts of a cluster have so many together, on one server."""
_DIVISORS = click.Choice([*_HOSTS, "8"])
_REDIS = "redis"
_SHARDS = (1, 2, 4, 8, 16)
_CALLS = (1, 2)
"""Times as many in flight as the workload says: more than one host can use may be what two need."""
_CLIENTS = {"any host": False, "shard map": True}
"""Whether acks go to the owners of shards, by what clients there are."""
_BUILDS: dict[str, type[Foqs]] = {"interpreted": Foqs, "compiled": CompiledFoqs}
_WORKLOAD = "w3"
console = Console()


@dataclass(frozen=True)
class _Layout:
    scenario: Scenario
    new_adapter: Callable[[], Adapter]


@click.command()
@click.option("--runs", "runs_count", default=3, show_default=True)
@click.option("--quick", "variant", flag_value="quick", default="quick")
@click.option("--full", "variant", flag_value="full")
@click.option("--smoke", "variant", flag_value="smoke")
@click.option(
    "--raw-seconds", default=RAW_SECONDS, show_default=True, help="Of plain SQL, half before, half after each run."
)
@click.option("--hosts-only", is_flag=True, help="Not by shards of one host.")
@click.option("--hosts", "hosts_counts", type=_DIVISORS, multiple=True, default=_HOSTS, show_default=True)
@click.option("--clients", type=click.Choice([*_CLIENTS]), multiple=True, default=[*_CLIENTS], show_default=True)
@click.option("--build", type=click.Choice([*_BUILDS]), multiple=True, help="Default: those that are there.")
@click.option("--calls", "times", type=click.IntRange(1, 8), multiple=True, default=_CALLS, show_default=True)
@click.option("--out", type=click.Path(path_type=Path), help="Directory to write scale.md into.")
def scale(
    runs_count: int,
    variant: Variant,
    raw_seconds: float,
    hosts_only: bool,
    hosts_counts: Sequence[str],
    clients: Sequence[str],
    build: Sequence[str],
    times: Sequence[int],
    out: Path | None,
) -> None:
    """One, two and four hosts of a cluster on the same cores; then the cost of an item from 1 to 16 shards.

    The first by turns, each run next to one of plain SQL, the clients dealt out to the hosts, with the workload's calls
    in flight and with twice as many (--calls); with clients that send all to the host that they know, and with those
    that send acks to the owners of shards (--clients); compiled hosts too where they are built (make compiled), and
    Redis that syncs every write where it is installed. The second with the host and its server on the first half of the
    cores, the clients on the other.
    """
    lines = ["# Scale-out", ""]
    scenario = load(_WORKLOAD, variant)
    if "compiled" in build and (fault := compiled_fault()) is not None:
        raise click.UsageError(f"no compiled hosts: {fault}")
    builds = build or [name for name in _BUILDS if name == "interpreted" or compiled_fault() is None]
    scenarios = [_with_calls(scenario, count) for count in times]
    with Ceiling() as ceiling:
        layouts: dict[str, _Layout] = {}
        for name, count, kind, busier in product(builds, map(int, hosts_counts), clients, scenarios):
            if count > 1 or kind == clients[0]:  # One host is the owner of all shards.
                told = f", {kind}" if count > 1 else ""
                layouts[f"hosts: {count}, calls: {_calls(busier)}{told}, {name}"] = _Layout(
                    _over_hosts(busier, count),
                    partial(_BUILDS[name], count, _SHARDS_OF_HOSTS // count, to_owners=_CLIENTS[kind]),
                )
        if installed(_REDIS) is None:
            layouts |= {
                f"{_REDIS}, calls: {_calls(busier)}": _Layout(busier, partial(new_adapter, _REDIS))
                for busier in scenarios
            }
        found = _by_turns(ceiling, layouts, runs_count, raw_seconds)
        lines += _told(f"{_WORKLOAD.upper()} by hosts, {_SHARDS_OF_HOSTS} shards, all on the same cores", found)
        if not hosts_only:
            lines += _by_shards(ceiling, scenario, runs_count, raw_seconds)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        (out / "scale.md").write_text("\n".join(lines) + "\n")


def _by_shards(ceiling: Ceiling, scenario: Scenario, runs_count: int, raw_seconds: float) -> list[str]:
    cores = sorted(os.sched_getaffinity(0))
    half = max(1, len(cores) // 2)
    parts = cores[:half], cores[half:] or cores
    shards = {f"shards: {count}": _Layout(scenario, partial(_PinnedFoqs, count, *parts)) for count in _SHARDS}
    found = _by_turns(ceiling, shards, runs_count, raw_seconds)
    return _told(
        f"{_WORKLOAD.upper()} by shards of one host, servers on cores {parts[0]}, clients on {parts[1]}", found
    )


def _by_turns(
    ceiling: Ceiling,
    layouts: Mapping[str, _Layout],
    runs_count: int,
    raw_seconds: float,
) -> dict[str, dict[str, Figure]]:
    """Figures by the name of the layout."""
    found: dict[str, list[dict[str, float]]] = {name: [] for name in layouts}
    for _ in range(runs_count):
        for name, layout in layouts.items():
            once = partial(_run_once, layout.scenario, layout.new_adapter())
            raw, measured = ceiling.around(raw_seconds, once)
            found[name].append(with_ratios(raw, measured.figures))
    return {
        name: {key: Figure.of([figures[key] for figures in runs]) for key in runs[0]} for name, runs in found.items()
    }


def _with_calls(scenario: Scenario, times: int) -> Scenario:
    """With as many times the calls in flight."""
    phases = {}
    for name, phase in scenario.phases.items():
        producers, consumers = _clients(phase)
        phases[name] = replace(
            phase,
            producers=replace(producers, in_flight=producers.in_flight * times),
            consumers=replace(consumers, in_flight=consumers.in_flight * times),
        )
    return replace(scenario, phases=phases)


def _over_hosts(scenario: Scenario, hosts_count: int) -> Scenario:
    """With a connection for each host at least, and the same calls in flight."""
    phases = {}
    for name, phase in scenario.phases.items():
        producers, consumers = _clients(phase)
        phases[name] = replace(
            phase,
            producers=replace(producers, **_dealt_out(producers, hosts_count)),
            consumers=replace(consumers, **_dealt_out(consumers, hosts_count)),
        )
    return replace(scenario, phases=phases)


def _dealt_out(clients: Clients, hosts_count: int) -> dict[str, Any]:
    connections = max(clients.connections, -(-hosts_count // clients.processes))
    in_flight = max(1, clients.in_flight * clients.connections // connections)
    return {"connections": connections, "in_flight": in_flight}


def _calls(scenario: Scenario) -> int:
    """In flight, of all clients together."""
    (phase,) = scenario.phases.values()
    return sum(clients.processes * clients.connections * clients.in_flight for clients in _clients(phase))


def _clients(phase: Phase) -> tuple[Producers, Consumers]:
    assert phase.producers is not None
    assert phase.consumers is not None
    return phase.producers, phase.consumers


def _run_once(scenario: Scenario, adapter: Adapter) -> Measured:
    with _cores_kept():
        (measured,) = run(scenario, adapter).values()
    return measured


class _PinnedFoqs(Foqs):
    """Servers inherit the cores of the process that starts them, and so do the clients after them."""

    def __init__(self, shards_count: int, of_servers: Collection[int], of_clients: Collection[int]) -> None:
        super().__init__(1, shards_count)
        self._of_servers, self._of_clients = of_servers, of_clients

    def start(self, directory: Path, topics: Collection[str]) -> None:
        os.sched_setaffinity(0, self._of_servers)
        super().start(directory, tuple(topics))
        os.sched_setaffinity(0, self._of_clients)


@contextmanager
def _cores_kept() -> Iterator[None]:
    before = os.sched_getaffinity(0)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _told(title: str, found: dict[str, dict[str, Figure]]) -> list[str]:
    columns = ("of_raw", "of_raw_by_cpu", "items_per_s", "servers_us", "mysql_us", "hosts_us", "clients_us")
    table = Table("", *columns, title=title)
    lines = [f"## {title}", "", f"| | {' | '.join(columns)} |", f"| {' | '.join(['---'] * (len(columns) + 1))} |"]
    for name, measured in found.items():
        figures = dict(measured)
        of_hosts = [figure for key, figure in figures.items() if key.startswith("host") and key.endswith("_us")]
        if of_hosts:
            sums = [sum(values) for values in zip(*[_three(figure) for figure in of_hosts], strict=True)]
            figures["hosts_us"] = Figure(*sums)
        cells = [shown(figures[key]) if key in figures else "" for key in columns]
        table.add_row(name, *cells)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    console.print(table)
    return [*lines, ""]


def _three(figure: Figure) -> tuple[float, float, float]:
    return figure.median, figure.least, figure.greatest
