"""The counts that are kept, and topics that are forgotten a few at a time."""

from __future__ import annotations

import pytest

from foqs.model import limits
from tests.support.shards import NAMESPACE, Shards


def _ticks_until_forgotten(shards: Shards) -> int:
    count = 0
    while shards.states[0].index.topics:
        shards.run(0)
        count += 1
    return count


def test_counts_of_the_namespace_and_of_the_shard_follow_those_of_the_topics() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a", count=3)
    shards.enqueue(0, "b", delay_ms=1_000, count=2)
    shards.run(0)
    shards.dequeue({"a": 1})
    shards.run(0)
    index = shards.states[0].index
    for counts in (index.namespaces[NAMESPACE], index.counts):
        assert (counts.ready, counts.leased, counts.delayed, counts.dead, counts.total) == (2, 1, 2, 0, 5)
    assert list(index.namespaces[NAMESPACE].by_name) == ["a", "b"]


def test_a_namespace_without_topics_is_forgotten_with_the_last_of_them() -> None:
    shards = Shards(1)
    shards.enqueue(0, "a")
    shards.run(0)
    call = shards.dequeue({"a": 1})
    shards.run(0)
    state = shards.states[0]
    (item,) = call.items or []
    state.end_leases([item])
    state.settle([item])
    shards.run(0)
    shards.clock_ms += limits.TOPIC_IDLE_MS
    shards.run(0)
    assert state.index.topics
    shards.clock_ms += 1
    shards.run(0)
    assert not shards.tables[0].topics
    assert not any([state.index.topics, state.index.by_number, state.index.namespaces])


def test_topics_that_were_empty_for_long_are_forgotten_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPICS_PER_TICK_MAX", 10)
    shards = Shards(1)
    for number in range(35):
        shards.states[0].index.topic(NAMESPACE, f"t{number}")
    shards.run(0)
    shards.clock_ms += limits.TOPIC_IDLE_MS + 1
    assert _ticks_until_forgotten(shards) == 4


def test_topics_with_rows_go_no_more_at_once_than_a_transaction_deletes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_TOPICS_GONE_MAX", 10)
    shards = Shards(1)
    for number in range(35):
        shards.states[0].index.topic(NAMESPACE, f"t{number}")
        shards.states[0].index.topic(NAMESPACE, f"t{number}").stored = True
    shards.clock_ms += limits.TOPIC_IDLE_MS + 1
    transaction = shards.begin(0)
    assert transaction is not None
    assert len(transaction.topics_gone) == 10


def test_a_topic_whose_items_are_on_the_way_is_not_forgotten() -> None:
    shards = Shards(1)
    shards.states[0].index.topic(NAMESPACE, "other")
    shards.enqueue(0, "t")
    shards.clock_ms += limits.TOPIC_IDLE_MS + 1
    shards.states[0].tick(shards.now(0))
    assert list(shards.states[0].index.namespaces[NAMESPACE].by_name) == ["t"]
