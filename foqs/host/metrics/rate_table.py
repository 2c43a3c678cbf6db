"""Rates and series of many topics, or of namespaces, in columns of numbers. Pure: all times are arguments."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Iterator, Sequence
from heapq import heappush, heapreplace
from math import exp
from typing import Any, NamedTuple

from foqs.host.metrics.shares import Shares
from foqs.model import limits
from foqs.model.topic_rates import KINDS_COUNT, SLOT_MS, SLOTS_COUNT, UNKNOWN, RateOrder

SPANS_S = (60.0, 900.0)
"""The times over which the two averages forget two thirds of the past, in seconds."""
IDLE_MS_MAX = 15 * limits.MINUTE_MS
"""A topic without events for this long leaves."""
STEP_MS_MAX = SLOT_MS // 2
"""A jump of the wall clock by more than this begins all series anew."""
SWAPS_MAX = 250
"""Series of a namespace that one round hands from topics that have become still to its busier ones."""
SWAP_RATIO = 1.5
"""A topic gets the series of another one once its rates are this many times as large."""
_RATES_COUNT = KINDS_COUNT * len(SPANS_S)
_SERIES_COUNT = KINDS_COUNT + 1
_EMPTY_RING = array("i", [0] * (_SERIES_COUNT * SLOTS_COUNT))
_INT_MAX = (1 << 31) - 1
_NO_RING = -1
_NO_COUNTS = [0] * KINDS_COUNT

Key = tuple[int, str]
"""The number of a namespace, and the hidden name of a topic; "" for the namespace as a whole."""


class Measured(NamedTuple):
    """The averages of one topic."""

    rates: Sequence[float]
    """Events per second: the four kinds over one minute, then the four over 15 minutes."""
    ready: int


class _Piece(NamedTuple):
    """A part of the time of a round that is in one slot."""

    at: int
    """The place of the slot in a ring."""
    until: float
    """The part of the round's time that ends with it, 0 to 1."""
    is_new: bool
    """True if no round before had a part of this slot."""


class _Swaps:
    """The busiest rows of a namespace without a ring, and its stillest rows with one."""

    def __init__(self) -> None:
        self._busy: list[tuple[float, int]] = []
        """A heap with the least busy row first."""
        self._still: list[tuple[float, int]] = []
        """A heap of negated numbers, so that the busiest row is first."""

    def add_busy(self, busyness: float, row: int, rings_count: int) -> None:
        """Add a row without a ring. No more such rows are kept than the namespace has rings."""
        _push(self._busy, busyness, row, min(SWAPS_MAX, rings_count))

    def add_still(self, busyness: float, row: int) -> None:
        _push(self._still, -busyness, row, SWAPS_MAX)

    def busiest(self) -> list[tuple[float, int]]:
        return sorted(self._busy, reverse=True)

    def stillest(self) -> list[tuple[float, int]]:
        return sorted((-number, row) for number, row in self._still)


def _push(heap: list[tuple[float, int]], number: float, row: int, count_max: int) -> None:
    if len(heap) < count_max:
        heappush(heap, (number, row))
    elif heap and number > heap[0][0]:
        heapreplace(heap, (number, row))


