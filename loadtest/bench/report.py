"""The readable form of a session: Markdown tables, plots, and the summary for the project's documents."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from loadtest.bench.results import Entry, Figure, Session, Workload, derived, figures_of, phase_names, runs_of

INDEX = "index.md"
_BEGIN, _END = "<!-- against-peers: begin -->", "<!-- against-peers: end -->"
_COLUMNS = (
    ("of_raw", "of R"),
    ("of_raw_by_cpu", "of R by CPU"),
    ("items_per_s", "items/s"),
    ("servers_us", "servers µs"),
    ("clients_us", "clients µs"),
    ("cpu_us", "CPU µs"),
    ("enqueue_p50_ms", "enqueue p50 ms"),
    ("enqueue_p99_ms", "p99"),
    ("claim_p50_ms", "claim p50 ms"),
    ("claim_p99_ms", "p99"),
    ("ready_p50_ms", "ready to claimed p50 ms"),
    ("ready_p99_ms", "p99"),
    ("written_bytes", "written B"),
)


def write_report(session: Session, directory: Path) -> Path:
    """All tables and plots of the session as files in `directory`; the index among them."""
    from loadtest.bench.plots import draw  # matplotlib takes a second, and only a report needs it.

    directory.mkdir(parents=True, exist_ok=True)
    lines = ["# Bench report", "", *(f"- {key}: {value}" for key, value in session.machine.items()), ""]
    for name, workload in session.workloads.items():
        lines += [
            f"## {name.upper()}: {workload.title}",
            "",
            f"Variant: {workload.variant}. {_runs_told(workload)}",
            "",
        ]
        lines += _phase_tables(workload)
        lines += [f"![{title}]({file})" for title, file in draw(name, workload, directory)] + [""]
        lines += _all_figures(workload)
    index = directory / INDEX
    index.write_text("\n".join(lines) + "\n")
    return index


def summary(session: Session) -> str:
    """What the documents show: one table a workload, a row a queue, and what each queue's writes rest on."""
    lines = ["; ".join(f"{key}: {value}" for key, value in session.machine.items()) + ". " + _HOW_TO_READ, ""]
    for name, workload in session.workloads.items():
        lines += [f"**{name.upper()}**: {workload.title} ({workload.variant}). {_runs_told(workload)}", ""]
        lines += _phase_tables(workload)
    told = {queue: entry for of in session.workloads.values() for queue, entry in of.queues.items() if entry.version}
    lines += ["| queue | version | an acknowledged write survives a power cut by |", "| --- | --- | --- |"]
    lines += [f"| {queue} | {entry.version} | {entry.durability} |" for queue, entry in told.items()]
    return "\n".join(lines)


_HOW_TO_READ = (
    "Medians; R is plain SQL, half of it before each run and half after (least and greatest ratio in brackets). CPU in "
    "microseconds an item, of all processes. Written bytes of servers that write through the page cache (all but "
    "foqs, raw and mariadb) count whole folios of it: many times what they write. How to measure: "
    "[loadtest/README.md](LOADTEST)."
)


_TITLES = {
    "foqs": "**foqs**",
    "foqs-compiled": "**foqs**, hot modules compiled (`make compiled`)",
    "raw": "",
    "postgres": "PostgreSQL {}, SKIP LOCKED in batches",
    "pgqueuer": "pgqueuer {}",
    "mariadb": "MariaDB {}, SKIP LOCKED as Solid Queue does it (no leases)",
    "rabbitmq": "RabbitMQ {}, quorum queue (no leases; strict priorities only since 4.3)",
    "beanstalkd": "beanstalkd {}, fsync for each write",
    "redis": "Redis {}, `appendfsync always`, by Lua script",
}
"""For the short table, with the version; what is empty is not in it."""
_SHORT_COLUMNS = (
    ("w3", "items_per_s", "whole life in batches, items/s"),
    ("w3", "of_raw", "relative to plain SQL, one row per item"),
    ("w1", "items_per_s", "single enqueues/s, 64 connections"),
)


def short_summary(session: Session) -> str:
    """A row a queue, best rate first: the medians that a reader wants first."""
    figures = {
        (name, queue): found
        for name in ("w3", "w1")
        for queue, entry in session.workloads[name].queues.items()
        for phase in phase_names(session.workloads[name])
        if (found := figures_of(entry, phase))
    }
    lines = [_row(["", *(title for _, _, title in _SHORT_COLUMNS)]), _row(["---"] * (len(_SHORT_COLUMNS) + 1))]
    queues = [queue for name, queue in figures if name == "w3" and _TITLES.get(queue, queue)]
    for queue in sorted(queues, key=lambda queue: -figures["w3", queue]["items_per_s"].median):
        of_queue = [(figures.get((name, queue), {}), key) for name, key, _ in _SHORT_COLUMNS]
        cells = [_number(found[key].median) if key in found else "" for found, key in of_queue]
        lines.append(_row([_title(queue, session.workloads["w3"].queues[queue]), *cells]))
    return "\n".join(lines)


