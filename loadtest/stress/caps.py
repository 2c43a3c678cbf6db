"""What caps cost a host: thousands of topics with a cap each (the case of EMQ), and very many that wait.

The dispatcher and a shard are the real ones, on tables in memory and in virtual time, so that only their processor time
counts. The same deliveries are made with and without caps: one item of another topic each, so many a second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from foqs.host.dispatch.dispatcher import Dispatcher
from foqs.host.dispatch.topic_queue import DequeueCall
from foqs.model.policy import OwnPolicy
from loadtest.stress.verdict import Bound, Verdict
from tests.support.shards import NAMESPACE, Shards

CAP_US_A_ITEM_MAX = 3.0
PARKED_MS_A_SECOND_MAX = 1.0
_STEP_MS = 20
_SWEEP_STEPS = 25
_FILL_TOPICS = 200
_PARKED_RATE = 0.001
_CALLS_COUNT = 4
_REST_STEPS = 300


@dataclass(frozen=True, slots=True)
class Course:
    topics: int = 3_000
    items_per_s: int = 1_000
    seconds: int = 60
    parked: int = 100_000
    rounds: int = 3


@dataclass(slots=True)
class _Clock:
    """The processor time of what the dispatcher does."""

    spent_ns: int = 0
    depth: int = 0

    def timed(self, work: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            if self.depth:
                return work(*arguments, **named)
            self.depth += 1
            began_ns = time.thread_time_ns()
            try:
                return work(*arguments, **named)
            finally:
                self.spent_ns += time.thread_time_ns() - began_ns
                self.depth -= 1

        return run


@dataclass(slots=True)
class _Stand:
    """Topics with items on one shard, and consumers of any of them."""

    shards: Shards
    clock: _Clock
    delivered: Counter[str] = field(default_factory=Counter)
    calls: list[DequeueCall] = field(default_factory=list)

    @classmethod
    def made(cls, topics: int, items_each: int, rate: float) -> _Stand:
        clock = _Clock()
        shards = Shards(1)
        _time_calls(shards.dispatcher, clock)
        names = [f"topic-{number:06d}" for number in range(topics)]
        if rate:
            policies = {name: OwnPolicy(deliveries_per_second_max=rate) for name in names}
            shards.settings.replace_policies({NAMESPACE: policies})
        for first in range(0, topics, _FILL_TOPICS):
            for name in names[first : first + _FILL_TOPICS]:
                shards.enqueue(0, name, count=items_each)
            shards.run(0)
        while shards.settings.policy_changes:
            shards.dispatcher.tick()
        return cls(shards, clock)

    def step(self, count: int, calls_count: int) -> None:
        """Some time passes, in which calls ask for `count` items each."""
        shards = self.shards
        shards.clock_ms += _STEP_MS
        shards.dispatcher.tick()
        while len(self.calls) < calls_count:
            self.calls.append(shards.dequeue_any(count))
        shards.run(0)
        self.take()

    def take(self) -> None:
        for call in self.calls:
            for item in call.items or []:
                self.delivered[item.topic.name] += 1
                self.shards.states[0].end_leases([item])
        self.calls = [call for call in self.calls if not call.done]


def _time_calls(dispatcher: Dispatcher, clock: _Clock) -> None:
    for name in ("tick", "sweep", "demand", "on_events", "start_any"):
        setattr(dispatcher, name, clock.timed(getattr(dispatcher, name)))


def run(course: Course) -> Verdict:
    verdict = Verdict("caps")
    for _ in range(course.rounds):
        verdict.rows.append(_round(course))
    over = [row["capped us an item"] - row["uncapped us an item"] for row in verdict.rows]
    verdict.bounds += [
        Bound("median of what a cap costs, us an item", median(over), CAP_US_A_ITEM_MAX),
        Bound("topics that are off their caps by over 2 % and an item", max(r["topics off"] for r in verdict.rows), 0),
        Bound(
            "median of what topics that wait cost, ms a second",
            median(row["parked ms a second"] for row in verdict.rows),
            PARKED_MS_A_SECOND_MAX,
        ),
    ]
    verdict.facts |= {"topics": course.topics, "items a second": course.items_per_s, "parked": course.parked}
    return verdict


def _round(course: Course) -> dict[str, Any]:
    rate = course.items_per_s / course.topics
    each = round(rate * course.seconds) + 4
    capped = _Stand.made(course.topics, each, rate)
    capped_us = _delivering(capped, course, capped.shards.dispatcher, is_capped=True)
    due = rate * course.seconds
    off = sum(abs(got - due) > max(1.0, 0.02 * due) for got in capped.delivered.values())
    off += course.topics - len(capped.delivered)
    uncapped = _Stand.made(course.topics, each, 0.0)
    uncapped_us = _delivering(uncapped, course, uncapped.shards.dispatcher, is_capped=False)
    return {
        "capped us an item": capped_us,
        "uncapped us an item": uncapped_us,
        "topics off": off,
        "parked ms a second": _waiting(course),
    }


def _delivering(stand: _Stand, course: Course, dispatcher: Dispatcher, *, is_capped: bool) -> float:
    """Deliver for the whole time. Returns what the dispatcher spent, in microseconds an item."""
    stand.clock.spent_ns = 0
    per_step = course.items_per_s * _STEP_MS // 1_000
    for number in range(course.seconds * 1_000 // _STEP_MS):
        # Without caps each step asks for as much as the caps let through in it.
        stand.step(per_step, _CALLS_COUNT if is_capped else 1)
        if number % _SWEEP_STEPS == 0:
            dispatcher.sweep()
    return stand.clock.spent_ns / 1_000 / max(1, stand.delivered.total())


def _waiting(course: Course) -> float:
    """What topics cost that wait for their tokens, beside a call for any of them, in milliseconds a second."""
    stand = _Stand.made(course.parked, 2, _PARKED_RATE)
    while stand.delivered.total() < course.parked:  # Each cap begins with a token.
        stand.step(1_000, _CALLS_COUNT)
    for _ in range(course.parked // 1_000 + _REST_STEPS):  # Calls look at them, and consumers come to rest.
        stand.step(1_000, _CALLS_COUNT)
        stand.shards.dispatcher.sweep()
    stand.clock.spent_ns = 0
    seconds = 10
    for number in range(seconds * 1_000 // _STEP_MS):
        stand.shards.clock_ms += _STEP_MS
        stand.shards.dispatcher.tick()
        if number % _SWEEP_STEPS == 0:
            stand.shards.dispatcher.sweep()
    return stand.clock.spent_ns / 1e6 / seconds
