"""Topics of a shard: limits and orders that operators change while items are out."""

from __future__ import annotations

import pytest

from foqs.model.policy import TopicPolicy
from foqs.model.topic import ShardTopic
from foqs.model.window_budget import WindowBudget


@pytest.mark.parametrize("policy", [None, TopicPolicy(serial=True)])
def test_a_new_order_of_a_topic_leaves_its_claims_and_permits_as_they_are(policy: TopicPolicy | None) -> None:
    topic = ShardTopic(0, 1, 1, "t", WindowBudget(), [], stored=False)
    assert (topic.out_count, topic.permits, topic.permits_granted) == (0, None, 0)
    topic.out_count, topic.permits, topic.permits_granted = 2, 3, 4
    topic.follow(policy)
    assert topic.is_serial is (policy is not None)
    assert (topic.out_count, topic.permits, topic.permits_granted) == (2, 3, 4)
