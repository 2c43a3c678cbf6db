"""The sampler on shards in memory: counts of batches and keys, a shard that moves, and the time of its steps."""

from __future__ import annotations

import asyncio
import math
import tracemalloc
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.contract.requests import GetRatesRequest
from foqs.host.metrics import rates as host_rates
from foqs.host.metrics.rates import Rates
from foqs.host.verbs.page_reads import Slices
from foqs.host.verbs.rate_verbs import RateVerbs
from foqs.model.calls import CallContext
from foqs.model.principal import EVERYBODY
from foqs.model.topic_name import ordered
from foqs.model.topic_rates import SERIES_NAMES, UNKNOWN, RateOrder, RatesPage, TopicRates, summed
from tests.support.in_steps import merged_rates
from tests.support.shards import NAMESPACE, Shards

ROUND_MS = host_rates.ROUND_MS
START_MS = 1_700_000_000_000


class Sampled:
    """Shards, and the sampler that is ticked as the host ticks it."""

    def __init__(self, count: int = 2) -> None:
        self.shards = Shards(count)
        self.cost_s = 0.0
        self.rates = Rates(cast(Any, self.shards), self._now_s, self._wall_ms, lambda: self.cost_s)
        self.tick()

    def _now_s(self) -> float:
        return self.shards.clock_ms / 1000

    def _wall_ms(self) -> int:
        return START_MS + self.shards.clock_ms

    def tick(self) -> bool:
        """Do what the host does in each tick. Returns True if something was due."""
        if self._now_s() < self.rates.due_s:
            return False
        self.rates.tick()
        return True

    def round(self) -> None:
        self.shards.clock_ms += ROUND_MS
        assert self.tick()

    def of(self, name: str = "t") -> TopicRates:
        return self.rates.of_topic(NAMESPACE, name) or TopicRates(name)


def test_a_tick_with_nothing_due_does_nothing() -> None:
    sampled = Sampled()
    sampled.shards.clock_ms += ROUND_MS - 1
    assert not sampled.tick()
    sampled.shards.clock_ms += 1
    assert sampled.tick()
    assert not sampled.tick()


def test_a_round_rests_so_that_it_takes_a_twentieth_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_rates, "STEP_TOPICS", 1)
    sampled = Sampled(1)
    for number in range(100):
        put(sampled, f"t{number}")
    taken = sampled.rates._take

    def take_slowly(topics: Any) -> None:
        sampled.cost_s += 0.000_5
        taken(topics)

    monkeypatch.setattr(sampled.rates, "_take", take_slowly)
    sampled.shards.clock_ms += ROUND_MS
    began_ms, began_cost_s, longest_s = sampled.shards.clock_ms, sampled.cost_s, 0.0
    while sampled.of("t99").enqueued_1min == 0:
        before_s = sampled.cost_s
        sampled.tick()
        longest_s = max(longest_s, sampled.cost_s - before_s)
        sampled.shards.clock_ms += 1
    took_s = sampled.cost_s - began_cost_s
    assert took_s == pytest.approx(0.05)
    assert longest_s <= 0.0015 + 1e-9, "a tick ends with the step that is over a millisecond"
    assert took_s / ((sampled.shards.clock_ms - began_ms) / 1000) <= 0.055


def put(sampled: Sampled, name: str = "t", count: int = 1, shard: int = 0) -> None:
    sampled.shards.enqueue(shard, name, count=count)
    sampled.shards.run(shard)


def rate_of(count: int) -> float:
    """The average over one minute of events of one round that has just ended."""
    return count / (ROUND_MS / 1000) * (1 - math.exp(-ROUND_MS / 60_000))


def test_a_topic_has_the_events_of_all_shards_and_its_keyed_topics() -> None:
    sampled = Sampled()
    put(sampled, count=3, shard=0)
    put(sampled, count=4, shard=1)
    put(sampled, ordered("t", "k"), count=5)
    call = sampled.shards.dequeue({"t": 6})
    sampled.shards.pass_ms(200)
    assert call.items is not None
    assert len(call.items) == 6
    sampled.round()
    found = sampled.of()
    assert found.enqueued_1min == pytest.approx(rate_of(12), rel=0.05)
    assert found.delivered_1min == pytest.approx(rate_of(6), rel=0.05)
    assert found.ready == 6
    assert sampled.rates.topics.names(NAMESPACE) == ["t"]
    assert sampled.rates.of_namespace(NAMESPACE).enqueued_1min == pytest.approx(found.enqueued_1min)
    assert sampled.rates.of_namespace(NAMESPACE).ready == 6


def test_a_shard_that_comes_from_another_host_adds_no_events_that_are_not_new() -> None:
    """Counts are taken and begin anew, so that no total of before is taken for events of now."""
    sampled = Sampled()
    for _ in range(6):
        put(sampled, count=100)
        sampled.round()
    before = sampled.of().enqueued_1min
    sampled.shards.take_over()
    sampled.round()
    assert sampled.of().enqueued_1min == pytest.approx(before * math.exp(-ROUND_MS / 60_000), rel=1e-3)
    put(sampled, count=100)
    sampled.round()
    after = sampled.of().enqueued_1min
    assert before * 0.5 < after < before * 1.1, (before, after)
    last = series_of(sampled)
    assert [max(0, count) for count in last[-7:]] == [100, 100, 100, 100, 100, 0, 100]


