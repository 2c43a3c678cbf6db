"""Policies of items that fail or expire, as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import Nack, NewItem, TriState
from tests.contract.queue_world import NS, SECOND_MS, World


def test_a_topic_a_prefix_and_a_group_say_whether_what_expires_becomes_a_dead_letter(world: World) -> None:
    world.admin.create_group(NS, "kept", "audit")
    world.admin.update_namespace(NS, dead_letter_on_expiry=True)
    assert world.admin.set_topic_policy(NS, "gone", dead_letter_on_expiry=False).dead_letter_on_expiry is TriState.OFF
    world.admin.set_topic_policy(NS, "kept", group="audit", dead_letter_on_expiry=False)
    world.admin.set_topic_policy(NS, "p/", is_prefix=True, dead_letter_on_expiry=False)
    world.admin.set_topic_policy(NS, "p/own", dead_letter_on_expiry=True)
    world.admin.set_topic_policy(NS, "p/unset", dead_letter_on_expiry=TriState.UNSET)
    topics = ("gone", "kept", "p/1", "p/own", "p/unset")
    world.client.enqueue_many(NS, [NewItem(topic, b"", ttl_ms=SECOND_MS) for topic in topics])
    world.let_pass(6 * SECOND_MS)
    assert [topic for topic in topics if world.dead(topic)] == ["kept", "p/own", "p/unset"]
    assert not list(world.admin.list_dead_letters(NS, "kept", 10, group="audit").items)
    policy = world.admin.get_topic_policy(NS, "p/unset")
    assert (policy.dead_letter_on_expiry, policy.own_fields) == (TriState.UNSET, ("dead_letter_on_expiry",))
    policy = world.admin.set_topic_policy(NS, "gone", dead_letter_on_expiry=TriState.UNSET)
    assert (policy.dead_letter_on_expiry, policy.own_fields) == (TriState.UNSET, ())


def test_a_topic_keeps_what_expires_although_its_namespace_deletes_it(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", dead_letter_on_expiry=True)
    world.client.enqueue_many(NS, [NewItem(topic, b"", ttl_ms=SECOND_MS) for topic in ("t", "else")])
    world.let_pass(6 * SECOND_MS)
    (dead,) = world.dead("t")
    assert (dead.failed_attempts, dead.death_reason) == (0, "its TTL ended")
    assert world.dead("else") == []


class Clock:
    """The clock of the queue, read before and after a failure."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._before_ms = self._now_ms()

    def _now_ms(self) -> int:
        self._world.client.enqueue(NS, "clock", b"")
        (item,) = self._world.client.dequeue(NS, "clock", wait_ms=5 * SECOND_MS)
        self._world.client.ack(NS, [item])
        return item.enqueued_at_ms

    def has_delayed(self, item_id: str, delay_ms: int) -> bool:
        """True if the item failed since the clock was read first, and is delayed by so much since then."""
        found = self._world.admin.get_item(NS, item_id)
        return (
            found.state == foqs.ItemState.DELAYED
            and self._before_ms + delay_ms <= found.deliver_after_ms <= self._now_ms() + delay_ms
        )


def test_an_item_that_fails_waits_longer_each_time_up_to_the_longest_backoff(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", backoff_ms=1_000, backoff_ms_max=2_500)
    item_id = world.client.enqueue(NS, "t", b"x")
    for delay_ms in (1_000, 2_000, 2_500, 2_500):
        (item,) = world.client.dequeue(NS, "t", wait_ms=20 * SECOND_MS)
        clock = Clock(world)
        world.client.nack(NS, [item])
        assert clock.has_delayed(item_id, delay_ms)


def test_a_lost_lease_has_the_backoff_and_a_release_or_a_delay_of_its_own_has_not(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", backoff_ms=60_000)
    item_id = world.client.enqueue(NS, "t", b"x")
    (item,) = world.client.dequeue(NS, "t", wait_ms=SECOND_MS)
    world.client.nack(NS, [Nack(item.receipt, release=True)])
    (item,) = world.client.dequeue(NS, "t", wait_ms=SECOND_MS)
    world.client.nack(NS, [Nack(item.receipt, delay_ms=10)])
    (item,) = world.client.dequeue(NS, "t", wait_ms=5 * SECOND_MS, lease_ms=1_000)
    assert item.attempt == 2
    clock = Clock(world)
    world.let_pass(4 * SECOND_MS)
    # It is the second failed attempt: the nack was the first one.
    assert clock.has_delayed(item_id, 120_000)


def test_a_prefix_and_a_group_have_their_own_backoff(world: World) -> None:
    world.admin.create_group(NS, "p/1", "audit")
    world.admin.set_topic_policy(NS, "p/", is_prefix=True, backoff_ms=50_000)
    world.admin.set_topic_policy(NS, "p/1", group="audit", backoff_ms=0)
    world.client.enqueue(NS, "p/1", b"x")
    (item,) = world.client.dequeue(NS, "p/1", wait_ms=SECOND_MS)
    clock = Clock(world)
    world.client.nack(NS, [item])
    assert clock.has_delayed(item.id, 50_000)
    (copy,) = world.client.dequeue(NS, "p/1", group="audit", wait_ms=SECOND_MS)
    world.client.nack(NS, [copy])
    (again,) = world.client.dequeue(NS, "p/1", group="audit", wait_ms=SECOND_MS)
    assert again.attempt == 2


def test_a_backoff_past_the_ttl_makes_a_dead_letter_at_once(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", backoff_ms=20_000)
    world.client.enqueue(NS, "t", b"x", ttl_ms=10_000)
    (item,) = world.client.dequeue(NS, "t", wait_ms=SECOND_MS)
    world.client.nack(NS, [item])
    (dead,) = world.dead()
    assert dead.death_reason == "nacked, and its TTL ends before its delay"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("backoff_ms", -1), ("backoff_ms_max", 90 * 86_400_000 + 1), ("backoff_ms", 1.5), ("dead_letter_on_expiry", 3),
        ("dead_letter_on_expiry", "yes"),
    ],
)  # fmt: skip
def test_a_wrong_policy_of_failures_is_refused(world: World, field: str, value: Any) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=field):
        world.admin.set_topic_policy(NS, "t", **{field: value})
    with pytest.raises(foqs.FoqsError, match=field):
        world.admin.set_topic_policies(NS, [foqs.TopicPolicyChange("t", **{field: value})])
    assert list(world.admin.list_topic_policies(NS)) == []