class RateTable:
    """The averages of up to `topics_max` topics, and up to `series_max` series.

    A round adds the counts of all topics, and folds them: `begin`, `add` for each topic, all steps of `fold`. Between
    two rounds it can be read. A topic is in it from its first event until it has had none for IDLE_MS_MAX, unless the
    table is full: then the namespace with the most topics gives way to a topic of another one, and the one with the
    most series to a series of another one.
    """

    def __init__(self, topics_max: int, series_max: int) -> None:
        self._topics_max, self._series_max = topics_max, series_max
        self._by_namespace: dict[int, dict[str, int]] = {}
        """The row of each topic, by namespace and name."""
        self._names: list[str | None] = []
        """The name of each row; None for a free one."""
        self._numbers = array("I")
        """The namespace of each row."""
        self._counts = [array("I") for _ in range(KINDS_COUNT)]
        """The counts of this round, by kind and row."""
        self._ready, self._ready_next = array("I"), array("I")
        """The ready items of the last round, and those that this round has found so far."""
        self._rates = [array("f") for _ in range(_RATES_COUNT)]
        self._idle_s = array("f")
        """The time since the last event of each row, in seconds; negative until the first round of the row ends."""
        self._ring_of = array("h")
        """The ring of each row, or _NO_RING."""
        self._rings: list[array[int]] = []
        """The series of each ring, one behind the other, each with SLOTS_COUNT numbers."""
        self._ring_since = array("q")
        """The first slot that each ring knows."""
        self._ringed: dict[int, dict[int, None]] = {}
        """The rows with rings of each namespace, as the keys of a dict, those with the newest rings last."""
        self._row_shares, self._ring_shares = Shares(), Shares()
        self._free_rows: list[int] = []
        self._free_rings: list[int] = []
        self._has_refused = False
        """True once a topic got no row or lost it, so that a new row is not known to be without events before."""
        self._known_since = 0
        """The first slot that any ring knows: a clock that was set ends all series."""
        self._newest = -1
        """The last slot that a round had a part of."""
        self._complete = -1
        """The last slot of which no part is missing."""
        self._began_wall_ms = 0
        self._began_steady_s = 0.0
        self._folded_wall_ms = 0
        self._folded_steady_s: float | None = None
        """The begin of the last round that was folded. One that met an error leaves its counts to the next one."""
        self._written = -1
        """The last slot that such a round had a part of."""
        self._elapsed_s = 0.0
        self._pieces: list[_Piece] = []
        self._spans: list[tuple[list[array[float]], float, float]] = []
        """The columns of each average, the part of it that this round keeps, and the weight of an event."""

    def __len__(self) -> int:
        return len(self._names) - len(self._free_rows)

    # ---- a round ----

    def begin(self, wall_ms: int, steady_s: float) -> None:
        """Begin a round. The counts that are added have happened since the last one began."""
        before_s, self._began_steady_s = self._folded_steady_s, steady_s
        before_ms, self._began_wall_ms = self._folded_wall_ms, wall_ms
        self._pieces = []
        self._elapsed_s = 0.0 if before_s is None else steady_s - before_s
        self._spans = []
        for number, span_s in enumerate(SPANS_S):
            keep = exp(-self._elapsed_s / span_s)
            averages = self._rates[number * KINDS_COUNT : (number + 1) * KINDS_COUNT]
            self._spans.append((averages, keep, (1 - keep) / self._elapsed_s if self._elapsed_s else 0.0))
        expected_ms = before_ms + self._elapsed_s * 1000
        if before_s is None or abs(wall_ms - expected_ms) > STEP_MS_MAX:
            self._newest = wall_ms // SLOT_MS
            self._known_since = self._newest + 1  # A part of the present slot is not known.
            self._complete = self._written = self._newest
            for ring, since in enumerate(self._ring_since):
                self._ring_since[ring] = min(since, self._known_since)
        elif wall_ms > before_ms:
            self._pieces = list(self._pieces_of(before_ms, wall_ms))

    def _pieces_of(self, from_ms: int, to_ms: int) -> Iterator[_Piece]:
        first = max(from_ms // SLOT_MS, to_ms // SLOT_MS - SLOTS_COUNT + 1)
        for slot in range(first, to_ms // SLOT_MS + 1):
            until = min(1.0, ((slot + 1) * SLOT_MS - from_ms) / (to_ms - from_ms))
            yield _Piece(slot % SLOTS_COUNT, until, slot > self._written)
        self._newest = max(self._newest, to_ms // SLOT_MS)

    def add(self, key: Key, counts: Sequence[int] | None, ready: int) -> None:
        """Add the events of a topic on a shard, counted by kind; None for no event."""
        row = self._row(key) if counts is None else self._row_of(key)
        if row is None:
            return
        if counts is not None:
            for column, count in zip(self._counts, counts, strict=True):
                if count:
                    column[row] = max(0, min(_INT_MAX, column[row] + count))
        # A round without time is not folded, and the next one adds them again. The ready items of a shard are negative
        # as long as only changes since its take-over are known.
        if ready > 0 and self._elapsed_s > 0:
            self._ready_next[row] = min(_INT_MAX, self._ready_next[row] + ready)

    def fold(self, rows_max: int) -> Iterator[None]:
        """Put the counts of the round into the averages and the series, `rows_max` rows in each step."""
        swaps: defaultdict[int, _Swaps] = defaultdict(_Swaps)
        if self._elapsed_s > 0:
            for start in range(0, len(self._names), rows_max):
                for row in range(start, min(start + rows_max, len(self._names))):
                    if self._names[row] is not None:
                        self._fold_row(row, swaps)
                yield
        for of_namespace in swaps.values():
            self._hand_on(of_namespace)
            yield
        if self._pieces:
            self._complete = self._began_wall_ms // SLOT_MS - 1
        self._written = self._newest
        self._folded_steady_s, self._folded_wall_ms = self._began_steady_s, self._began_wall_ms

    def _fold_row(self, row: int, swaps: defaultdict[int, _Swaps]) -> None:
        counts = [column[row] for column in self._counts]
        self._ready[row], self._ready_next[row] = self._ready_next[row], 0
        if self._idle_s[row] < 0:
            self._give_ring(row, knows_all=not self._has_refused)
        ring = self._ring_of[row]
        if ring != _NO_RING:
            self._write(ring, [*counts, self._ready[row]])
        is_active = counts != _NO_COUNTS
        if is_active:
            self._idle_s[row] = 0.0
            for column in self._counts:
                column[row] = 0
        else:
            self._idle_s[row] = max(0.0, self._idle_s[row]) + self._elapsed_s
            if self._idle_s[row] * 1000 >= IDLE_MS_MAX:
                self._remove(row)
                return
        for averages, keep, share in self._spans:
            for average, count in zip(averages, counts, strict=True):
                average[row] = average[row] * keep + count * share
        busyness = self._rates[0][row] + self._rates[1][row]
        number = self._numbers[row]
        if ring != _NO_RING:
            swaps[number].add_still(busyness, row)
        elif is_active and not self._give_ring(row, knows_all=False) and (rings_count := self._ring_shares.of(number)):
            swaps[number].add_busy(busyness, row, rings_count)

    def _write(self, ring: int, values: Sequence[int]) -> None:
        numbers, at = self._rings[ring], 0
        for series, value in enumerate(values):
            is_level = series == KINDS_COUNT  # The ready items are no count of events.
            before = 0
            for piece in self._pieces:
                until = value if is_level else int(value * piece.until)
                place = at + piece.at
                part = until if is_level else until - before
                numbers[place] = part if piece.is_new or is_level else min(_INT_MAX, numbers[place] + part)
                before = until
            at += SLOTS_COUNT

    # ---- rows and rings ----

    def _row(self, key: Key) -> int | None:
        rows = self._by_namespace.get(key[0])
        return None if rows is None else rows.get(key[1])

    def _row_of(self, key: Key) -> int | None:
        """Return the row of a topic, which it gets now if it has none; None if none is left for its namespace."""
        row = self._row(key)
        if row is not None:
            return row
        is_full = not self._free_rows and len(self._names) >= self._topics_max
        if is_full:
            self._has_refused = True
            if not self._give_up_row(key[0]):
                return None
        if self._free_rows:
            row = self._free_rows.pop()
        else:
            row = len(self._names)
            self._names.append(None)
            for column in (*self._event_columns(), self._numbers, self._idle_s, self._ring_of):
                column.append(0)
        self._names[row], self._numbers[row], self._idle_s[row], self._ring_of[row] = key[1], key[0], -1.0, _NO_RING
        for column in self._event_columns():
            column[row] = 0
        self._by_namespace.setdefault(key[0], {})[key[1]] = row
        self._row_shares.add(key[0])
        return row

    def _give_up_row(self, number: int) -> bool:
        """Free the newest row of the namespace with the most, for one with fewer. Returns False for none with fewer."""
        largest = self._row_shares.giving_way_to(number)
        if largest is None:
            return False
        rows = self._by_namespace[largest]
        name, row = rows.popitem()
        rows[name] = row
        self._remove(row)
        return True

    def _event_columns(self) -> tuple[array[Any], ...]:
        """Return the columns that are 0 for a topic that has just come."""
        return *self._counts, self._ready, self._ready_next, *self._rates

    def _remove(self, row: int) -> None:
        name, number = self._names[row], self._numbers[row]
        assert name is not None, "a free row is not removed"
        rows = self._by_namespace[number]
        del rows[name]
        if not rows:
            del self._by_namespace[number]
        self._row_shares.remove(number)
        if self._ring_of[row] != _NO_RING:
            self._free_ring(row)
        self._names[row] = None
        self._free_rows.append(row)

    def _give_ring(self, row: int, *, knows_all: bool) -> bool:
        """Give the row a ring if one is left, or the newest one of the namespace with the most rings.

        `knows_all`: no event has happened to it before this round; otherwise it knows the slots behind this round.
        """
        number = self._numbers[row]
        if not self._free_rings and len(self._ring_since) >= self._series_max:
            largest = self._ring_shares.giving_way_to(number)
            if largest is None:
                return False
            ringed = self._ringed[largest]
            newest, _ = ringed.popitem()
            ringed[newest] = None
            self._free_ring(newest)
        if self._free_rings:
            ring = self._free_rings.pop()
        else:
            ring = len(self._ring_since)
            self._ring_since.append(0)
            self._rings.append(_EMPTY_RING)
        self._ring_of[row] = ring
        self._ringed.setdefault(number, {})[row] = None
        self._ring_shares.add(number)
        self._ring_since[ring] = 0 if knows_all else self._newest + 1
        self._rings[ring] = _EMPTY_RING[:]
        return True

    def _free_ring(self, row: int) -> None:
        number = self._numbers[row]
        self._free_rings.append(self._ring_of[row])
        self._ring_of[row] = _NO_RING
        self._ring_shares.remove(number)
        ringed = self._ringed[number]
        del ringed[row]
        if not ringed:
            del self._ringed[number]

    def _hand_on(self, swaps: _Swaps) -> None:
        """Hand the rings of the stillest rows of a namespace to its busiest rows without one."""
        for (busyness, row), (stillness, other) in zip(swaps.busiest(), swaps.stillest(), strict=False):
            if busyness <= stillness * SWAP_RATIO:
                break
            if self._ring_of[other] == _NO_RING or self._ring_of[row] != _NO_RING:
                continue  # It has given its ring to another namespace meanwhile, or has got one.
            self._free_ring(other)
            self._give_ring(row, knows_all=False)

    # ---- reading ----

    def names(self, number: int) -> list[str]:
        """Return the names of the topics of a namespace."""
        return list(self._by_namespace.get(number, ()))

    def number_of(self, key: Key, order: int) -> float:
        """Return the number of a topic by which rows are ordered (RateOrder); 0 if it has none."""
        row = self._row(key)
        if row is None:
            return 0.0
        return self._ready[row] if order == RateOrder.READY else self._rates[order][row]

    def measured(self, key: Key) -> Measured | None:
        """Return the averages of a topic; None if it has none."""
        row = self._row(key)
        return None if row is None else Measured([column[row] for column in self._rates], self._ready[row])

    def slots(self) -> tuple[int, int]:
        """Return the first and the last slot that a series can know; the last is before the first one for none."""
        return max(self._known_since, self._newest - SLOTS_COUNT + 1), self._complete

    def series(self, key: Key, first: int, last: int) -> list[list[int]] | None:
        """Return the series of a topic over these slots, the four kinds and then its ready items; None if it has none.

        A slot that it does not know is UNKNOWN.
        """
        row = self._row(key)
        ring = _NO_RING if row is None else self._ring_of[row]
        if ring == _NO_RING:
            return None
        known_first, known_last = self.slots()
        known_first = max(known_first, self._ring_since[ring])
        found: list[list[int]] = []
        for series in range(_SERIES_COUNT):
            at = series * SLOTS_COUNT
            found.append(
                [
                    self._rings[ring][at + slot % SLOTS_COUNT] if known_first <= slot <= known_last else UNKNOWN
                    for slot in range(first, last + 1)
                ]
            )
        return found
