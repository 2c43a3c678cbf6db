"""Thousands of topics, each with a cap of its own, in the time of the test (the case of EMQ)."""

from __future__ import annotations

from collections import deque
from unittest.mock import patch

import pytest

from foqs.host.dispatch import prefix_sweep, rings
from foqs.host.dispatch.prefix_sweep import PrefixSweep
from tests.support.deep import deep_but
from tests.support.shards import NAMESPACE, Shards
from tests.unit.test_caps import Consumers, check, stocked

TOPICS = 3_000
ITEMS_A_SECOND = 1_000
SECONDS = 60


def capped(topics: list[str], items_count: int, rate: float) -> Shards:
    shards = stocked({})
    for topic in topics:
        shards.set_policy(topic, deliveries_per_second_max=rate)
    for at in range(0, len(topics), 30):
        for topic in topics[at : at + 30]:
            shards.enqueue(0, topic, count=items_count)
        shards.run(0)
    while shards.settings.policy_changes:
        shards.dispatcher.tick()
    return shards


@pytest.mark.deep
def test_each_of_3000_topics_gets_its_third_of_an_item_a_second() -> None:
    names = [f"t{number}" for number in range(TOPICS)]
    rate = ITEMS_A_SECOND / TOPICS
    shards = capped(names, round(rate * SECONDS) + 4, rate)
    consumers = Consumers(shards, [], 10, any_count=8)
    consumers.pass_ms(SECONDS * 1_000)
    due = rate * SECONDS
    assert set(consumers.got) == set(names)
    assert all(abs(got - due) <= max(1, 0.02 * due) for got in consumers.got.values())
    check(shards)


@pytest.mark.parametrize("rate", deep_but([2], [0.5, 2, 30]))
def test_consumers_of_certain_topics_get_each_at_its_cap(rate: float) -> None:
    names = [f"t{number}" for number in range(40)]
    shards = capped(names, round(rate * 20) + 4, rate)
    consumers = Consumers(shards, names, 5)
    consumers.pass_ms(20_000)
    assert all(abs(consumers.got[name] - rate * 20) <= max(1, 0.02 * rate * 20) for name in names)
    check(shards)


def test_parked_topics_are_not_looked_at_until_they_have_a_token() -> None:
    names = [f"t{number}" for number in range(300)]
    shards = capped(names, 2, 0.1)
    consumers = Consumers(shards, [], 10, any_count=2)
    consumers.pass_ms(2_000)
    assert consumers.got.total() == len(names), "a cap begins with a token"
    dispatcher = shards.dispatcher
    assert not dispatcher.queues.active
    assert not dispatcher.queues.tenants[NAMESPACE].ring.entries
    with (
        patch.object(type(dispatcher.deliveries), "serve", side_effect=AssertionError("served")),
        patch.object(type(dispatcher.tokens), "refresh", side_effect=AssertionError("looked at")),
    ):
        for _ in range(300):
            shards.clock_ms += 20
            dispatcher.tick()
        dispatcher.sweep()
    consumers.pass_ms(4_000)
    assert consumers.got.total() == 2 * len(names)


def test_a_cap_of_a_prefix_holds_for_each_of_its_topics_by_itself_and_those_to_come() -> None:
    shards = stocked({"p/a": 30, "p/b": 30, "q": 30})
    shards.dequeue({"p/a": 1, "p/b": 1, "q": 1})
    shards.run(0)
    shards.set_prefix_policy("p/", deliveries_per_second_max=1)
    shards.enqueue(0, "p/new", count=30)
    shards.run(0)
    consumers = Consumers(shards, [], 10, any_count=8)
    consumers.pass_ms(10_000)
    assert consumers.got["q"] == 29
    assert all(9 <= consumers.got[name] <= 12 for name in ("p/a", "p/b", "p/new"))
    check(shards)
    shards.set_prefix_policy("p/", deliveries_per_second_max=0)
    consumers.pass_ms(1_000)
    assert consumers.got["p/a"] + consumers.got["p/b"] + consumers.got["p/new"] == 29 + 29 + 30
    assert not shards.dispatcher.tokens.caps
    check(shards)


def test_topics_of_a_changed_prefix_are_followed_some_in_each_turn() -> None:
    topics = [(1, f"{'p' if at % 2 else 'q'}{at}") for at in range(4_000)] + [(2, "p")]
    changes = deque([(1, "p"), (1, "p3")])
    sweep, found = PrefixSweep(), list[tuple[int, str]]()
    with patch.object(prefix_sweep, "_TOPICS_PER_TURN", 300):
        turns = 0
        while changes or sweep.is_under_way:
            turns += 1
            some = sweep.take(changes, lambda: list(topics))
            assert len(some) <= 250
            found += some
            assert not changes
    assert 14 <= turns <= 15
    assert sorted(found) == sorted([one for one in topics if one[0] == 1 and one[1].startswith("p")])
    assert sweep.take(changes, list) == []


def test_what_waits_follows_a_prefix_within_a_bounded_number_of_turns() -> None:
    shards = stocked({})
    calls = [shards.dequeue({f"p{at}": 1}) for at in range(600)]
    others = [shards.dequeue({f"q{at}": 1}) for at in range(600)]
    shards.set_prefix_policy("p", dequeue_paused=True)
    turns = 0
    while not all(call.is_paused for call in calls):
        shards.dispatcher.tick()
        turns += 1
        assert turns < 20
    assert turns >= 3
    assert not any(call.done for call in others)


def test_a_call_looks_at_a_bounded_number_of_topics_in_one_turn_and_goes_on_in_the_next() -> None:
    shards = stocked({f"t{number}": 1 for number in range(100)})
    tenant = shards.dispatcher.queues.tenants[NAMESPACE]
    for queue in list(tenant.ring.entries):
        for part in queue.parts.values():
            part.window.sort_keys.clear()  # They look as if they had something, and have nothing.
    shards.enqueue(0, "last")
    shards.run(0)
    with patch.object(rings, "TOPICS_CHECKED_MAX", 30):
        call = shards.dequeue_any(1)
        assert len(tenant.ring.entries) == 71
        for left in (41, 11, 0):
            assert not call.done
            shards.dispatcher.tick()
            assert len(tenant.ring.entries) == left
        shards.run(0)
        shards.dispatcher.tick()
    assert call.items
    assert call.items[0].topic.name == "last"
