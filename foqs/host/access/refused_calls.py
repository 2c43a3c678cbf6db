"""The calls that the grants of their callers did not permit: a bounded table that operators read before enforcing."""

from __future__ import annotations

from typing import Final

from foqs.model.access import RefusalRow

REFUSALS_MAX: Final = 1_000
"""The number of callers, verbs and namespaces that are remembered.

For one more, the caller with the most rows loses its oldest one. So nobody pushes out the rows of others with names
that it makes up.
"""


class Refusals:
    """Counts refusals by caller, verb and namespace."""

    def __init__(self) -> None:
        self._by_caller: dict[str, dict[tuple[str, str], RefusalRow]] = {}
        """The rows of each caller."""
        self._count = 0

    def note(self, who: str, verb: str, namespace: str, now_ms: int) -> None:
        """Count one refusal. `namespace` is empty for a verb of the cluster."""
        rows = self._by_caller.pop(who, {})
        # The caller, and its row, are put at the end: those at the beginning were refused longest ago.
        self._by_caller[who] = rows
        before = rows.pop((verb, namespace), None)
        rows[verb, namespace] = RefusalRow(who, verb, namespace, before.times_count + 1 if before else 1, now_ms)
        self._count += before is None
        if self._count > REFUSALS_MAX:
            self._drop_one()

    def rows(self) -> list[RefusalRow]:
        """Return the table, the last refusal first."""
        rows = [row for rows in reversed(self._by_caller.values()) for row in reversed(rows.values())]
        return sorted(rows, key=lambda row: row.last_at_ms, reverse=True)

    def _drop_one(self) -> None:
        who = max(self._by_caller, key=lambda one: len(self._by_caller[one]))
        rows = self._by_caller[who]
        del rows[next(iter(rows))]
        if not rows:
            del self._by_caller[who]
        self._count -= 1
