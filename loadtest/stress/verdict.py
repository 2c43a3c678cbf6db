"""What was found and what it had to be, for people and as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table


@dataclass(frozen=True, slots=True)
class Bound:
    """`found` must be at most `limit`, or at least it."""

    what: str
    found: float
    limit: float
    is_least: bool = False

    @property
    def holds(self) -> bool:
        return self.found >= self.limit if self.is_least else self.found <= self.limit


@dataclass(slots=True)
class Verdict:
    """`rows`: one for each stretch, fault or minute, all with the same keys."""

    name: str
    rows: list[dict[str, Any]] = field(default_factory=list)
    bounds: list[Bound] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    """What the bounds are reckoned from, and how the run was made."""

    @property
    def broken(self) -> list[Bound]:
        return [bound for bound in self.bounds if not bound.holds]

    def publish(self, console: Console, json_path: Path | None) -> None:
        """Print the tables, write the JSON, and raise ClickException (exit code 1) when a bound does not hold."""
        if self.rows:
            console.print(_facing(self.name, self.rows))
        for what, value in self.facts.items():
            console.print(f"{what}: {_shown(value)}")
        verdicts = [
            (
                bound.what,
                bound.found,
                f"{'>=' if bound.is_least else '<='} {_shown(bound.limit)}",
                "holds" if bound.holds else "BROKEN",
            )
            for bound in self.bounds
        ]
        console.print(_table("bounds", ["bound", "found", "must be", ""], verdicts))
        if json_path is not None:
            json_path.parent.mkdir(parents=True, exist_ok=True)
            json_path.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        if self.broken:
            raise click.ClickException(f"{len(self.broken)} of {len(self.bounds)} bounds do not hold")

    def as_json(self) -> Mapping[str, Any]:
        bounds = [
            {
                "what": b.what,
                "found": b.found if isfinite(b.found) else None,
                "limit": b.limit,
                "is_least": b.is_least,
                "holds": b.holds,
            }
            for b in self.bounds
        ]
        return {"name": self.name, "facts": self.facts, "rows": self.rows, "bounds": bounds}


def _facing(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """The longer side down: many minutes as rows, a few stretches with many figures each as columns."""
    keys = list(rows[0])
    if len(rows) >= len(keys):
        return _table(title, keys, [list(row.values()) for row in rows])
    columns = [keys[0], *[str(row[keys[0]]) for row in rows]]
    return _table(title, columns, [[key, *[row[key] for row in rows]] for key in keys[1:]])


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    table = Table(*columns, title=title)
    for row in rows:
        table.add_row(*map(_shown, row))
    return table


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