def _title(queue: str, entry: Entry) -> str:
    number = re.search(r"\d+(\.\d+)+", entry.version)
    return _TITLES.get(queue, queue).format(number.group() if number else "(unknown version)")


def write_docs(session: Session, root: Path) -> list[str]:
    """Replace what stands between the markers in the documents; what was done, file by file."""
    told = []
    bodies = {root / "docs" / "performance.md": summary(session).replace("LOADTEST", "../loadtest/README.md")}
    if {"w3", "w1"} <= session.workloads.keys():
        bodies[root / "README.md"] = short_summary(session)
    for path, body in bodies.items():
        text = path.read_text()
        if _BEGIN not in text or _END not in text:
            told.append(f"{path.name}: has no markers ({_BEGIN} and {_END}), left as it is")
            continue
        before, _, rest = text.partition(_BEGIN)
        after = rest.partition(_END)[2]
        path.write_text(f"{before}{_BEGIN}\n\n{body}\n\n{_END}{after}")
        told.append(f"{path.name}: written")
    return told


def shown(figure: Figure, digits: int | None = None) -> str:
    """The median alone when all runs agree to what is shown."""
    median, least, greatest = (_number(value, digits) for value in (figure.median, figure.least, figure.greatest))
    return median if least == greatest else f"{median} ({least} to {greatest})"


def _number(value: float, digits: int | None = None) -> str:
    if digits is None:
        digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{digits}f}"


def _runs_told(workload: Workload) -> str:
    counts = sorted({len(entry.runs) for entry in workload.queues.values() if entry.runs})
    of = dict.fromkeys(entry.of for entry in workload.queues.values() if entry.runs)
    return f"Runs: {', '.join(map(str, counts)) or 'none'}. {' '.join(of)}"


def _phase_tables(workload: Workload) -> list[str]:
    """A table for each phase, best rate first; then the workload's own ratios."""
    lines: list[str] = []
    names = phase_names(workload)
    for phase in names:
        found = {queue: figures_of(entry, phase) for queue, entry in workload.queues.items()}
        found = {queue: figures for queue, figures in found.items() if figures}
        columns = [(key, title) for key, title in _COLUMNS if any(key in figures for figures in found.values())]
        if len(names) > 1:
            lines += [f"*{phase}*", ""]
        lines += [
            _row(["queue", "calls in flight", *(title for _, title in columns)]),
            _row(["---"] * (len(columns) + 2)),
        ]
        for queue, figures in sorted(found.items(), key=lambda pair: -pair[1]["items_per_s"].median):
            entry = workload.queues[queue]
            count, of = runs_of(entry, phase), len(entry.runs)
            name = queue if count == of else f"{queue} ({count} of {of} runs)"
            lines.append(_row([name, entry.calls.get(phase, ""), *(_cell(figures, key) for key, _ in columns)]))
        lines.append("")
    lines += _derived_table(workload)
    for queue, entry in workload.queues.items():
        if entry.not_run:
            lines += [f"{queue}: n/a, {_first_line(entry.not_run)}", ""]
    return lines


def _cell(figures: dict[str, Figure], key: str) -> str:
    if key not in figures:
        return ""
    return shown(figures[key]) if key.startswith("of_raw") else _number(figures[key].median)


def _derived_table(workload: Workload) -> list[str]:
    rows = [(queue, derived(workload, entry)) for queue, entry in workload.queues.items()]
    names = list(dict.fromkeys(name for _, figures in rows for name in figures))
    if not names:
        return []
    lines = [_row(["queue", *names]), _row(["---"] * (len(names) + 1))]
    for queue, figures in rows:
        if figures:
            lines.append(_row([queue, *(shown(figures[name]) if name in figures else "" for name in names)]))
    return [*lines, ""]


def _all_figures(workload: Workload) -> list[str]:
    lines = ["<details><summary>every figure, median (least to greatest)</summary>", ""]
    for queue, entry in workload.queues.items():
        for phase in phase_names(workload):
            lines += _list_of(queue, entry, phase)
    return [*lines, "</details>", ""]


def _list_of(queue: str, entry: Entry, phase: str) -> list[str]:
    figures = figures_of(entry, phase)
    if not figures:
        return []
    return [f"**{queue}, {phase}**", "", *(f"- {name}: {shown(figure)}" for name, figure in figures.items()), ""]


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _first_line(text: str) -> str:
    """Of a traceback the last one, which says what it was."""
    return text.strip().splitlines()[-1] if "Traceback" in text else text.strip().splitlines()[0]