def series_of(sampled: Sampled) -> list[int]:
    first, last = sampled.rates.topics.slots()
    series = sampled.rates.topics.series((NAMESPACE, "t"), first, last)
    assert series is not None
    return series[0]


COUNT = st.integers(-1, 1_000)
PAGES = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.tuples(COUNT, COUNT), max_size=8), st.sets(st.sampled_from("abc"))),
    min_size=1,
    max_size=4,
)


@given(PAGES, st.sampled_from(RateOrder))
@settings(deadline=None)
def test_the_rates_of_hosts_add_up(pages: list[tuple[int, list[tuple[int, int]], set[str]]], order: RateOrder) -> None:
    """Each page begins its series at another slot, and has some topics with the same numbers."""
    made, known = [], dict[tuple[str, int], int]()
    ends = [(first + len(values)) for first, values, topics in pages if values and topics]
    for first, values, topics in pages:
        rows = [_row(topic, values) for topic in sorted(topics)]
        made.append(RatesPage(rows, first * 10_000))
        for topic in topics:
            for at, (count, _) in enumerate(values):
                if count != UNKNOWN:
                    known[topic, first + at] = known.get((topic, first + at), 0) + count
    merged = merged_rates(made, order, 2, ())
    totals = {topic: float(sum(topic in topics for _, _, topics in pages)) for topic in "abc"}
    wanted = sorted((topic for topic in "abc" if totals[topic]), key=lambda topic: (-totals[topic], topic))[:2]
    assert [row.topic for row in merged.topics] == wanted
    for row in merged.topics:
        assert (row.enqueued_1min, row.failed_15min, row.ready) == (totals[row.topic],) * 3
        for at, count in enumerate(row.enqueued_series or ()):
            slot = merged.first_slot_ms // 10_000 + at
            assert slot < min(ends), "the host that is behind ends the series of all"
            assert count == known.get((row.topic, slot), UNKNOWN)


def _row(topic: str, values: list[tuple[int, int]]) -> TopicRates:
    row = TopicRates(topic, *[1.0] * 8, ready=1)
    if values:
        row.enqueued_series, row.ready_series = [a for a, _ in values], [b for _, b in values]
    return row


def test_named_topics_keep_the_order_in_which_they_were_named() -> None:
    page = RatesPage([TopicRates("a", 1.0), TopicRates("b", 2.0)])
    assert [row.topic for row in merged_rates([page], 0, 1, ["b", "a"]).topics] == ["b", "a"]


def test_a_topic_with_rates_on_no_host_has_none() -> None:
    assert summed([None, None]) is None
    found = summed([TopicRates("a", 1.0), None, TopicRates("a", 2.0, ready=3)])
    assert found is not None
    assert (found.enqueued_1min, found.ready) == (3.0, 3)


@pytest.mark.parametrize("first_ms", [0, 1_400_000_000_000])
def test_series_of_a_host_whose_clock_is_far_off_are_left_out_and_cost_nothing(first_ms: int) -> None:
    def page(at_ms: int) -> RatesPage:
        row = TopicRates("t", enqueued_1min=1.0)
        for name in SERIES_NAMES:
            setattr(row, name, [7] * 3)
        return RatesPage([row], at_ms)

    now_ms = 1_700_000_000_000
    tracemalloc.start()
    merged = merged_rates([page(now_ms), page(first_ms), page(now_ms)], 0, 10, ())
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak_bytes < 1_000_000
    (row,) = merged.topics
    assert (row.enqueued_1min, row.enqueued_series, merged.first_slot_ms) == (3.0, [14, 14, 14], now_ms)


class CountedRates(Rates):
    """Counts the topics that are read."""

    read_count = 0

    def of_topic(self, namespace: int, name: str) -> TopicRates | None:
        self.read_count += 1
        return super().of_topic(namespace, name)


class WatchedSlices(Slices):
    """Keeps the most that one slice, and anything beside slices, has added to a count."""

    def __init__(self, count: Callable[[], int]) -> None:
        super().__init__(asyncio.get_running_loop())
        self._count = count
        self.most = self.last = 0

    async def run(self, work: Callable[[], Any]) -> Any:
        self.note()
        try:
            return await super().run(work)
        finally:
            self.note()

    def note(self) -> None:
        self.most, self.last = max(self.most, self._count() - self.last), self._count()


async def test_no_turn_of_the_loop_reads_the_rates_or_the_series_of_many_topics() -> None:
    shards, series_count = Shards(1), 0
    rates = CountedRates(cast(Any, shards), lambda: 0.0, lambda: 0, lambda: 0.0)
    found = rates.topics.series

    def series(*args: Any) -> Any:
        nonlocal series_count
        series_count += 1
        return found(*args)

    rates.topics.series = series  # type: ignore[method-assign]
    topics = [f"t{number}" for number in range(1_000)]
    namespaces = cast(Any, SimpleNamespace(serving=lambda name: SimpleNamespace(number=NAMESPACE)))
    for request, count, most in (
        (GetRatesRequest("ns", topics), lambda: rates.read_count, 100),
        (GetRatesRequest("ns", topics[:50], with_series=True), lambda: series_count, 10),
    ):
        slices = WatchedSlices(count)
        verbs = RateVerbs(namespaces, cast(Any, shards), rates, slices)
        page = await verbs.get_rates(CallContext("", principal=EVERYBODY, shards=frozenset({0})), request)
        slices.note()
        assert [row.topic for row in page.topics] == request.topics
        assert count() >= len(page.topics)
        assert slices.most <= most
