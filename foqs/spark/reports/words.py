"""Numbers and times in the words of reports."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foqs.model.event_log import BOUNDS_MS

OTHERS = "(others)"
"""Name for topics and namespaces without rows of their own."""


def duration(ms: float | None) -> str:
    """A duration in a suitable unit."""
    if ms is None:
        return "–"
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s")):
        if ms >= size:
            return f"{ms / size:.3g} {unit}"
    return f"{ms:.3g} ms"


def count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def percent(share: float | None) -> str:
    return "–" if share is None else f"{share * 100:.3g} %"


def percentile(row: Mapping[str, Any], name: str, rank: str) -> str:
    """A percentile of a row of the delivery table: exact if lives are sampled, else the bound of its bucket."""
    exact = row.get(f"sampled_{name}_{rank}_ms")
    if exact is not None:
        return duration(exact)
    if not row.get(f"{name}_count"):
        return "–"
    bound = row.get(f"{name}_{rank}_ms_max")
    return f"≤ {duration(bound)}" if bound is not None else f"> {duration(BOUNDS_MS[-1])}"


def plotted(row: Mapping[str, Any], name: str, rank: str) -> float | None:
    """The same as a number for a plot."""
    exact = row.get(f"sampled_{name}_{rank}_ms")
    if exact is None and row.get(f"{name}_count"):
        exact = row.get(f"{name}_{rank}_ms_max") or BOUNDS_MS[-1]
    return None if exact is None else float(exact)
