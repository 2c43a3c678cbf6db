"""Rates of topics: their names for callers, their order, and the sum of those of several hosts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import NamedTuple

from foqs.model.topic_name import hidden

KINDS_COUNT = 4
"""The kinds of events that are counted: enqueued, delivered, ended and failed."""
SLOT_MS = 10_000
"""The length of a slot of a series, in milliseconds. The first slot began in 1970."""
SLOTS_COUNT = 90
"""The slots of a series: 15 minutes."""
STEP_ROWS = 250
"""Rows that one step of a merge adds up, which takes less than a millisecond."""
STEP_ROWS_WITH_SERIES = 10
UNKNOWN = -1
"""The number of a slot that a series does not know."""
SERIES_TOPICS_MAX = 50
"""The most topics of one response with series."""


class RateOrder(IntEnum):
    """The number by which topics with rates are ordered, the largest first."""

    ENQUEUED = 0
    DELIVERED = 1
    ENDED = 2
    FAILED = 3
    READY = 4


@dataclass(slots=True)
class TopicRates:
    """The speed of a topic on all hosts together, in items per second, as averages that forget exponentially.

    enqueued: stored items. delivered: deliveries. ended: items that left the topic: acked, delivered at most once,
    expired before a delivery, or dead. failed: attempts that were nacked or whose lease ended. ready: its ready items.
    The series have a number for each slot, UNKNOWN (-1) where no host knows it; None if they were not asked for.
    group: the consumer group whose copies are counted; None for the topic's own items. topic: "" for a namespace.
    """

    topic: str
    enqueued_1min: float = 0.0
    delivered_1min: float = 0.0
    ended_1min: float = 0.0
    failed_1min: float = 0.0
    enqueued_15min: float = 0.0
    delivered_15min: float = 0.0
    ended_15min: float = 0.0
    failed_15min: float = 0.0
    enqueued_series: Sequence[int] | None = None
    delivered_series: Sequence[int] | None = None
    ended_series: Sequence[int] | None = None
    failed_series: Sequence[int] | None = None
    ready_series: Sequence[int] | None = None
    group: str | None = None
    ready: int = 0


RATE_NAMES = tuple(one.name for one in fields(TopicRates) if one.name.endswith("min"))
"""The names of the averages, in the order of the table of rates."""
ORDERED_BY = ("enqueued_1min", "delivered_1min", "ended_1min", "failed_1min", "ready")
"""The number by which rows are ordered, by RateOrder."""
SERIES_NAMES = tuple(one.name for one in fields(TopicRates) if one.name.endswith("_series"))


@dataclass(slots=True)
class RatesPage:
    """The rates of some topics, the fastest first, or those of a namespace.

    first_slot_ms: the begin of the first slot of all series, in milliseconds since the epoch; 0 without series.
    slot_ms: the length of a slot. missing: the shards and hosts that are not counted, in words, if that was allowed.
    """

    topics: list[TopicRates]
    first_slot_ms: int = 0
    slot_ms: int = SLOT_MS
    missing: list[str] = field(default_factory=list)


class RatesMerge:
    """The sums of the pages of several hosts, which are RatesPages or structs of the wire, in steps that are short.

    Series have the slots that all pages with series have at their end, from the first slot of any page on: a host that
    is behind ends them for all, because the sum of the others would look like a fall.
    """

    def __init__(self, pages: Sequence[RatesPage], order: int, limit: int, named: Sequence[str]) -> None:
        """`order` is of RateOrder. `named`: the topics that were asked for, in the order of the rows."""
        self._pages = pages
        self._by, self._limit = ORDERED_BY[order], limit
        self._named = named
        self._span_of = [_Span(page.first_slot_ms, _slots_count(page)) for page in pages]
        self._spans = _plausible([span for span in self._span_of if span.slots_count])
        self._first_ms = min((span.first_ms for span in self._spans), default=0)
        self._end_ms = min((span.end_ms for span in self._spans), default=0)
        self._rows: dict[str, TopicRates] = {}
        self._found: list[TopicRates] = []

    def page(self) -> RatesPage:
        """Return the merged page once all steps are done."""
        missing = sorted({part for page in self._pages for part in page.missing or ()})
        return RatesPage(self._found, self._first_ms, missing=missing)

    def steps(self) -> Iterator[None]:
        """Add up some rows in each step, and then put them in order, equal ones by name."""
        for page, span in zip(self._pages, self._span_of, strict=True):
            count = STEP_ROWS_WITH_SERIES if span.slots_count else STEP_ROWS
            for start in range(0, len(page.topics), count):
                self._add_rows(page.topics[start : start + count], span)
                yield
        rows = list(self._rows.values())
        if self._named:
            places = {topic: place for place, topic in enumerate(self._named)}
            self._found = sorted(rows, key=lambda row: places.get(row.topic, len(places)))
            return
        first: list[tuple[float, str, TopicRates]] = []
        for start in range(0, len(rows), STEP_ROWS):
            some = [(-getattr(row, self._by), _name(row), row) for row in rows[start : start + STEP_ROWS]]
            first = sorted(first + some)[: self._limit]  # The names differ, so that no rows are compared.
            yield
        self._found = [row for _, _, row in first]

    def _add_rows(self, rows: Iterable[TopicRates], span: _Span) -> None:
        from_ms = span.first_ms if span in self._spans else self._end_ms
        for row in rows:
            if self._spans:
                _shift(row, from_ms, self._first_ms, self._end_ms)
            known = self._rows.setdefault(_name(row), row)
            if known is not row:
                _add(known, row)


def summed(rows: Iterable[TopicRates | None]) -> TopicRates | None:
    """Return the sum of the rates of one topic on several hosts, without series; None if no host has some."""
    total: TopicRates | None = None
    for row in rows:
        if row is not None:
            if total is None:
                total = row
            else:
                _add(total, row)
    return total


class _Span(NamedTuple):
    first_ms: int
    slots_count: int

    @property
    def end_ms(self) -> int:
        return self.first_ms + self.slots_count * SLOT_MS


def _plausible(spans: Sequence[_Span]) -> list[_Span]:
    """Return the spans of series without those of hosts whose clocks differ much from those of most others."""
    ends = sorted([span.end_ms for span in spans])
    middle_ms = ends[len(ends) // 2] if ends else 0
    return [
        span for span in spans
        if span.slots_count <= SLOTS_COUNT and abs(span.end_ms - middle_ms) < SLOTS_COUNT * SLOT_MS
    ]  # fmt: skip


def _slots_count(page: RatesPage) -> int:
    """Return the number of slots of each series of a page."""
    return max((len(row.enqueued_series) for row in page.topics if row.enqueued_series is not None), default=0)


def _shift(row: TopicRates, from_ms: int, first_ms: int, end_ms: int) -> None:
    """Let the series of a row begin at `first_ms`, and end at `end_ms`."""
    count = max(0, (end_ms - first_ms) // SLOT_MS)
    for name in SERIES_NAMES:
        series = getattr(row, name)
        if series is not None:
            shifted = [UNKNOWN] * min(count, (from_ms - first_ms) // SLOT_MS) + list(series[:count])
            setattr(row, name, shifted[:count] + [UNKNOWN] * (count - len(shifted)))


def _add(total: TopicRates, row: TopicRates) -> None:
    for name in RATE_NAMES:
        setattr(total, name, getattr(total, name) + getattr(row, name))
    total.ready += row.ready
    if total.enqueued_series is None and row.enqueued_series is None:
        return
    for name in SERIES_NAMES:
        one, other = getattr(total, name), getattr(row, name)
        setattr(total, name, other if one is None else one if other is None else _sums(one, other))


def _sums(one: Sequence[int], other: Sequence[int]) -> list[int]:
    return [b if a == UNKNOWN else a if b == UNKNOWN else a + b for a, b in zip(one, other, strict=True)]


def _name(row: TopicRates) -> str:
    return hidden(row.topic, row.group)
