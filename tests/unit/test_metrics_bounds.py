"""Metrics stay few and cheap, whatever the number of namespaces and topics."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
from prometheus_client import CollectorRegistry

from foqs.host.metrics import ages
from foqs.host.metrics.ages import Ages
from foqs.host.metrics.gauges import OF_HOST, OF_ITEMS
from foqs.host.metrics.meters import BOUNDS_S, OTHER_NAMESPACES, Distribution, ItemMeters
from foqs.host.metrics.metric_rows import RowCollector
from foqs.model import limits
from foqs.model.item import ItemEvent
from foqs.model.topic import ItemCounts


def name_of(number: int) -> str:
    return f"ns-{number}"


def shards_of(*books: dict[int, ItemCounts]) -> Any:
    writers = {
        number: SimpleNamespace(shard_id=number, held=SimpleNamespace(index=SimpleNamespace(namespaces=index)))
        for number, index in enumerate(books)
    }
    return SimpleNamespace(writers=writers)


def counts(ready: int = 0, delayed: int = 0) -> ItemCounts:
    made = ItemCounts(None)
    made.count(rows=ready, delayed=delayed)
    return made


def samples(rows: Any, source: Any, name: str) -> dict[tuple[str, ...], float]:
    registry = CollectorRegistry()
    registry.register(RowCollector([row for row in rows if row.name == name], source))
    return {
        tuple(sample.labels.values()): sample.value
        for family in registry.collect()
        for sample in family.samples
        if sample.name == name and sample.value
    }


def namespace_items(shards: Any) -> dict[tuple[str, ...], float]:
    return samples(OF_HOST, SimpleNamespace(shards=shards, name_of=name_of), "foqs_namespace_items")


@pytest.fixture(autouse=True)
def _few():
    with patch.object(limits, "METRIC_NAMESPACES_MAX", 3):
        yield


def test_namespaces_with_the_most_items_have_labels_and_the_rest_are_one_together():
    books = [{n: counts(ready=n, delayed=1) for n in range(6)}, {5: counts(ready=10)}, {9: counts()}]
    found = namespace_items(shards_of(*books))
    assert found == {
        ("ns-5", "ready"): 15, ("ns-5", "delayed"): 1,
        ("ns-4", "ready"): 4, ("ns-4", "delayed"): 1,
        ("ns-3", "ready"): 3, ("ns-3", "delayed"): 1,
        (OTHER_NAMESPACES, "ready"): 3, (OTHER_NAMESPACES, "delayed"): 3,
    }  # fmt: skip


def test_a_shard_that_is_lost_during_a_scrape_is_left_out():
    shards = shards_of({1: counts(ready=2)}, {1: counts(ready=3)})
    shards.writers[0].held = None
    assert namespace_items(shards) == {("ns-1", "ready"): 3}


def test_a_counter_never_goes_back_though_more_namespaces_come():
    meters = ItemMeters(name_of)
    for number in range(6):
        meters.count_event(number, ItemEvent.ACKED, 1)
        meters.count_event(0, ItemEvent.ACKED, 10)
    for number in range(6):
        meters.count_event(number, ItemEvent.ACKED, 100)
    assert samples(OF_ITEMS, meters, "foqs_item_events_total") == {
        ("ns-0", "acked"): 161, ("ns-1", "acked"): 101, ("ns-2", "acked"): 101, (OTHER_NAMESPACES, "acked"): 303
    }  # fmt: skip


def test_a_deleted_namespace_leaves_its_place_to_a_new_one():
    deleted: set[int] = set()
    meters = ItemMeters(lambda number: None if number in deleted else name_of(number))
    for number in range(3):
        meters.count_event(number, ItemEvent.ACKED, 1)
    deleted.add(1)
    meters.count_event(7, ItemEvent.ACKED, 1)
    assert samples(OF_ITEMS, meters, "foqs_item_events_total") == {
        ("ns-0", "acked"): 1, ("ns-2", "acked"): 1, ("ns-7", "acked"): 1
    }  # fmt: skip


def test_an_event_costs_the_same_however_many_namespaces_have_labels():
    asked: list[int] = []

    def name_asked(number: int) -> str:
        asked.append(number)
        return name_of(number)

    with patch.object(limits, "METRIC_NAMESPACES_MAX", 1_000):
        meters = ItemMeters(name_asked)
        for number in range(2_000):
            meters.count_event(number, ItemEvent.ACKED, 1)
        asked.clear()
        for _ in range(1_000):
            meters.count_event(1_500, ItemEvent.ACKED, 1)
    assert len(asked) <= 10_000, "each of 2,000 events looked at a thousand namespaces"
    assert set(asked) == set(range(1_000)), "a sort_key that has become free is found in the end"


def test_each_time_is_in_the_bucket_of_the_first_bound_that_it_does_not_exceed():
    distribution = Distribution()
    for seconds in (0.0, 0.001, 0.0011, 31.0):
        distribution.observe(seconds)
    buckets = dict(distribution.buckets())
    assert (buckets["0.001"], buckets["0.002"], buckets["30.0"], buckets["+Inf"]) == (2, 3, 3, 4)
    assert len(buckets) == len(BOUNDS_S) + 1
    assert distribution.seconds_sum == pytest.approx(31.0021)


class World:
    """One owned shard of topics that tell since when their oldest item is ready; each look at one is counted."""

    def __init__(self, due_ats: list[int | None]) -> None:
        self.now_s = 0.0
        self.looks = 0
        self.due_ats = due_ats
        topics = {number: self._topic(number) for number in range(len(due_ats))}
        shard = SimpleNamespace(index=SimpleNamespace(topics=topics), sweep_lag_ms=lambda now_ms: now_ms - 5)
        self.now_ms = 12
        writer = SimpleNamespace(shard_id=4, now_ms=lambda: self.now_ms)
        shards: Any = SimpleNamespace(owned=lambda: iter([(writer, shard)]))
        self.ages = Ages(shards, lambda: self.now_s)

    def _topic(self, number: int) -> Any:
        def oldest_due_at() -> int | None:
            self.looks += 1
            return self.due_ats[number]

        return SimpleNamespace(oldest_due_at=oldest_due_at)

    def tick(self, count: int = 1) -> None:
        for _ in range(count):
            self.ages.tick()


def test_the_oldest_of_all_topics_is_found_a_few_topics_a_tick():
    world = World([None] * ages.AGES_TOPICS_PER_TICK + [70, 50, 60])
    world.tick()
    assert 0 < world.looks <= ages.AGES_TOPICS_PER_TICK
    assert world.ages.oldest_due_at == {}
    world.tick()
    assert (world.looks, world.ages.oldest_due_at) == (ages.AGES_TOPICS_PER_TICK + 3, {4: 50})
    assert world.ages.delay_lag_ms == {4: 7}


def test_few_topics_are_looked_at_once_a_round_and_an_item_that_went_is_forgotten():
    world = World([50])
    world.tick(10)
    assert (world.looks, world.ages.oldest_due_at) == (1, {4: 50})
    world.due_ats[0] = None
    world.now_s += ages.AGES_ROUND_MS / 1000
    world.tick(10)
    assert (world.looks, world.ages.oldest_due_at) == (2, {})


def test_the_lag_of_delayed_items_is_measured_once_a_round():
    world = World([])
    world.tick()
    world.now_ms = 20
    world.tick(10)
    assert world.ages.delay_lag_ms == {4: 7}
    world.now_s += ages.AGES_ROUND_MS / 1000
    world.tick()
    assert world.ages.delay_lag_ms == {4: 15}
