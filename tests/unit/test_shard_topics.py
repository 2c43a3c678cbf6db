"""Topics of a shard: limits and orders that operators change while items are out."""

from __future__ import annotations

import pytest

from foqs.model.policy import TopicPolicy
from foqs.model.slot_gates import ALL_SLOTS
from foqs.model.topic import ShardTopic
from foqs.model.topic_name import ordered
from foqs.model.window_budget import WindowBudget
from foqs.shard.state.engine import ROOM_REPORTED_PER_TICK
from tests.support.shards import NAMESPACE, Shards


@pytest.mark.parametrize("policy", [None, TopicPolicy(serial=True)])
def test_a_new_order_of_a_topic_leaves_its_claims_and_permits_as_they_are(policy: TopicPolicy | None) -> None:
    topic = ShardTopic(0, 1, 1, "t", WindowBudget(), {}, stored=False)
    assert (topic.out_count, topic.permits, topic.permits_granted) == (0, None, 0)
    topic.out_count, topic.permits, topic.permits_granted = 2, 3, 4
    topic.follow(policy)
    assert topic.is_serial is (policy is not None)
    assert (topic.out_count, topic.permits, topic.permits_granted) == (2, 3, 4)


def test_slots_that_open_report_their_topics_in_steps() -> None:
    shards = Shards(1)
    shard = shards.states[0]
    names = [ordered("t", f"key {number}") for number in range(ROOM_REPORTED_PER_TICK + 1)]
    topics = {shard.index.topic(NAMESPACE, name) for name in names}
    shard.shut_slots(ALL_SLOTS)
    shard.take_events()
    shard.shut_slots(frozenset())
    first = topics.intersection(shard.take_events().topics_changed)
    assert len(first) == ROOM_REPORTED_PER_TICK
    shard.tick(shards.now(0))
    assert topics - first == topics.intersection(shard.take_events().topics_changed)
