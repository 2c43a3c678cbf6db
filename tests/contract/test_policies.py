"""Policies of prefixes, and of many topics at once, as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import pytest

import foqs
from foqs import BatchError, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World


def test_a_prefix_pauses_and_limits_each_topic_that_begins_so_and_has_no_word_of_its_own(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem(topic, topic.encode()) for topic in ("p/1", "p/2", "q")])
    policy = world.admin.set_topic_policy(
        NS, "p/", is_prefix=True, enqueue_paused=True, dequeue_paused=True, reason="r"
    )
    assert policy == world.admin.get_topic_policy(NS, "p/", is_prefix=True)
    assert world.admin.get_topic_policy(NS, "p/") == foqs.TopicPolicyEntry(**{**as_topic(policy), "topic": "p/"})
    with pytest.raises(BatchError) as batch:
        world.client.enqueue_many(NS, [NewItem("p/1", b""), NewItem("q", b"q"), NewItem("p/new", b"")])
    assert {at: type(error) for at, error in batch.value.errors.items()} == {0: foqs.PausedError, 2: foqs.PausedError}
    with pytest.raises(foqs.PausedError, match="r"):
        world.client.dequeue(NS, ["p/1", "p/2"])
    assert {item.topic for item in world.client.dequeue(NS, topic_prefix="", count=9, wait_ms=SECOND_MS)} == {"q"}
    world.admin.set_topic_policy(NS, "p/1", dequeue_paused=False)
    (one,) = world.client.dequeue(NS, topic_prefix="", count=9, wait_ms=5_000)
    assert one.topic == "p/1"
    with pytest.raises(foqs.PausedError):
        world.client.enqueue(NS, "p/1", b"")
    listed = list(world.admin.list_topic_policies(NS))
    assert [(one.topic, one.is_prefix, one.own_fields) for one in listed] == [
        ("p/", True, ("enqueue_paused", "dequeue_paused", "reason")), ("p/1", False, ("dequeue_paused",)),
    ]  # fmt: skip
    world.admin.set_topic_policy(NS, "p/", is_prefix=True, enqueue_paused=False, dequeue_paused=False, reason="")
    (two,) = world.client.dequeue(NS, "p/2", wait_ms=5_000)
    assert two.payload == b"p/2"


def as_topic(policy: foqs.TopicPolicyEntry) -> dict[str, Any]:
    """What holds for a topic of the prefix."""
    return {**asdict(policy), "is_prefix": False, "own_fields": ()}


def test_policies_of_many_are_set_at_once_and_a_bad_member_fails_alone(world: World) -> None:
    odd = ["a", "a*", 'say "a, b"', "ü/ 1"]
    good = [foqs.TopicPolicyChange(name, weight=3) for name in odd] + [
        foqs.TopicPolicyChange(name, is_prefix=True, weight=4) for name in odd
    ]
    bad: list[Any] = [
        foqs.TopicPolicyChange("", weight=2),
        foqs.TopicPolicyChange("bad", weight=101),
        foqs.TopicPolicyChange("bad", weight=2**40),
        foqs.TopicPolicyChange("bad", deliveries_per_second_max=float("nan")),
        foqs.TopicPolicyChange("bad\ud800", weight=2),
        foqs.TopicPolicyChange("bad" * 100, is_prefix=True, weight=2),
        foqs.TopicPolicyChange("bad", reason=b"why"),  # type: ignore[arg-type]
        foqs.TopicPolicyChange("bad", dequeue_paused="no"),  # type: ignore[arg-type]
        "bad",
    ]
    errors = world.admin.set_topic_policies(NS, [*bad, *good], return_errors=True)
    assert {at: type(error) for at, error in errors.items()} == dict.fromkeys(
        range(len(bad)), foqs.InvalidArgumentError
    )
    listed = [(one.topic, one.is_prefix, one.weight) for one in world.admin.list_topic_policies(NS)]
    assert listed == [(name, True, 4) for name in sorted(odd)] + [(name, False, 3) for name in sorted(odd)]
    with pytest.raises(BatchError) as raised:
        world.admin.set_topic_policies(NS, [*good, bad[0]])
    assert list(raised.value.errors) == [len(good)]
    assert world.admin.set_topic_policies(NS, []) == {}
    many = [foqs.TopicPolicyChange(f"t{at}", weight=2) for at in range(1_500)]
    assert world.admin.set_topic_policies(NS, many) == {}
    assert sum(1 for _ in world.admin.list_topic_policies(NS, "t")) == 1_500


def test_a_topic_a_prefix_and_a_group_have_their_own_number_of_attempts(world: World) -> None:
    world.admin.create_group(NS, "one", "audit")
    world.admin.set_topic_policy(NS, "one", attempts_max=1)
    world.admin.set_topic_policy(NS, "tw", is_prefix=True, attempts_max=2)
    world.client.enqueue_many(NS, [NewItem(topic, topic.encode()) for topic in ("one", "two", "else")])

    def fail(topic: str, group: str | None = None) -> int:
        """Fail until nothing is ready, but three times at most. Returns how often."""
        for count in range(3):
            items = world.client.dequeue(NS, topic, group=group, wait_ms=SECOND_MS if count == 0 else 0)
            if not items:
                return count
            world.client.nack(NS, items)
        return 3

    assert {topic: fail(topic) for topic in ("one", "two", "else")} == {"one": 1, "two": 2, "else": 3}
    assert fail("one", "audit") == 3
    assert [item.payload for item in world.dead("one")] == [b"one"]
    assert world.dead("else") == []
    policy = world.admin.set_topic_policy(NS, "one", attempts_max=0)
    assert (policy.attempts_max, policy.own_fields) == (0, ())


@pytest.mark.parametrize("attempts_max", [-1, 1_001, 1.5])
def test_a_wrong_number_of_attempts_is_refused(world: World, attempts_max: Any) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="attempts_max"):
        world.admin.set_topic_policy(NS, "t", attempts_max=attempts_max)
