"""An id names the copies of its item and nothing else, also that of a repeat, whatever groups were created since."""

from __future__ import annotations

import pytest

from foqs import DedupUntil, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World

HELD = pytest.mark.parametrize("until", [None, DedupUntil.ACKED])


def payloads(world: World, topic: str = "t", group: str | None = None) -> list[bytes]:
    return [item.payload for item in world.client.dequeue(NS, topic, 100, group=group)]


@HELD
def test_a_repeat_behind_a_new_group_names_the_first_item_alone(world: World, until: DedupUntil | None) -> None:
    first = world.client.enqueue(NS, "t", b"A", dedup_id="d", dedup_until=until)
    world.client.enqueue(NS, "t", b"another")
    world.admin.create_group(NS, "t", "audit")
    assert world.client.enqueue(NS, "t", b"A", dedup_id="d", dedup_until=until) == first
    assert world.client.enqueue_many(NS, [NewItem("t", b"A", dedup_id="d", dedup_until=until)] * 2).ids == [first] * 2
    world.admin.delete_items(NS, [first])
    assert payloads(world) == [b"another"]


@HELD
def test_a_repeat_in_another_topic_names_the_first_item_alone(world: World, until: DedupUntil | None) -> None:
    world.admin.create_group(NS, "t", "audit")
    first = world.client.enqueue(NS, "plain", b"X", dedup_id="e", dedup_until=until)
    assert world.client.enqueue(NS, "t", b"X", dedup_id="e", dedup_until=until) == first


@HELD
def test_a_repeat_has_the_id_of_the_first_answer_when_groups_have_gone(world: World, until: DedupUntil | None) -> None:
    for group in ("audit", "stats"):
        world.admin.create_group(NS, "t", group)
    new = NewItem("t", b"A", dedup_id="d", dedup_until=until)
    first, same = world.client.enqueue_many(NS, [new, new]).ids
    assert first == same, "in one call"
    assert first.endswith("+2")
    world.admin.delete_group(NS, "t", "stats")
    world.let_pass(SECOND_MS)
    assert world.client.enqueue(NS, "t", b"A", dedup_id="d", dedup_until=until) == first
    world.admin.delete_items(NS, [first])
    assert payloads(world) == payloads(world, group="audit") == []


def test_an_id_that_was_made_up_names_no_copies_of_other_items(world: World) -> None:
    alone = world.client.enqueue(NS, "plain", b"alone")
    world.admin.create_group(NS, "t", "audit")
    both = world.client.enqueue(NS, "t", b"both")
    world.admin.delete_items(NS, [f"{alone}+a"])
    assert payloads(world, "plain") == []
    longer = both.replace("+1", "+2")
    world.client.enqueue(NS, "t", b"next")
    world.admin.delete_items(NS, [longer])
    assert payloads(world) == payloads(world, group="audit") == [b"next"]
