"""The work of the sampler's rounds on 100,000 topics, counted by topic: how much one tick does, and all of them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.host.metrics import rates as host_rates
from foqs.host.metrics.rate_table import SWAPS_MAX, RateTable
from foqs.host.metrics.rates import Rates

TOPICS_COUNT = 100_000
NAMESPACES = (1, 2)
TOPIC_COST_US = 10
"""What it costs to take or to fold a topic, or to hand on a ring: about twice what an interpreted host takes."""
TICK_US_MAX = 1_000 + max(host_rates.STEP_TOPICS, SWAPS_MAX) * TOPIC_COST_US
"""A tick ends after a millisecond, or with a step that began before that."""
TICK_MS = 5
"""The time between two turns of the host's ticker."""


class Topic:
    """A topic that moves by some items a round."""

    __slots__ = ("base", "base_name", "moves_by", "namespace", "ready_with_keyed", "work")

    def __init__(self, namespace: int, name: str, work: Work) -> None:
        self.base = None
        self.namespace, self.base_name = namespace, name
        self.ready_with_keyed = self.moves_by = 1
        self.work = work

    def take_counts(self) -> tuple[int, int, int, int] | None:
        self.work.add(1)
        return (self.moves_by, self.moves_by, 0, 0) if self.moves_by else None


class Work:
    """The cost so far."""

    def __init__(self) -> None:
        self.count = 0
        self.rounds_count = 0
        """The rounds that have begun."""

    def add(self, count: int) -> None:
        self.count += count

    def cost_s(self) -> float:
        return self.count * TOPIC_COST_US / 1_000_000


class Ticked:
    """The sampler of a host with one shard, which is ticked as the host ticks it, and what that costs."""

    def __init__(self, work: Work) -> None:
        own_count = TOPICS_COUNT // len(NAMESPACES)
        self.topics = {
            (namespace, f"t{number}"): Topic(namespace, f"t{number}", work)
            for namespace in NAMESPACES
            for number in range(own_count)
        }
        index = SimpleNamespace(
            topics=self.topics, namespaces={number: SimpleNamespace(ready=own_count) for number in NAMESPACES}
        )
        shards = SimpleNamespace(owned=lambda: iter([(0, SimpleNamespace(index=index))]))
        self.work, self.now_ms, self.most_us = work, 0, 0
        self.rates = Rates(
            cast(Any, shards), lambda: self.now_ms / 1000, lambda: 1_700_000_000_000 + self.now_ms, work.cost_s
        )

    def tick(self) -> None:
        """Let the host's ticker have a turn, and then all others."""
        if self.now_ms / 1000 >= self.rates.due_s:
            before = self.work.count
            self.rates.tick()
            self.most_us = max(self.most_us, (self.work.count - before) * TOPIC_COST_US)
        self.now_ms += TICK_MS

    def run_rounds(self, count: int) -> None:
        """Tick until this many rounds have ended, and the next one has begun."""
        until = self.work.rounds_count + count
        while self.work.rounds_count < until:
            self.tick()
            assert self.now_ms < 1_000_000, "each round ends"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Work:
    """Counts each row that is folded and each ring that is handed on, beside what topics count themselves."""
    work = Work()
    for name in ("_fold_row", "_give_ring"):
        done = getattr(RateTable, name)

        def counted(self: RateTable, *args: Any, done: Any = done, **named: Any) -> Any:
            work.add(1)
            return done(self, *args, **named)

        monkeypatch.setattr(RateTable, name, counted)

    steps = Rates._steps

    def begun(self: Rates) -> Iterator[None]:
        work.rounds_count += 1
        return steps(self)

    monkeypatch.setattr(Rates, "_steps", begun)
    return work


def test_no_tick_does_much_and_rounds_of_100_000_topics_take_a_twentieth_of_a_core(
    work: Work, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticked = Ticked(work)
    ticked.run_rounds(2)  # The first one has no time in which something happened.
    began_ms, began_cost_s = ticked.now_ms, work.cost_s()
    ticked.run_rounds(1)
    found = ticked.rates.of_topic(2, "t49999")
    assert found is not None
    assert found.enqueued_1min > 0
    handed_on = Mock(wraps=ticked.rates.topics._free_ring)
    monkeypatch.setattr(ticked.rates.topics, "_free_ring", handed_on)
    for (_, name), topic in ticked.topics.items():
        topic.moves_by = 0 if int(name[1:]) < 5_000 else 500
    ticked.run_rounds(1)
    took_s = work.cost_s() - began_cost_s
    assert took_s >= 2 * 2 * TOPICS_COUNT * TOPIC_COST_US / 1_000_000, "each topic is taken and folded"
    assert handed_on.call_count == SWAPS_MAX * len(NAMESPACES), "the topics that had series are still now"
    assert took_s / ((ticked.now_ms - began_ms) / 1000) <= 0.055
    assert ticked.most_us <= TICK_US_MAX
