"""Thousands of topics, each with a cap of its own, in the time of the test (the case of EMQ)."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from foqs.host import any_topic
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


@pytest.mark.slow
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


@pytest.mark.parametrize("rate", [0.5, 2, 30])
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
    assert not dispatcher._active
    assert not dispatcher._tenants[NAMESPACE].ring.entries
    with (
        patch.object(type(dispatcher), "serve", side_effect=AssertionError("served")),
        patch.object(type(dispatcher), "_refresh", side_effect=AssertionError("looked at")),
    ):
        for _ in range(300):
            shards.clock_ms += 20
            dispatcher.tick()
        dispatcher.sweep()
    consumers.pass_ms(4_000)
    assert consumers.got.total() == 2 * len(names)


def test_a_call_looks_at_a_bounded_number_of_topics_in_one_turn_and_goes_on_in_the_next() -> None:
    shards = stocked({f"t{number}": 1 for number in range(100)})
    tenant = shards.dispatcher._tenants[NAMESPACE]
    for queue in list(tenant.ring.entries):
        for part in queue.parts.values():
            part.window.sort_keys.clear()  # They look as if they had something, and have nothing.
    shards.enqueue(0, "last")
    shards.run(0)
    with patch.object(any_topic, "LOOKS_MAX", 30):
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
