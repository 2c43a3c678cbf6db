"""Serial topics as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import BatchError, NewItem, OnDead
from tests.contract.queue_world import NS, SECOND_MS, World


def make_serial(world: World, topic: str = "t", **changes: Any) -> None:
    world.admin.set_topic_policy(NS, topic, serial=True, **changes)


def next_item(world: World, topic: str = "t", **options: Any) -> foqs.Item:
    """Take the one item that is delivered, though more are asked for."""
    (item,) = world.client.dequeue(NS, topic, 10, wait_ms=SECOND_MS, **options)
    return item


def rest(world: World, topic: str = "t", **options: Any) -> list[bytes]:
    """Take and ack one item after the other, until nothing comes."""
    found: list[bytes] = []
    while items := world.client.dequeue(NS, topic, 10, wait_ms=SECOND_MS // 2, **options):
        assert len(items) == 1
        found.append(items[0].payload)
        world.client.ack(NS, items)
    return found


def put(world: World, *payloads: bytes, topic: str = "t") -> None:
    world.client.enqueue_many(NS, [NewItem(topic, payload) for payload in payloads])


def test_one_item_is_out_at_a_time_and_the_next_one_follows_its_ack(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1", b"2")
    first = next_item(world)
    assert first.payload == b"0"
    assert world.payloads() == []
    world.client.ack(NS, first)
    assert rest(world) == [b"1", b"2"]


def test_a_more_urgent_item_comes_before_those_that_wait(world: World) -> None:
    make_serial(world)
    world.client.enqueue_many(NS, [NewItem("t", b"low", 5), NewItem("t", b"urgent", -5), NewItem("t", b"low too", 5)])
    assert rest(world) == [b"urgent", b"low", b"low too"]


def test_a_failed_item_comes_again_before_all_later_ones(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1")
    world.client.nack(NS, next_item(world))
    again = next_item(world)
    assert (again.payload, again.attempt) == (b"0", 2)
    world.client.release(NS, again)
    assert rest(world) == [b"0", b"1"]


def test_a_nack_with_a_delay_holds_the_topic_for_the_delay(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1")
    world.client.nack(NS, next_item(world), delay_ms=1_500)
    assert world.payloads(wait_ms=300) == []
    put(world, b"2")
    assert world.payloads(wait_ms=300) == []
    world.let_pass(2 * SECOND_MS)
    assert rest(world) == [b"0", b"1", b"2"]


def test_an_item_whose_lease_ends_comes_again_before_all_later_ones(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1")
    assert next_item(world, lease_ms=1_000).payload == b"0"
    assert world.payloads() == []
    world.let_pass(2 * SECOND_MS)
    assert rest(world) == [b"0", b"1"]


def test_dead_letters_let_the_topic_continue_and_come_back_to_their_places(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1", b"2", b"3")
    world.client.nack(NS, next_item(world), dead_letter=True)
    world.client.nack(NS, next_item(world), dead_letter=True)
    held = next_item(world)
    assert held.payload == b"2"
    assert world.admin.redrive_dead_letters(NS, "t").count == 2
    assert world.payloads() == []
    world.client.ack(NS, held)
    assert rest(world) == [b"0", b"1", b"3"]


@pytest.mark.parametrize("way", ["redrive", "delete", "purge", "continue", "off"])
def test_a_dead_letter_holds_the_topic_until_it_is_gone(world: World, way: str) -> None:
    make_serial(world, on_dead=OnDead.HOLD)
    put(world, b"0", b"1")
    world.client.nack(NS, next_item(world), dead_letter=True)
    assert world.payloads(wait_ms=300) == []
    (dead,) = world.dead()
    if way == "redrive":
        world.admin.redrive_dead_letters(NS, "t", [dead.id])
    elif way == "delete":
        world.admin.delete_items(NS, dead.id)
    elif way == "purge":
        world.admin.purge_dead_letters(NS, "t")
    elif way == "continue":
        world.admin.set_topic_policy(NS, "t", on_dead=OnDead.CONTINUE)
    else:
        world.admin.set_topic_policy(NS, "t", serial=False)
    world.let_pass(SECOND_MS)
    assert rest(world) == ([b"0", b"1"] if way == "redrive" else [b"1"])


def test_an_item_that_expires_or_is_deleted_lets_the_next_one_go(world: World) -> None:
    make_serial(world)
    world.client.enqueue_many(
        NS, [NewItem("t", b"0"), NewItem("t", b"1"), NewItem("t", b"2", ttl_ms=1_500), NewItem("t", b"3")]
    )
    first = next_item(world)
    world.admin.delete_items(NS, first.id)
    second = next_item(world)
    assert second.payload == b"1"
    world.client.nack(NS, second, delay_ms=60_000)
    world.admin.delete_items(NS, second.id)
    world.let_pass(2 * SECOND_MS)
    assert rest(world) == [b"3"]


@pytest.mark.parametrize("options", [{"delay_ms": 5}, {"deliver_after_ms": 1}])
def test_an_item_cannot_have_a_delay(world: World, options: dict[str, int]) -> None:
    make_serial(world)
    with pytest.raises(foqs.InvalidArgumentError, match=f"{next(iter(options))} .* is not possible in topic 't'"):
        world.client.enqueue(NS, "t", b"", **options)  # type: ignore[arg-type]
    world.client.enqueue(NS, "u", b"", **options)  # type: ignore[arg-type]
    with pytest.raises(BatchError) as raised:
        world.client.enqueue_many(NS, [NewItem("t", b"0"), NewItem("t", b"1", **options), NewItem("t", b"2")])  # type: ignore[arg-type]
    assert list(raised.value.errors) == [1]
    assert rest(world) == [b"0", b"2"]


@pytest.mark.parametrize("state", ["ready", "delayed", "leased", "dead"])
@pytest.mark.parametrize("is_prefix", [False, True], ids=["topic", "prefix"])
def test_a_topic_becomes_serial_only_without_items(world: World, state: str, is_prefix: bool) -> None:
    world.client.enqueue(NS, "topic", b"x", delay_ms=60_000 if state == "delayed" else None)
    if state in ("leased", "dead"):
        item = next_item(world, "topic")
        if state == "dead":
            world.client.nack(NS, item, dead_letter=True)
    name = "top" if is_prefix else "topic"
    with pytest.raises(foqs.InvalidArgumentError, match="can become serial only without items"):
        world.admin.set_topic_policy(NS, name, serial=True, weight=3, is_prefix=is_prefix)
    policy = world.admin.get_topic_policy(NS, name, is_prefix=is_prefix)
    assert (policy.serial, policy.weight) == (False, 1)
    world.client.enqueue(NS, "topic", b"y")
    for one in world.admin.iterate_items(NS):
        world.admin.delete_items(NS, one.id)
    policy = world.admin.set_topic_policy(NS, name, serial=True, weight=3, is_prefix=is_prefix)
    assert (policy.serial, policy.weight, policy.own_fields) == (True, 3, ("weight", "serial"))


def test_a_topic_that_is_not_serial_any_more_delivers_all_at_once(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1", b"2")
    first = next_item(world)
    policy = world.admin.set_topic_policy(NS, "t", serial=False)
    assert (policy.serial, policy.own_fields) == (False, ())
    assert world.payloads(wait_ms=SECOND_MS) == [b"1", b"2"]
    world.client.nack(NS, first)
    put(world, b"3")
    assert world.payloads(wait_ms=SECOND_MS) == [b"0", b"3"]


def test_each_topic_of_a_serial_prefix_is_serial_by_itself(world: World) -> None:
    make_serial(world, "orders/", is_prefix=True)
    for topic in ("orders/1", "orders/2", "other"):
        put(world, b"0", b"1", topic=topic)
    for topic in ("orders/1", "orders/2"):
        assert next_item(world, topic).payload == b"0"
        assert world.payloads(topic) == []
    assert world.payloads("other") == [b"0", b"1"]


def test_a_longer_prefix_and_a_topic_can_be_left_out_of_a_serial_prefix(world: World) -> None:
    make_serial(world, "o/", is_prefix=True)
    world.admin.set_topic_policy(NS, "o/many", serial=False)
    world.admin.set_topic_policy(NS, "o/p/", weight=2, is_prefix=True)
    for topic in ("o/many", "o/p/1"):
        put(world, b"0", b"1", topic=topic)
    for topic in ("o/many", "o/p/1"):
        assert len(world.payloads(topic)) == 2
    with pytest.raises(foqs.InvalidArgumentError, match="topics that begin with 'o/p/' can become serial only"):
        world.admin.set_topic_policy(NS, "o/p/", weight=1, is_prefix=True)
    with pytest.raises(foqs.InvalidArgumentError, match="topic 'o/many' can become serial only"):
        make_serial(world, "o/many")


def test_the_groups_of_a_serial_topic_are_serial_each_by_itself(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    make_serial(world)
    put(world, b"0", b"1")
    own = next_item(world)
    copy = next_item(world, group="audit")
    assert (own.payload, copy.payload) == (b"0", b"0")
    world.client.nack(NS, copy)
    world.client.ack(NS, own)
    assert rest(world) == [b"1"]
    assert rest(world, group="audit") == [b"0", b"1"]
    assert world.admin.get_topic_policy(NS, "t", group="audit").serial
    with pytest.raises(foqs.InvalidArgumentError, match="set them without a group"):
        make_serial(world, group="audit")


def test_a_group_with_a_delay_and_a_serial_topic_exclude_each_other(world: World) -> None:
    world.admin.create_group(NS, "t", "late", delay_ms=5)
    for name, is_prefix in (("t", False), ("", True)):
        with pytest.raises(foqs.InvalidArgumentError, match=r"delays its copies|name of the topic|topic"):
            world.admin.set_topic_policy(NS, name, serial=True, is_prefix=is_prefix)
    make_serial(world, "u")
    with pytest.raises(foqs.InvalidArgumentError, match="which is serial"):
        world.admin.create_group(NS, "u", "late", delay_ms=5)
    world.admin.create_group(NS, "u", "prompt", ttl_ms=60_000)


def test_an_item_of_a_group_keeps_its_topic_from_becoming_serial(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    put(world, b"0")
    world.client.ack(NS, next_item(world))
    with pytest.raises(foqs.InvalidArgumentError, match="can become serial only without items"):
        make_serial(world)


def test_a_dedup_id_is_known_in_its_serial_topic_alone(world: World) -> None:
    make_serial(world)
    make_serial(world, "u")
    first = world.client.enqueue(NS, "t", b"0", dedup_id="once")
    assert world.client.enqueue(NS, "t", b"1", dedup_id="once") == first
    assert world.client.enqueue(NS, "u", b"2", dedup_id="once") != first
    assert world.client.enqueue(NS, "other", b"3", dedup_id="once") != first
    result = world.client.enqueue_many(
        NS,
        [
            NewItem("t", b"4"),
            NewItem("t", b"5", dedup_id="once"),
            NewItem("other", b"6"),
            NewItem("t", b"7", dedup_id="new"),
            NewItem("u", b"8"),
        ],
    )
    assert result.duplicates == [1]
    assert all(result.ids)
    assert rest(world) == [b"0", b"4", b"7"]
    assert rest(world, "u") == [b"2", b"8"]
    assert world.payloads("other") == [b"3", b"6"]


def test_items_show_their_enqueue_as_the_time_from_which_they_are_ready(world: World) -> None:
    make_serial(world)
    put(world, b"0", b"1")
    stored = list(world.admin.iterate_items(NS))
    assert [one.deliver_after_ms for one in stored] == [one.enqueued_at_ms for one in stored]
    (stats,) = world.client.topics(NS)
    assert (stats.topic, stats.ready, stats.serial) == ("t", 2, True)
    assert stats.oldest_ready_at_ms == stored[0].enqueued_at_ms
    item = next_item(world)
    assert item.deliver_after_ms == item.enqueued_at_ms > 0
    put(world, b"", topic="u")
    assert [one.serial for one in world.client.topics(NS)] == [True, False]


def test_pages_of_a_serial_topic_have_all_items_in_order(world: World) -> None:
    make_serial(world)
    world.client.enqueue_many(NS, [NewItem("t", b"2", 1), NewItem("t", b"0"), NewItem("t", b"1")])
    put(world, b"3", topic="u")
    found: list[foqs.StoredItem] = []
    page = world.admin.peek_items(NS, "t", 1)
    while page.next_page_token:
        found += page.items
        page = world.admin.peek_items(NS, "t", 1, page.next_page_token)
    found += page.items
    assert [item.payload for item in found] == [b"0", b"1", b"2"]
    assert [item.deliver_after_ms for item in found] == [item.enqueued_at_ms for item in found]


def test_a_call_for_any_topic_gets_one_item_of_each_serial_topic(world: World) -> None:
    make_serial(world, "s", is_prefix=True)
    for topic in ("s1", "s2"):
        put(world, b"0", b"1", topic=topic)
    items = world.client.dequeue(NS, topic_prefix="", count=10, wait_ms=SECOND_MS)
    assert sorted((item.topic, item.payload) for item in items) == [("s1", b"0"), ("s2", b"0")]
    assert world.client.dequeue(NS, topic_prefix="", count=10) == []
    world.client.ack(NS, items)
    items = world.client.dequeue(NS, topic_prefix="", count=10, wait_ms=SECOND_MS)
    assert sorted((item.topic, item.payload) for item in items) == [("s1", b"1"), ("s2", b"1")]


def test_topics_become_serial_together_and_one_with_items_fails_alone(world: World) -> None:
    put(world, b"0", topic="busy")
    changes = [foqs.TopicPolicyChange(name, serial=True, on_dead=OnDead.HOLD) for name in ("a", "busy", "b")]
    errors = world.admin.set_topic_policies(NS, changes, return_errors=True)
    assert {at: type(error) for at, error in errors.items()} == {1: foqs.InvalidArgumentError}
    listed = [(one.topic, one.serial, one.on_dead) for one in world.admin.list_topic_policies(NS)]
    assert listed == [("a", True, OnDead.HOLD), ("b", True, OnDead.HOLD)]


@pytest.mark.parametrize("changes", [{"serial": 1}, {"on_dead": 2}, {"on_dead": -1}])
def test_a_wrong_order_is_refused(world: World, changes: dict[str, Any]) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match=next(iter(changes))):
        world.admin.set_topic_policy(NS, "t", **changes)


def test_a_full_serial_topic_refuses_items_and_takes_them_again_when_one_is_acked(world: World) -> None:
    make_serial(world, depth_max=2)
    put(world, b"0", b"1")
    with pytest.raises(foqs.PausedError, match="is full: it has 2 items"):
        world.client.enqueue(NS, "t", b"2", deadline_ms=500)
    with pytest.raises(foqs.PausedError, match="is full"):
        world.client.enqueue(NS, "t", b"2", dedup_id="two", deadline_ms=500)
    world.client.ack(NS, next_item(world))
    world.client.enqueue(NS, "t", b"2")
    assert rest(world) == [b"1", b"2"]
    put(world, b"3", b"4")
    assert rest(world) == [b"3", b"4"]


def test_a_backoff_holds_the_topic_as_a_delay_does(world: World) -> None:
    make_serial(world, backoff_ms=1_500)
    put(world, b"0", b"1")
    world.client.nack(NS, next_item(world))
    assert world.payloads() == []
    world.let_pass(2_000)
    assert rest(world) == [b"0", b"1"]


def test_an_id_that_an_item_of_a_serial_topic_holds_is_free_when_the_item_ends(world: World) -> None:
    make_serial(world)
    ids = [
        world.client.enqueue(NS, "t", payload, dedup_id="one", dedup_until=foqs.DedupUntil.ACKED)
        for payload in (b"0", b"1")
    ]
    assert ids[0] == ids[1]
    assert rest(world) == [b"0"]
    world.client.enqueue(NS, "t", b"2", dedup_id="one", dedup_until=foqs.DedupUntil.ACKED)
    assert rest(world) == [b"2"]


def test_ids_of_a_serial_topic_are_forgotten_by_their_topic(world: World) -> None:
    make_serial(world)
    world.client.enqueue(NS, "t", b"0", dedup_id="one")
    with pytest.raises(foqs.InvalidArgumentError, match="'u' is not serial"):
        world.admin.forget_dedup_ids(NS, ["one"], topic="u")
    world.admin.forget_dedup_ids(NS, ["one"], topic="t")
    world.client.enqueue(NS, "t", b"1", dedup_id="one")
    assert rest(world) == [b"0", b"1"]


def test_a_group_of_a_serial_topic_cannot_begin_with_the_items_that_wait(world: World) -> None:
    make_serial(world)
    put(world, b"0")
    with pytest.raises(foqs.InvalidArgumentError, match="from_queued is not possible"):
        world.admin.create_group(NS, "t", "audit", from_queued=True)
    world.admin.create_group(NS, "t", "audit")
    assert rest(world, group="audit") == []


def test_a_dequeue_of_a_group_by_prefix_takes_one_item_of_a_serial_topic(world: World) -> None:
    make_serial(world, "orders/1")
    world.admin.create_group(NS, "orders/1", "audit")
    put(world, b"0", b"1", topic="orders/1")
    taken = world.client.dequeue(NS, topic_prefix="orders/", group="audit", count=10, wait_ms=SECOND_MS)
    assert [item.payload for item in taken] == [b"0"]
    world.client.ack(NS, taken)
    taken = world.client.dequeue(NS, topic_prefix="orders/", group="audit", count=10, wait_ms=SECOND_MS)
    assert [item.payload for item in taken] == [b"1"]
