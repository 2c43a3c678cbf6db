"""The verdicts of several rounds together, and as tables for people."""

from __future__ import annotations

import statistics
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from tests.histories.checker import Report
from tests.histories.history import Call, Outcome, Verb
from tests.histories.lives import Stored
from tests.histories.splitting import write_stored

PROMISES = {
    "P1": "lost, or not as it was enqueued",
    "P2": "vanished or stuck after its delivery",
    "P3": "delivered twice within a lease",
    "P4": "at-most-once delivered twice",
    "P5": "stale receipt accepted, or back after its ack",
    "P6": "order violated",
    "P7": "early, expired, or redelivered late",
    "P8": "written by a host that had lost the shard",
    "P9": "id used twice",
    "P12": "call without an answer in time",
    "P13": "two items of one dedup id",
    "O1": "two items of a serial topic or a key at once, or out of turn",
    "in flight": "more items under lease than in_flight_max",
}
"""What a violation of each means, as rows of the table."""
EXAMPLES_MAX = 20


@dataclass(slots=True)
class Tally:
    """Of several rounds. `recovery_ms`: from the end of a fault to the first answer, by kind of fault."""

    counts: Counter[str] = field(default_factory=Counter)
    violations: Counter[str] = field(default_factory=Counter)
    examples: list[str] = field(default_factory=list)
    recovery_ms: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    @property
    def violation_count(self) -> int:
        return self.violations.total()

    def add(self, report: Report, problems: Iterable[str] = ()) -> None:
        """One round: the checker's report and what audits of the tables found."""
        self.counts += report.counts
        self.violations.update(violation.promise for violation in report.violations)
        found = list(problems)
        self.violations["audit"] += len(found)
        self.examples += [*map(str, report.violations[:EXAMPLES_MAX]), *found]
        del self.examples[EXAMPLES_MAX:]

    def as_json(self) -> dict[str, Any]:
        return {
            "counts": dict(sorted(self.counts.items())),
            "violations": {promise: self.violations[promise] for promise in [*PROMISES, "audit"]},
            "examples": self.examples,
            "recovery_ms": {kind: spread(values) for kind, values in sorted(self.recovery_ms.items())},
        }


def keep(calls: Iterable[Call], stored: Iterable[Stored]) -> Path:
    """Write a history down for `python -m tests.histories.checker HISTORY --stored ROWS`; the directory of both."""
    directory = Path(tempfile.mkdtemp(prefix="foqs-red-"))
    with (directory / "history").open("w", encoding="utf-8") as file:
        for call in calls:
            file.writelines(call.lines())
    write_stored(directory / "rows", stored)
    return directory


def spread(values: Sequence[int]) -> dict[str, int]:
    """How many there are, their median and their maximum."""
    if not values:
        return {"count": 0}
    return {"count": len(values), "median": int(statistics.median(values)), "max": max(values)}


def first_done_after(calls: Iterable[Call], verb: Verb, at_ms: int) -> int | None:
    """When the first call of this verb that began later was answered with success; None when there is none."""
    answers = [
        call.returned_at_ms
        for call in calls
        if call.verb is verb
        and call.invoked_at_ms > at_ms
        and call.returned_at_ms is not None
        and call.outcome is Outcome.OK
        and (verb is not Verb.DEQUEUE or call.taken)
    ]
    return min(answers, default=None)


def promises_table(columns: dict[str, Tally]) -> Table:
    """Violations by promise, a column for each tally."""
    table = Table("promise", "what a violation is", *columns, title="violations")
    for promise, what in {**PROMISES, "audit": "the tables are not sound"}.items():
        table.add_row(promise, what, *[f"{tally.violations[promise]:,}" for tally in columns.values()])
    return table


def counts_table(columns: dict[str, Tally]) -> Table:
    """Everything that was counted, a column for each tally."""
    table = Table("counted", *columns, title="what was compared")
    for name in sorted({name for tally in columns.values() for name in tally.counts}):
        table.add_row(name, *[f"{tally.counts[name]:,}" for tally in columns.values()])
    return table


def recovery_table(tally: Tally) -> Table:
    table = Table("fault", "times", "median ms", "max ms", title="time to recover")
    for kind, values in sorted(tally.recovery_ms.items()):
        found = spread(values)
        table.add_row(kind, *[f"{found.get(name, 0):,}" for name in ("count", "median", "max")])
    return table
