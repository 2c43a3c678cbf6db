"""Topics whose items become more urgent as they wait: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

import pytest

import foqs
from foqs import BatchError, Nack, NewItem
from foqs.model.aging import AGING_MS_MAX
from tests.contract.queue_world import NS, World

TAU_MS = 50
GAP_MS = 10 * TAU_MS
"""The wait by which an item of priority 10 precedes a new one of priority 0."""


def age(world: World, topic: str = "t", tau_ms: int = TAU_MS, **changes: bool) -> None:
    world.admin.set_topic_policy(NS, topic, aging_ms_per_priority=tau_ms, **changes)


def shown(items: object) -> list[tuple[bytes, int]]:
    """The payloads and priorities of items."""
    return [(item.payload, item.priority) for item in items]  # type: ignore[attr-defined]


def put(world: World, payload: bytes, priority: int, **fields: int) -> str:
    return world.client.enqueue(NS, "t", payload, priority=priority, **fields)


def test_an_item_that_has_waited_precedes_more_urgent_ones_that_came_later(world: World) -> None:
    age(world)
    put(world, b"low", 10)
    put(world, b"urgent", 0)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    put(world, b"most urgent", -100)
    page = world.admin.peek_items(NS, "t", 10)
    expected = [(b"most urgent", -100), (b"urgent", 0), (b"low", 10), (b"late", 0)]
    assert shown(page.items) == expected
    assert shown(world.client.dequeue(NS, "t", 10)) == expected


def test_the_first_items_of_a_topic_with_dedup_ids_have_places_as_all_others(world: World) -> None:
    age(world)
    new = [NewItem("t", payload, priority, dedup_id=payload.decode()) for payload, priority in ((b"a", 10), (b"b", 0))]
    world.client.enqueue_many(NS, new)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    put(world, b"most urgent", -100)
    expected = [(b"most urgent", -100), (b"b", 0), (b"a", 10), (b"late", 0)]
    items = world.client.dequeue(NS, "t", 10)
    assert shown(items) == expected
    world.client.nack(NS, items)
    assert shown(world.admin.peek_items(NS, "t", 10).items) == expected, "their rows stay where they were"


def test_a_topic_that_does_not_age_has_strict_priorities(world: World) -> None:
    age(world, "other")
    put(world, b"low", 10)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    assert shown(world.client.dequeue(NS, "t", 10)) == [(b"late", 0), (b"low", 10)]
    assert [item.urgency for item in world.admin.peek_items(NS, "t", 10).items] == [None, None]


def test_a_delayed_item_ages_from_its_time_and_pages_have_the_same_order(world: World) -> None:
    age(world)
    put(world, b"delayed", 0, delay_ms=GAP_MS + 400)
    put(world, b"low", 10)
    world.let_pass(GAP_MS + 800)
    put(world, b"late", 0)
    expected = [b"low", b"delayed", b"late"]
    token, found = "", []
    while not found or token:
        page = world.admin.peek_items(NS, "t", 1, token)
        found += [item.payload for item in page.items]
        token = page.next_page_token
    assert found == expected
    assert world.payloads() == expected


def test_a_failed_item_keeps_its_place_also_after_a_delay(world: World) -> None:
    age(world, tau_ms=1_000)
    put(world, b"first", 1)
    (item,) = world.client.dequeue(NS, "t", 1)
    world.let_pass(300)
    put(world, b"second", 1)
    world.client.nack(NS, item, delay_ms=300)
    world.let_pass(600)
    again = world.client.dequeue(NS, "t", 2)
    assert shown(again) == [(b"first", 1), (b"second", 1)]
    world.client.nack(NS, again)
    assert shown(world.client.dequeue(NS, "t", 2, wait_ms=1_000)) == [(b"first", 1), (b"second", 1)]


def test_a_redriven_item_waits_anew_and_a_dead_letter_shows_its_priority(world: World) -> None:
    age(world, tau_ms=100)
    dead_id = put(world, b"dead", 5)
    (item,) = world.client.dequeue(NS, "t", 1)
    world.client.nack(NS, [Nack(item.receipt, dead_letter=True)])
    assert shown(world.dead()) == [(b"dead", 5)]
    put(world, b"before", 5)
    world.let_pass(300)
    world.admin.redrive_dead_letters(NS, "t", ids=[dead_id])
    put(world, b"urgent", 0)
    assert shown(world.client.dequeue(NS, "t", 3)) == [(b"urgent", 0), (b"before", 5), (b"dead", 5)]


def test_items_keep_their_places_when_the_policy_changes(world: World) -> None:
    put(world, b"strict", 1_000)
    age(world)
    put(world, b"low", 10)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    age(world, tau_ms=0)
    put(world, b"strict again", 900)
    found = shown(world.client.dequeue(NS, "t", 4))
    assert [one for one in found if one[0].startswith(b"strict")] == [(b"strict again", 900), (b"strict", 1_000)]
    assert [one for one in found if not one[0].startswith(b"strict")] == [(b"low", 10), (b"late", 0)]


def test_the_most_urgent_priority_of_a_topic_is_that_of_its_next_item(world: World) -> None:
    age(world)
    put(world, b"low", 10)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    (topic,) = world.client.topics(NS)
    assert topic.most_urgent_priority == 10
    (item,) = world.client.dequeue(NS, "t", 1)
    world.client.nack(NS, item, delay_ms=300)
    world.let_pass(600)
    (topic,) = world.client.topics(NS)
    assert topic.most_urgent_priority == 10, "also after a delay"
    age(world, tau_ms=0)
    (topic,) = world.client.topics(NS)
    assert topic.most_urgent_priority == 10, "also when it ages no more"


def test_each_group_ages_by_its_own_policy(world: World) -> None:
    world.admin.create_group(NS, "t", "aging")
    world.admin.create_group(NS, "t", "strict")
    world.admin.set_topic_policy(NS, "t", group="aging", aging_ms_per_priority=TAU_MS)
    world.let_pass(100)
    put(world, b"low", 10)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    assert shown(world.client.dequeue(NS, "t", 2, group="aging")) == [(b"low", 10), (b"late", 0)]
    assert shown(world.client.dequeue(NS, "t", 2, group="strict")) == [(b"late", 0), (b"low", 10)]


def test_a_prefix_lets_its_topics_age(world: World) -> None:
    age(world, "t", is_prefix=True)
    put(world, b"low", 10)
    world.let_pass(GAP_MS + 200)
    put(world, b"late", 0)
    assert world.payloads() == [b"low", b"late"]


@pytest.mark.parametrize("tau_ms", [-1, AGING_MS_MAX + 1])
def test_a_wait_out_of_bounds_is_refused(world: World, tau_ms: int) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=f"aging_ms_per_priority {tau_ms} is not within 0..86400000"):
        age(world, tau_ms=tau_ms)
    assert world.admin.get_topic_policy(NS, "t").aging_ms_per_priority == 0


def test_a_topic_with_an_order_of_its_own_does_not_age(world: World) -> None:
    world.admin.set_topic_policy(NS, "serial", serial=True)
    with pytest.raises(foqs.InvalidArgumentError, match="not possible with serial"):
        age(world, "serial")
    world.admin.create_group(NS, "serial", "g")
    with pytest.raises(foqs.InvalidArgumentError, match="not possible with serial"):
        world.admin.set_topic_policy(NS, "serial", group="g", aging_ms_per_priority=TAU_MS)
    age(world, "aging")
    with pytest.raises(foqs.InvalidArgumentError, match="not possible with serial"):
        world.admin.set_topic_policy(NS, "aging", serial=True)
    with pytest.raises(foqs.InvalidArgumentError, match="not possible with key_buckets 4"):
        world.admin.set_topic_policy(NS, "aging", key_buckets=4)


def test_an_item_with_an_ordering_key_is_refused_in_a_topic_that_ages(world: World) -> None:
    age(world)
    with pytest.raises(BatchError) as batch:
        world.client.enqueue_many(NS, [NewItem("t", b"keyed", ordering_key="k"), NewItem("t", b"plain")])
    assert list(batch.value.errors) == [0]
    assert isinstance(batch.value.errors[0], foqs.InvalidArgumentError)
    assert "the topic ages" in str(batch.value.errors[0])
    assert world.payloads() == [b"plain"]
