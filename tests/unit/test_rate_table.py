"""Averages and series of topics, beside a slow copy that keeps every event; steps of the clock, bounds and memory."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.host.metrics.rate_table import IDLE_MS_MAX, SPANS_S, RateTable
from foqs.model.topic_rates import SLOT_MS, SLOTS_COUNT, UNKNOWN

START_MS = 1_700_000_000_000
TOPICS_RATED = 100_000
MEMORY_BYTES_MAX = 25_000_000


@dataclass(frozen=True)
class Round:
    """A round, `elapsed_ms` after the last one, and the events that it takes: by topic the four counts."""

    elapsed_ms: int
    counts: dict[int, tuple[int, int, int, int]]


ROUNDS = st.lists(
    st.builds(
        Round,
        st.integers(1_000, 45_000),
        st.dictionaries(st.integers(0, 3), st.tuples(*[st.integers(0, 50)] * 4), max_size=4),
    ),
    max_size=40,
)


class Walk:
    """A table, and the time that it is given."""

    def __init__(self, topics_max: int = 100, series_max: int = 100) -> None:
        self.table = RateTable(topics_max, series_max)
        self.steady_ms, self.wall_ms = 5_000, START_MS
        self.round(Round(0, {}))

    def round(self, one: Round, *, step_ms: int = 0, ready: int = 0) -> None:
        """Do a round. The clock of the day is set by `step_ms` before it."""
        self.steady_ms += one.elapsed_ms
        self.wall_ms += one.elapsed_ms + step_ms
        self.table.begin(self.wall_ms, self.steady_ms / 1000)
        for topic, counts in one.counts.items():
            self.table.add((1, f"t{topic}"), counts if any(counts) else None, ready)
        for _ in self.table.fold(3):
            pass

    def series(self, topic: int) -> dict[int, list[int]]:
        """The series of a topic by slot, of the slots that it knows."""
        first, last = self.table.slots()
        found = self.table.series((1, f"t{topic}"), first, last)
        if found is None:
            return {}
        by_slot = {slot: [series[slot - first] for series in found] for slot in range(first, last + 1)}
        return {slot: values for slot, values in by_slot.items() if UNKNOWN not in values}


@given(ROUNDS)
@settings(max_examples=150, deadline=None)
def test_averages_are_those_of_a_copy_that_adds_up_all_rounds_with_their_weights(rounds: list[Round]) -> None:
    walk = Walk()
    for one in rounds:
        walk.round(one)
    now_ms = sum(one.elapsed_ms for one in rounds)
    for topic in range(4):
        measured = walk.table.measured((1, f"t{topic}"))
        last_ms = _last_event_ms(rounds, topic)
        if last_ms is None or now_ms - last_ms >= IDLE_MS_MAX:
            assert measured is None
            continue
        assert measured is not None
        expected = [_weighted(rounds, topic, kind, span_s) for span_s in SPANS_S for kind in range(4)]
        assert measured.rates == pytest.approx(expected, rel=1e-4, abs=1e-6)


def _last_event_ms(rounds: Sequence[Round], topic: int) -> int | None:
    """The time of the last round with an event of the topic, of which none before was forgotten."""
    at_ms, last_ms = 0, None
    for one in rounds:
        at_ms += one.elapsed_ms
        if any(one.counts.get(topic, ())):
            last_ms = at_ms
    return last_ms


def _weighted(rounds: Sequence[Round], topic: int, kind: int, span_s: float) -> float:
    """The integral over the past of the rate by the weight exp(-age / span), divided by the span."""
    total, end_ms = 0.0, sum(one.elapsed_ms for one in rounds)
    at_ms = 0
    for one in rounds:
        from_s, to_s = (end_ms - at_ms) / 1000, (end_ms - at_ms - one.elapsed_ms) / 1000
        rate = one.counts.get(topic, (0, 0, 0, 0))[kind] / (one.elapsed_ms / 1000)
        total += rate * (math.exp(-to_s / span_s) - math.exp(-from_s / span_s))
        at_ms += one.elapsed_ms
    return total


@given(ROUNDS)
@settings(max_examples=150, deadline=None)
def test_series_have_every_event_once_in_the_slots_of_its_round(rounds: list[Round]) -> None:
    walk = Walk()
    spans: list[tuple[int, int, Round]] = []
    for one in rounds:
        before_ms = walk.wall_ms
        walk.round(one)
        spans.append((before_ms, walk.wall_ms, one))
    first, last = walk.table.slots()
    for topic in range(4):
        found = walk.series(topic)
        if not found:
            continue
        assert sorted(found) == list(range(first, last + 1)), "a topic that came new was without events before"
        for kind in range(4):
            for slot, values in found.items():
                least, most = _bounds(spans, topic, kind, slot)
                assert least <= values[kind] <= most, (topic, kind, slot)


def _bounds(spans: Sequence[tuple[int, int, Round]], topic: int, kind: int, slot: int) -> tuple[float, float]:
    """The least and the largest count of a slot: its share of each round, rounded in either direction."""
    from_ms, to_ms = slot * SLOT_MS, (slot + 1) * SLOT_MS
    least = most = 0.0
    for begin_ms, end_ms, one in spans:
        inside_ms = min(end_ms, to_ms) - max(begin_ms, from_ms)
        if inside_ms <= 0:
            continue
        share = one.counts.get(topic, (0, 0, 0, 0))[kind] * inside_ms / (end_ms - begin_ms)
        least, most = least + math.floor(share - 1e-9), most + math.ceil(share + 1e-9)
    return least, most


def test_the_sum_of_a_series_is_the_number_of_events() -> None:
    walk = Walk()
    walk.round(Round(12_000, {}))  # The slot in which a table begins is not known.
    for number in range(60):
        walk.round(Round(7_300 + 10 * number, {0: (number, 2, 1, 0)}))
    walk.round(Round(20_000, {}))
    totals = [sum(values[kind] for values in walk.series(0).values()) for kind in range(4)]
    assert totals == [sum(range(60)), 120, 60, 0]


def test_a_slot_begins_anew_when_its_place_is_used_again() -> None:
    walk = Walk()
    walk.round(Round(SLOT_MS // 2, {}))
    for _ in range(3 * SLOTS_COUNT):
        walk.round(Round(SLOT_MS, {0: (100, 0, 0, 0)}))
    found = walk.series(0)
    assert len(found) >= SLOTS_COUNT - 2
    assert {values[0] for values in found.values()} == {100}


def test_the_ready_items_of_a_slot_are_those_of_its_last_round() -> None:
    walk = Walk()
    for ready in (5, 9, 4):
        walk.round(Round(SLOT_MS, {0: (1, 0, 0, 0)}), ready=ready)
    assert [values[4] for values in walk.series(0).values()][-1] in (4, 9)
    assert walk.table.measured((1, "t0")).ready == 4  # type: ignore[union-attr]


@pytest.mark.parametrize("step_ms", [-3_600_000, -20_000, 20_000, 86_400_000])
def test_a_clock_that_is_set_begins_all_series_anew_and_leaves_the_averages(step_ms: int) -> None:
    walk, steady = Walk(), Walk()
    one = Round(SLOT_MS, {0: (100, 80, 60, 20)})
    for number in range(30):
        walk.round(one, step_ms=step_ms if number == 20 else 0)
        steady.round(one)
    assert walk.table.measured((1, "t0")) == steady.table.measured((1, "t0"))
    found = walk.series(0)
    assert 8 <= len(found) <= 10, "the slots behind the step"
    assert all(values[0] == 100 for values in found.values()), found
    _, last = walk.table.slots()
    assert last * SLOT_MS <= walk.wall_ms < (last + 3) * SLOT_MS


def test_a_ring_that_is_given_before_the_clock_is_set_back_knows_the_slots_after_it() -> None:
    """A busy topic without a ring gets one; an hour later by the old clock is later than now by the new one."""
    walk = Walk(series_max=1)
    for _ in range(3):
        walk.round(Round(SLOT_MS, {0: (10, 0, 0, 0)}))
    for _ in range(20):
        walk.round(Round(SLOT_MS, {1: (900, 0, 0, 0)}))
    assert walk.series(1)
    for number in range(10):
        walk.round(Round(SLOT_MS, {1: (900, 0, 0, 0)}), step_ms=0 if number else -3_600_000)
    assert len(walk.series(1)) >= 8


def test_the_ready_items_of_a_shard_that_is_not_counted_yet_are_none() -> None:
    walk = Walk()
    walk.round(Round(SLOT_MS, {0: (1, 0, 0, 0)}), ready=-7)
    assert walk.table.measured((1, "t0")).ready == 0  # type: ignore[union-attr]


def test_a_round_that_met_an_error_leaves_its_time_and_its_counts_to_the_next_one() -> None:
    walk, broken = Walk(), Walk()
    for _ in range(2 * SLOTS_COUNT):
        for one in (walk, broken):
            one.round(Round(SLOT_MS, {0: (100, 0, 0, 0)}))
    walk.round(Round(2 * SLOT_MS, {0: (200, 0, 0, 0)}))
    broken.steady_ms, broken.wall_ms = broken.steady_ms + SLOT_MS, broken.wall_ms + SLOT_MS
    broken.table.begin(broken.wall_ms, broken.steady_ms / 1000)
    broken.table.add((1, "t0"), (100, 0, 0, 0), 0)  # Then it ends, before any row is folded.
    broken.round(Round(SLOT_MS, {0: (100, 0, 0, 0)}))
    assert broken.table.measured((1, "t0")) == walk.table.measured((1, "t0"))
    assert broken.series(0) == walk.series(0)


@pytest.mark.parametrize("drift_ms", [-4_000, 4_000])
def test_a_clock_that_is_adjusted_a_little_keeps_the_series(drift_ms: int) -> None:
    walk = Walk()
    for number in range(30):
        walk.round(Round(SLOT_MS, {0: (100, 0, 0, 0)}), step_ms=drift_ms if number == 20 else 0)
    found = walk.series(0)
    assert len(found) >= 27
    assert 2_700 <= sum(values[0] for values in found.values()) <= 3_000


def test_a_topic_without_events_leaves_and_comes_anew() -> None:
    walk = Walk(topics_max=1)
    walk.round(Round(10_000, {0: (1, 1, 1, 1)}))
    for _ in range(89):
        walk.round(Round(10_000, {}))
    assert walk.table.measured((1, "t0")) is not None
    walk.round(Round(10_000, {}))
    assert (len(walk.table), walk.table.names(1), walk.table.measured((1, "t0"))) == (0, [], None)
    walk.round(Round(10_000, {1: (5, 0, 0, 0)}))
    assert walk.table.names(1) == ["t1"]
    assert sum(values[0] for values in walk.series(1).values()) <= 5, "nothing is left of the topic before"


def test_topics_beyond_the_bound_have_no_rates_until_others_have_left() -> None:
    walk = Walk(topics_max=2)
    for _ in range(3):
        walk.round(Round(10_000, dict.fromkeys(range(4), (1, 0, 0, 0))))
    assert walk.table.names(1) == ["t0", "t1"]


def test_the_busiest_topics_have_the_series() -> None:
    walk = Walk(series_max=2)
    for _ in range(3):
        walk.round(Round(10_000, dict.fromkeys(range(4), (1, 0, 0, 0))))
    assert [bool(walk.series(topic)) for topic in range(4)] == [True, True, False, False]
    for _ in range(3):
        walk.round(Round(10_000, {0: (1, 0, 0, 0), 2: (9, 0, 0, 0), 3: (7, 0, 0, 0), 1: (1, 0, 0, 0)}))
    found = [walk.series(topic) for topic in range(4)]
    assert [bool(series) for series in found] == [False, False, True, True]
    assert {values[0] for values in found[2].values()} == {9}, "it has nothing of the topic before"


@pytest.mark.deep
def test_a_hundred_thousand_topics_have_room_in_25_megabytes() -> None:
    names = [f"topic-{number}" for number in range(TOPICS_RATED)]
    tracemalloc.start()
    try:
        before_bytes, _ = tracemalloc.get_traced_memory()
        table = RateTable(TOPICS_RATED, 5_000)
        for number in range(2):
            table.begin(START_MS + number * SLOT_MS, 10.0 * number)
            for name in names:
                table.add((1, name), (300, 300, 300, 1), 5)
            for _ in table.fold(1_000):
                pass
        size_bytes = tracemalloc.get_traced_memory()[0] - before_bytes
    finally:
        tracemalloc.stop()
    assert len(table) == TOPICS_RATED
    assert size_bytes <= MEMORY_BYTES_MAX, f"{size_bytes:,} bytes"
    assert size_bytes > 5_000 * SLOTS_COUNT * 4 * 5, "the series are among them"
