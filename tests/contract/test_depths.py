"""Limits on the depth of topics, as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import BatchError, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World


def test_an_enqueue_beyond_the_depth_is_refused_at_its_position_until_there_is_room(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", depth_max=3)
    with pytest.raises(BatchError) as batch:
        world.client.enqueue_many(NS, [NewItem(topic, b"") for topic in ("t", "t", "else", "t", "t", "else", "t")])
    assert {at: type(error) for at, error in batch.value.errors.items()} == {4: foqs.PausedError, 6: foqs.PausedError}
    told = batch.value.errors[4].message
    assert "topic 't' is full: it has 3 items, and its depth_max is 3" in told
    assert batch.value.errors[4].nothing_done
    items = world.client.dequeue(NS, "t", 2, wait_ms=SECOND_MS)
    with pytest.raises(foqs.PausedError):  # What is leased counts.
        world.client.enqueue(NS, "t", b"")
    world.client.ack(NS, items[:1])
    world.client.enqueue(NS, "t", b"")
    with pytest.raises(foqs.PausedError, match="it has 3 items"):
        world.client.enqueue(NS, "t", b"")
    world.admin.set_topic_policy(NS, "t", depth_max=0)
    world.client.enqueue_many(NS, [NewItem("t", b"")] * 5)


def test_delayed_items_count_and_dead_letters_do_not_and_a_redrive_is_never_refused(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", depth_max=2)
    world.client.enqueue_many(NS, [NewItem("t", b"a"), NewItem("t", b"b", delay_ms=60_000)])
    with pytest.raises(foqs.PausedError):
        world.client.enqueue(NS, "t", b"")
    (item,) = world.client.dequeue(NS, "t", wait_ms=SECOND_MS)
    world.client.nack(NS, [foqs.Nack(item.receipt, dead_letter=True)])
    world.client.enqueue(NS, "t", b"c")
    assert world.admin.redrive_dead_letters(NS, "t").count == 1
    with pytest.raises(foqs.PausedError, match="it has 3 items"):
        world.client.enqueue(NS, "t", b"")
    items = world.client.dequeue(NS, "t", 2, wait_ms=SECOND_MS)
    world.client.nack(NS, items)  # So is no failed attempt.
    assert sorted(item.payload for item in world.client.dequeue(NS, "t", 2, wait_ms=SECOND_MS)) == [b"a", b"c"]


def test_a_lower_limit_holds_for_new_items_alone(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"")] * 5)
    world.admin.set_topic_policy(NS, "t", depth_max=2)
    with pytest.raises(foqs.PausedError, match="it has 5 items, and its depth_max is 2"):
        world.client.enqueue(NS, "t", b"")
    items = world.client.dequeue(NS, "t", 5, wait_ms=SECOND_MS)
    assert len(items) == 5
    world.client.ack(NS, items[:4])
    world.client.enqueue(NS, "t", b"")


def test_an_item_is_refused_as_a_whole_if_one_group_is_full_and_groups_count_by_themselves(world: World) -> None:
    world.admin.create_group(NS, "t", "slow")
    world.admin.create_group(NS, "t", "fast")
    world.admin.set_topic_policy(NS, "t", group="slow", depth_max=2)
    world.client.enqueue_many(NS, [NewItem("t", b"")] * 2)
    with pytest.raises(foqs.PausedError, match="group 'slow' of topic 't' is full"):
        world.client.enqueue(NS, "t", b"")
    for group, count in ((None, 2), ("fast", 2), ("slow", 2)):
        items = world.client.dequeue(NS, "t", 9, group=group, wait_ms=SECOND_MS)
        assert len(items) == count
        world.client.ack(NS, items)
    world.client.enqueue(NS, "t", b"")


def test_a_prefix_limits_each_topic_by_itself_and_a_topic_overrides_it(world: World) -> None:
    world.admin.set_topic_policy(NS, "p/", is_prefix=True, depth_max=1)
    world.admin.set_topic_policy(NS, "p/2", depth_max=2)
    world.admin.set_topic_policy(NS, "p/3", depth_max=0)
    topics = [topic for topic in ("p/1", "p/2", "p/3", "q") for _ in range(3)]
    errors = world.client.enqueue_many(NS, [NewItem(topic, b"") for topic in topics], return_errors=True).errors
    assert {topics[at]: sum(topics[at] == topics[other] for other in errors) for at in errors} == {"p/1": 2, "p/2": 1}


def test_a_repeat_gets_the_id_of_its_first_item_although_the_topic_is_full(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", depth_max=2)
    first = world.client.enqueue(NS, "t", b"", dedup_id="a")
    result = world.client.enqueue_many(
        NS,
        [
            NewItem("t", b"", dedup_id="a"), NewItem("t", b"", dedup_id="b"), NewItem("t", b"", dedup_id="c"),
            NewItem("t", b"", dedup_id="b"), NewItem("else", b"", dedup_id="d"),
        ],
        return_errors=True,
    )  # fmt: skip
    assert result.ids[0] == first
    assert result.ids[1] == result.ids[3] != ""
    assert result.duplicates == [0, 3]
    assert {at: type(error) for at, error in result.errors.items()} == {2: foqs.PausedError}
    assert world.client.enqueue(NS, "t", b"", dedup_id="a") == first
    with pytest.raises(foqs.PausedError):
        world.client.enqueue(NS, "t", b"", dedup_id="c")
    (item,) = world.client.dequeue(NS, "t", wait_ms=SECOND_MS)
    world.client.ack(NS, [item])
    assert world.client.enqueue(NS, "t", b"", dedup_id="c") not in ("", first)


@pytest.mark.parametrize("depth_max", [-1, 1_000_000_001, 1.5])
def test_a_wrong_depth_is_refused(world: World, depth_max: Any) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="depth_max"):
        world.admin.set_topic_policy(NS, "t", depth_max=depth_max)
