"""The filter of the list of topics: words of globs, parts of names and conditions on numbers, and quick filters."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from foqs.console.topic_row import NOT_MOVING, TopicRow
from foqs.model import limits
from foqs.model.errors import InvalidArgumentError

FILTER_CHARS_MAX: Final = 500
_NUMBERS: Final[dict[str, Callable[[TopicRow, int], float]]] = {
    "ready": lambda row, _: row.ready,
    "delayed": lambda row, _: row.delayed,
    "leased": lambda row, _: row.leased,
    "dead": lambda row, _: row.dead,
    "items": lambda row, _: row.items,
    "oldest": lambda row, now_ms: max(0, now_ms - row.oldest_at_ms) if row.oldest_at_ms else 0,
    "in": lambda row, _: row.enqueued,
    "out": lambda row, _: row.ended,
    "failed": lambda row, _: row.failed,
}
"""The numbers of a topic that conditions name; `oldest` is an age in milliseconds."""
_COMPARISONS: Final[dict[str, Callable[[float, float], bool]]] = {
    ">": operator.gt, "<": operator.lt, "=": operator.eq, ">=": operator.ge, "<=": operator.le,
}  # fmt: skip
_CONDITION: Final = re.compile(rf"({'|'.join(_NUMBERS)})(>=|<=|>|<|=)(\d{{1,12}}(?:\.\d{{1,6}})?)([smhd]?)", re.ASCII)
_UNITS_MS: Final = {
    "": limits.SECOND_MS, "s": limits.SECOND_MS, "m": limits.MINUTE_MS, "h": limits.HOUR_MS, "d": limits.DAY_MS,
}  # fmt: skip


class QuickFilter:
    """A filter that is a button above the list."""

    def __init__(self, label: str, holds: Callable[[TopicRow], bool]) -> None:
        self.label = label
        self.holds = holds


QUICK_FILTERS: Final[dict[str, QuickFilter]] = {
    "stuck": QuickFilter("Not moving", lambda row: row.movement in NOT_MOVING),
    "failing": QuickFilter("Failing", lambda row: row.failed > 0.05),
    "dead": QuickFilter("With dead letters", lambda row: row.dead > 0),
    "paused": QuickFilter("Paused", lambda row: row.policy.dequeue_paused or row.policy.enqueue_paused),
    "capped": QuickFilter("Capped", lambda row: row.policy.deliveries_per_second_max > 0),
    "items": QuickFilter("Hide empty", lambda row: row.items > 0),
}


@dataclass(frozen=True, slots=True)
class TopicFilter:
    """A filter that was read. An empty one holds for each topic."""

    text: str = ""
    quick: tuple[str, ...] = ()
    patterns: tuple[re.Pattern[str], ...] = ()
    conditions: tuple[tuple[str, str, float], ...] = ()

    @property
    def is_empty(self) -> bool:
        return not (self.patterns or self.conditions or self.quick)

    @property
    def prefix(self) -> str | None:
        """The prefix of names, if the filter is nothing else."""
        word = self.text.strip()
        is_prefix = word.endswith("*") and not re.search(r"[*\s]", word[:-1]) and not self.quick and not self.conditions
        return word[:-1] if is_prefix else None

    def chosen(self, rows: Iterable[TopicRow], now_ms: int) -> Sequence[TopicRow]:
        """Return the rows for which it holds."""
        found = rows
        for pattern in self.patterns:
            search = pattern.search
            found = [row for row in found if search(row.name)]
        for key, sign, bound in self.conditions:
            value_of, holds = _NUMBERS[key], _COMPARISONS[sign]
            found = [row for row in found if holds(value_of(row, now_ms), bound)]
        for key in self.quick:
            is_held = QUICK_FILTERS[key].holds
            found = [row for row in found if is_held(row)]
        return found if isinstance(found, list) else list(found)


def parsed_filter(text: str, quick: Iterable[str] = ()) -> TopicFilter:
    """Read a filter: words that all must hold, each a glob, a part of a name, or a condition such as `dead>100`.

    Raises InvalidArgumentError for a filter that is too long.
    """
    if len(text) > FILTER_CHARS_MAX:
        raise InvalidArgumentError(f"the filter has {len(text)} characters, and at most {FILTER_CHARS_MAX} are read")
    patterns, conditions = [], []
    for word in text.split():
        condition = _CONDITION.fullmatch(word)
        if condition:
            key, sign, bound, unit = condition.groups()
            factor = _UNITS_MS[unit] if key == "oldest" else 1
            conditions.append((key, sign, float(bound) * factor))
        else:
            patterns.append(re.compile(_pattern_of(word)))
    known = tuple(key for key in QUICK_FILTERS if key in set(quick))
    return TopicFilter(text, known, tuple(patterns), tuple(conditions))


def _pattern_of(word: str) -> str:
    """Return the pattern of a word: a whole name if it has a star, else a part of one.

    Each part between two stars is found where it comes first and never again, so that no name takes long.
    """
    if "*" not in word:
        return re.escape(word)
    first, *middle, last = map(re.escape, word.split("*"))
    return rf"\A{first}{''.join([f'(?>.*?{part})' for part in middle if part])}.*{last}\Z"
