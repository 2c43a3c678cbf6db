"""The calls that the grants of their callers did not permit: a bounded table that operators read before enforcing."""

from __future__ import annotations

from typing import Final

from foqs.model.access import RefusalRow

REFUSALS_MAX: Final = 1_000
"""The number of callers, verbs and namespaces that are remembered. The one refused longest ago is dropped first."""


class Refusals:
    """Counts refusals by caller, verb and namespace."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], RefusalRow] = {}

    def note(self, who: str, verb: str, namespace: str, now_ms: int) -> None:
        """Count one refusal. `namespace` is empty for a verb of the cluster."""
        key = (who, verb, namespace)
        before = self._rows.pop(key, None)
        # It goes to the end of the table, whose beginning was refused longest ago.
        self._rows[key] = RefusalRow(who, verb, namespace, before.times_count + 1 if before else 1, now_ms)
        if len(self._rows) > REFUSALS_MAX:
            del self._rows[next(iter(self._rows))]

    def rows(self) -> list[RefusalRow]:
        """Return the table, the last refusal first."""
        return list(reversed(self._rows.values()))
