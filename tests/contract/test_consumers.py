"""Consumers by their names, as operators see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

import pytest

import foqs
from foqs import DeliveryPolicy, InvalidArgumentError, NewItem, StaleLeaseError
from foqs.model.holder import ConsumerRow
from tests.contract.queue_world import NS, SECOND_MS, World

LEASE_MS = 20 * SECOND_MS


def held(world: World, topic: str = "", namespace: str = NS, **only: str) -> dict[tuple[str, str], int]:
    """How many items each consumer has of each topic."""
    rows = world.admin.list_consumers(namespace, topic, **only)
    return {(row.name, row.topic): row.held for row in rows if row.held}


def row_of(world: World, name: str, topic: str = "t") -> ConsumerRow:
    (row,) = [row for row in world.admin.list_consumers(NS) if (row.name, row.topic) == (name, topic)]
    return row


def take(world: World, name: str | None, count: int = 1, topic: str = "t") -> list[foqs.Item]:
    items = world.client.dequeue(NS, topic, count, consumer=name, lease_ms=LEASE_MS)
    assert len(items) == count
    return items


def put(world: World, count: int, topic: str = "t", **fields: object) -> None:
    world.client.enqueue_many(NS, [NewItem(topic, b"%d" % number, **fields) for number in range(count)])  # type: ignore[arg-type]


def test_an_item_shows_who_has_it_and_since_when(world: World) -> None:
    put(world, 3)
    (one,) = take(world, "worker@a/1")
    shown = world.admin.get_item(NS, one.id)
    assert shown.leased_by == "worker@a/1"
    assert shown.leased_since_ms is not None
    assert shown.lease_expires_at_ms is not None
    # A real host shows two of its clocks, which are apart by a rounded millisecond or two.
    assert abs(shown.lease_expires_at_ms - shown.leased_since_ms - LEASE_MS) <= 10
    listed = {item.id: item.leased_by for item in world.admin.peek_items(NS, "t").items}
    assert sorted(listed.values(), key=str) == [None, None, "worker@a/1"]
    exported = {item.id: item.leased_by for item in world.admin.iterate_items(NS)}
    assert exported == listed
    world.client.release(NS, one)
    shown = world.admin.get_item(NS, one.id)
    assert (shown.leased_by, shown.leased_since_ms) == (None, None)


def test_a_consumer_without_a_name_is_its_address(world: World) -> None:
    put(world, 1)
    (one,) = take(world, None)
    name = world.admin.get_item(NS, one.id).leased_by
    assert name
    row = row_of(world, name)
    assert (row.caller, row.held) == (name, 1)


def test_the_list_counts_by_name_and_topic(world: World) -> None:
    for topic, count in (("t", 5), ("u", 3)):
        put(world, count, topic)
    for name, topic, count in (("b", "t", 2), ("a", "t", 3), ("a", "u", 1), ("c", "u", 2)):
        take(world, name, count, topic)
    rows = [row for row in world.admin.list_consumers(NS) if row.held]
    assert [(row.name, row.topic, row.held) for row in rows] == [
        ("a", "t", 3), ("a", "u", 1), ("b", "t", 2), ("c", "u", 2),
    ]  # fmt: skip
    assert all(0 < row.held_since_ms <= row.last_dequeue_at_ms + 1_000 for row in rows)
    assert all(row.caller and len(row.hosts) == 1 and row.waiting_calls == 0 for row in rows)
    assert held(world, "u") == {("a", "u"): 1, ("c", "u"): 2}
    assert held(world, name_prefix="b") == {("b", "t"): 2}


def test_a_consumer_that_has_no_items_any_more_is_listed_without_a_topic(world: World) -> None:
    put(world, 1)
    items = take(world, "worker")
    assert [row.topic for row in world.admin.list_consumers(NS) if row.name == "worker"] == ["t"]
    world.client.ack(NS, items)
    row = row_of(world, "worker", "")
    assert (row.held, row.waiting_calls, row.held_since_ms, row.prefix) == (0, 0, 0, None)
    assert row.last_dequeue_at_ms > 0
    assert [row.name for row in world.admin.list_consumers(NS, "t") if row.name == "worker"] == []


def test_an_extension_names_its_consumer_and_one_without_a_name_changes_nothing(world: World) -> None:
    put(world, 2)
    items = take(world, "first", 2)
    world.client.extend(NS, items, LEASE_MS)
    assert held(world) == {("first", "t"): 2}
    world.client.extend(NS, items[:1], LEASE_MS, consumer="second")
    assert held(world) == {("first", "t"): 1, ("second", "t"): 1}


def test_an_extension_of_no_lease_names_nobody(world: World) -> None:
    put(world, 1)
    items = take(world, "first")
    world.client.ack(NS, items)
    assert world.client.extend(NS, items, LEASE_MS, consumer="nobody", return_errors=True)
    assert world.client.extend(NS, [], LEASE_MS, consumer="nobody") == {}
    take_none = world.client.dequeue(NS, "t", consumer="second")
    assert take_none == []
    assert "nobody" not in [row.name for row in world.admin.list_consumers(NS)]


def test_a_name_that_is_used_again_is_one_consumer(world: World) -> None:
    put(world, 3)
    first = take(world, "worker")
    world.client.ack(NS, first)
    take(world, "worker", 2)
    assert held(world) == {("worker", "t"): 2}
    assert len([row for row in world.admin.list_consumers(NS) if row.name == "worker"]) == 1


def test_what_came_back_has_no_holder_until_it_is_taken_again(world: World) -> None:
    put(world, 1)
    (one,) = take(world, "first")
    world.client.release(NS, one)
    assert held(world) == {}
    take(world, "second")
    assert held(world) == {("second", "t"): 1}


def test_consumers_of_other_namespaces_are_not_listed_and_not_released(world: World) -> None:
    world.admin.create_namespace("other")
    put(world, 1)
    world.client.enqueue("other", "t", b"")
    take(world, "worker")
    assert len(world.client.dequeue("other", "t", consumer="worker", lease_ms=LEASE_MS)) == 1
    world.client.dequeue("other", "t", consumer="elsewhere")
    assert held(world) == {("worker", "t"): 1}
    assert "elsewhere" not in [row.name for row in world.admin.list_consumers(NS)]
    assert world.admin.release_leases(NS, "worker").released == 1
    assert held(world, namespace="other") == {("worker", "t"): 1}


def test_the_leases_of_a_consumer_end_without_a_failed_attempt(world: World) -> None:
    put(world, 3)
    items = take(world, "gone", 2)
    take(world, "other")
    result = world.admin.release_leases(NS, "gone")
    assert (result.released, result.left_at_most_once) == (2, 0)
    assert held(world) == {("other", "t"): 1}
    errors = world.client.ack(NS, items, return_errors=True)
    assert [type(error) for error in errors.values()] == [StaleLeaseError] * 2
    errors = world.client.extend(NS, items, LEASE_MS, return_errors=True)
    assert [type(error) for error in errors.values()] == [StaleLeaseError] * 2
    again = take(world, "next", 2)
    assert [item.payload for item in again] == [item.payload for item in items]
    assert [item.attempt for item in again] == [1, 1]
    assert world.admin.release_leases(NS, "gone").released == 0


def test_only_leases_of_the_named_topic_end(world: World) -> None:
    for topic in ("t", "u"):
        put(world, 2, topic)
        take(world, "worker", 2, topic)
    assert world.admin.release_leases(NS, "worker", "u").released == 2
    assert held(world) == {("worker", "t"): 2}
    assert world.admin.release_leases(NS, "work").released == 0


def test_leases_of_a_group_end_alone(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    put(world, 1)
    take(world, "worker")
    assert len(world.client.dequeue(NS, "t", group="audit", consumer="worker", lease_ms=LEASE_MS)) == 1
    rows = [(row.topic, row.group, row.held) for row in world.admin.list_consumers(NS) if row.held]
    assert rows == [("t", None, 1), ("t", "audit", 1)]
    assert world.admin.release_leases(NS, "worker", "t", group="audit").released == 1
    rows = [(row.topic, row.group, row.held) for row in world.admin.list_consumers(NS) if row.held]
    assert rows == [("t", None, 1)]


def test_items_that_are_delivered_once_stay_unless_the_call_says_so(world: World) -> None:
    put(world, 1)
    put(world, 2, delivery=DeliveryPolicy.AT_MOST_ONCE)
    take(world, "worker", 3)
    result = world.admin.release_leases(NS, "worker")
    assert (result.released, result.left_at_most_once) == (1, 2)
    assert held(world) == {("worker", "t"): 2}
    result = world.admin.release_leases(NS, "worker", at_most_once=True)
    assert (result.released, result.left_at_most_once) == (2, 0)
    assert len(world.client.dequeue(NS, "t", 10)) == 1


def test_the_items_of_an_ordering_key_come_back_together_and_all_count(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", key_batch=5)
    put(world, 5, ordering_key="k")
    items = take(world, "worker", 5)
    assert held(world) == {("worker", "t"): 5}
    assert world.admin.release_leases(NS, "worker").released == 5
    assert [item.payload for item in take(world, "next", 5)] == [item.payload for item in items]


@pytest.mark.parametrize("name", ["", "a\nb", "x" * 129, "ü" * 65])
def test_a_bad_name_is_refused_and_changes_nothing(world: World, name: str) -> None:
    put(world, 1)
    with pytest.raises(InvalidArgumentError, match="consumer"):
        world.client.dequeue(NS, "t", consumer=name)
    items = take(world, "ü" * 64)
    with pytest.raises(InvalidArgumentError, match="consumer"):
        world.client.extend(NS, items, LEASE_MS, consumer=name)
    assert held(world) == {("ü" * 64, "t"): 1}
    with pytest.raises(InvalidArgumentError, match="consumer"):
        world.admin.release_leases(NS, name)


@pytest.mark.parametrize("name", ["(others)", "unknown (before the take-over of 20:31:07 UTC)"])
def test_a_name_of_hosts_is_refused_to_consumers_but_not_to_a_release(world: World, name: str) -> None:
    put(world, 1)
    with pytest.raises(InvalidArgumentError, match="consumer"):
        world.client.dequeue(NS, "t", consumer=name)
    assert world.admin.release_leases(NS, name).released == 0


def test_a_bad_topic_is_refused(world: World) -> None:
    with pytest.raises(InvalidArgumentError, match="topic"):
        world.admin.release_leases(NS, "worker", "a\nb")
    with pytest.raises(InvalidArgumentError, match="topic"):
        list(world.admin.list_consumers(NS, "a\nb"))


def test_workers_and_consumers_show_their_names(world: World) -> None:
    put(world, 1)
    with world.client.consume(NS, "t", name="billing", wait_ms=0) as items:
        for item in items:
            (name, _), count = next(iter(held(world).items()))
            assert (name.partition("@")[0], name.rpartition("/")[2].isdigit(), count) == ("billing", True, 1)
            item.ack()
            break
    put(world, 1)
    names: list[str] = []

    def handle(item: foqs.LeasedItem) -> None:
        names.extend(name for name, _ in held(world))
        worker.stop()

    worker = foqs.Worker(world.client, NS, "t", handle, name="mailer", wait_ms=0)
    worker.run()
    assert [name.partition("@")[0] for name in names] == ["mailer"]
