"""The history of topics for callers: counts of past time by steps, and the sum of those of several hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate

from foqs.model import limits
from foqs.model.event_log import BOUNDS_MS

HISTORY_ROWS_MAX = 500
"""The most rows of a response: topics by steps."""
HISTORY_TOPICS_MAX = 10
"""The most topics of a call."""
HISTORY_MS_MAX = 31 * limits.DAY_MS
"""The longest time of a call, in milliseconds."""
STEP_ROWS = 100
"""Rows that one step of a merge adds up, which takes about a millisecond."""
STEPS_MINUTES = (1, 2, 5, 10, 15, 30, 60, 120, 180, 360, 720, 1_440)
"""The steps among which a call without one gets the first that has room."""


@dataclass(slots=True)
class HistoryRow:
    """The events of one step of time, of a topic or of a whole namespace (topic "").

    Counts are of items by the outcome of a delivery or of a life. rate_limited: items that the quota has refused; only
    of a namespace. wait_buckets: first deliveries by their wait since the items were ready, one number for each of
    the bounds of the history and one for longer waits. processing_buckets: ended deliveries by their time, likewise.
    """

    topic: str
    at_ms: int
    enqueued: int = 0
    acked: int = 0
    nacked: int = 0
    released: int = 0
    lease_ended: int = 0
    dead: int = 0
    expired: int = 0
    deleted: int = 0
    at_most_once: int = 0
    rate_limited: int = 0
    wait_buckets: Sequence[int] = ()
    wait_ms_sum: int = 0
    processing_buckets: Sequence[int] = ()
    processing_ms_sum: int = 0


OUTCOME_NAMES = tuple(one.name for one in fields(HistoryRow))[2:12]
"""The outcomes in roll-ups that are counted."""
_SUMMED = (*OUTCOME_NAMES, "wait_ms_sum", "processing_ms_sum")
_BUCKETS = ("wait_buckets", "processing_buckets")


@dataclass(slots=True)
class History:
    """The rows of some topics, by topic and time. A step without events has no row.

    complete_from_ms: rows before this time are not complete. bounds_ms: the upper bounds of the buckets of all rows.
    missing: the shards and hosts that are not counted, in words, if that was allowed.
    """

    rows: list[HistoryRow]
    step_minutes: int
    complete_from_ms: int
    bounds_ms: Sequence[int] = BOUNDS_MS
    missing: list[str] = field(default_factory=list)


def add_row(total: HistoryRow, row: HistoryRow) -> None:
    """Add the events of a row to another one."""
    for name in _SUMMED:
        setattr(total, name, getattr(total, name) + getattr(row, name))
    for name in _BUCKETS:
        setattr(total, name, added(getattr(total, name), getattr(row, name)))


def added(one: Sequence[int], other: Sequence[int]) -> Sequence[int]:
    """Return the sums of two rows of buckets; an empty one has no times."""
    if not one or not other:
        return one or other
    return [a + b for a, b in zip(one, other, strict=True)]


class HistoryMerge:
    """The sums of the histories of several hosts for one request, in steps that are short."""

    def __init__(self, parts: Sequence[History]) -> None:
        self._parts = parts
        self._rows: dict[tuple[str, int], HistoryRow] = {}

    def page(self) -> History:
        """Return the merged history once all steps are done."""
        missing = sorted({one for part in self._parts for one in part.missing or ()})
        complete_from_ms = max((part.complete_from_ms for part in self._parts), default=0)
        step_minutes = max((part.step_minutes for part in self._parts), default=0)
        return History(in_time_order(self._rows.values()), step_minutes, complete_from_ms, missing=missing)

    def steps(self) -> Iterator[None]:
        """Add up STEP_ROWS rows in each step."""
        for part in self._parts:
            is_alike = list(part.bounds_ms or ()) == list(BOUNDS_MS)  # Those of another version do not add up.
            for start in range(0, len(part.rows), STEP_ROWS):
                for row in part.rows[start : start + STEP_ROWS]:
                    self._add(row, is_alike=is_alike)
                yield

    def _add(self, row: HistoryRow, *, is_alike: bool) -> None:
        for name in _BUCKETS:
            if not is_alike or len(getattr(row, name) or ()) != len(BOUNDS_MS) + 1:
                setattr(row, name, ())
        known = self._rows.setdefault((row.topic, row.at_ms), row)
        if known is not row:
            add_row(known, row)


def in_time_order(rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    return sorted(rows, key=lambda row: (row.topic, row.at_ms))


def quantile_ms(buckets: Sequence[int], bounds_ms: Sequence[int], ratio: float) -> int | None:
    """Return the upper bound of the bucket that has this part of the times, such as 0.99.

    Returns None without times, and -1 for times beyond all bounds.
    """
    total = sum(buckets)
    if not total:
        return None
    place = next(place for place, count in enumerate(accumulate(buckets)) if count >= ratio * total)
    return bounds_ms[place] if place < len(bounds_ms) else -1
