"""Defects of policies of prefixes, and of what topics say over them."""

from __future__ import annotations

from foqs.model.policies import Prefixes
from foqs.model.policy import OwnPolicy, TopicPolicy
from tests.sim.planting import in_place_of


@in_place_of(Prefixes, "longest")
def finds_no_prefix_of_a_topic(self: Prefixes, name: str) -> str | None:
    return None


@in_place_of(OwnPolicy, "over")
def lets_a_prefix_override_its_topics(self: OwnPolicy, base: TopicPolicy) -> TopicPolicy:
    return base
