"""What a session of the bench measured: every run kept, as JSON; medians and ratios are made from it."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.bench.figures import Measured
from loadtest.bench.scenario import Scenario

FILE_NAME = "results.json"


@dataclass
class Run:
    """Plain SQL in the moment before, and each phase."""

    raw: dict[str, float]
    phases: dict[str, Measured]


@dataclass
class Entry:
    """One queue at one workload. `not_run` says why there are no runs, or what ended them."""

    version: str = ""
    durability: str = ""
    calls: dict[str, str] = field(default_factory=dict)
    """By phase: calls in flight and items a call."""
    not_run: str = ""
    of: str = ""
    """The code that was measured last, and when."""
    runs: list[Run] = field(default_factory=list)


@dataclass
class Workload:
    title: str
    variant: str
    ratios: dict[str, tuple[str, str]]
    differences: dict[str, tuple[str, str]]
    queues: dict[str, Entry] = field(default_factory=dict)

    def renew(self, scenario: Scenario, queues: Collection[str]) -> None:
        """Forget the runs of these queues, and of all when they were of another variant."""
        kept = self.queues if scenario.variant == self.variant else {}
        self.title, self.variant = scenario.title, scenario.variant
        self.ratios, self.differences = scenario.ratios, scenario.differences
        self.queues = {name: entry for name, entry in kept.items() if name not in queues}


@dataclass
class Session:
    machine: dict[str, str] = field(default_factory=dict)
    workloads: dict[str, Workload] = field(default_factory=dict)

    def workload(self, scenario: Scenario) -> Workload:
        fresh = Workload(scenario.title, scenario.variant, scenario.ratios, scenario.differences)
        return self.workloads.setdefault(scenario.name, fresh)

    def save(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        (directory / FILE_NAME).write_text(json.dumps(asdict(self), indent=1))


@dataclass(frozen=True)
class Figure:
    """The median of some runs, with the least and the greatest."""

    median: float
    least: float
    greatest: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Figure:
        return cls(statistics.median(values), min(values), max(values))


def load_session(directory: Path) -> Session:
    document = json.loads((directory / FILE_NAME).read_text())
    return Session(document["machine"], {name: _workload(of) for name, of in document["workloads"].items()})


def _workload(document: dict[str, Any]) -> Workload:
    queues = {
        name: Entry(**entry | {"runs": [_run(run) for run in entry["runs"]]})
        for name, entry in document["queues"].items()
    }
    return Workload(**document | {"queues": queues})


def _run(document: dict[str, Any]) -> Run:
    return Run(document["raw"], {name: Measured(**phase) for name, phase in document["phases"].items()})


def this_machine() -> dict[str, str]:
    models = [line for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    model = models[0].partition(":")[2].strip() if models else platform.machine()
    return {
        "cores": f"{len(os.sched_getaffinity(0))} of {model}",
        "kernel": platform.release().partition("-")[0],
        "python": f"{platform.python_version()}, {_maker_of_python()}",
    }


def _maker_of_python() -> str:
    """A distribution builds it with a profile of its use; one built with `./configure && make` is slower by a third."""
    return "the distribution's" if Path(sys.base_prefix) == Path("/usr") else "not the distribution's"


def code_and_time() -> str:
    asked = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = "unknown"
    begun = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"Commit {commit}, begun {begun}, load before {os.getloadavg()[0]:.1f}."


def with_ratios(raw: dict[str, float], figures: dict[str, float]) -> dict[str, float]:
    """The figures, with the rate and the CPU of servers and clients together compared with plain SQL.

    The second bears other work on the machine far better than the first.
    """
    cpu_us = figures["servers_us"] + figures["clients_us"]
    return {
        "raw_steadiness": raw["raw_steadiness"],
        "of_raw": figures["items_per_s"] / raw["raw_per_s"],
        "of_raw_by_cpu": (raw["raw_servers_us"] + raw["raw_clients_us"]) / cpu_us if cpu_us else 0.0,
    } | figures


def figures_of(entry: Entry, phase: str) -> dict[str, Figure]:
    """By name, of those runs that came to this phase."""
    runs = [with_ratios(run.raw, run.phases[phase].figures) for run in entry.runs if phase in run.phases]
    if not runs:
        return {}
    shared = [name for name in runs[0] if all(name in run for run in runs)]
    return {name: Figure.of([run[name] for run in runs]) for name in shared}


def derived(workload: Workload, entry: Entry) -> dict[str, Figure]:
    """The ratios and differences that the workload names, each made within one run."""
    found = {}
    for pairs, combine in ((workload.ratios, _ratio), (workload.differences, _difference)):
        for name, (upper, lower) in pairs.items():
            values = [
                combine(run_figure(run, upper), run_figure(run, lower))
                for run in entry.runs
                if has_figure(run, upper) and has_figure(run, lower)
            ]
            if values:
                found[name] = Figure.of(values)
    return found


def has_figure(run: Run, place: str) -> bool:
    phase, _, name = place.rpartition(".")
    return phase in run.phases and name in run.phases[phase].figures


def run_figure(run: Run, place: str) -> float:
    """`place` is `phase.figure`."""
    phase, _, name = place.rpartition(".")
    return run.phases[phase].figures[name]


def runs_of(entry: Entry, phase: str) -> int:
    """How many came to this phase."""
    return sum(phase in run.phases for run in entry.runs)


def phase_names(workload: Workload) -> list[str]:
    """In order, of all that any run came to."""
    names: dict[str, None] = {}
    for entry in workload.queues.values():
        for run in entry.runs:
            names |= dict.fromkeys(run.phases)
    return list(names)


def _ratio(upper: float, lower: float) -> float:
    return upper / lower if lower else 0.0


def _difference(upper: float, lower: float) -> float:
    return upper - lower
