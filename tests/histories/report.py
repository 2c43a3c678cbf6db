"""What a check of a history found."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

_SHOWN_MAX = 20


@dataclass(frozen=True, slots=True)
class Violation:
    promise: str
    item: str
    what: str

    def __str__(self) -> str:
        return f"{self.promise}: {self.item}: {self.what}"


@dataclass(slots=True)
class Report:
    """`counts`: what was compared, so that a history which proves little can be told from a good one."""

    violations: list[Violation] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def promises_broken(self) -> set[str]:
        return {violation.promise for violation in self.violations}

    def add(self, promise: str, item: str, what: str) -> None:
        self.violations.append(Violation(promise, item, what))

    def include(self, other: Report) -> None:
        """What was found in another part of the same history."""
        self.violations += other.violations
        self.counts.update(other.counts)

    def __str__(self) -> str:
        shown = [str(violation) for violation in self.violations[:_SHOWN_MAX]]
        more = len(self.violations) - len(shown)
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.counts.items()))
        return "\n".join([f"{len(self.violations)} violations; {counts}", *shown, *([f"and {more} more"] * (more > 0))])
