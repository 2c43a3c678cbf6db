"""Dedup ids that are taken as long as their items live, and ids that operators make free."""

from __future__ import annotations

from contextlib import suppress

import pytest

import foqs
from foqs import DedupScope, DedupUntil, InvalidArgumentError, NewItem, NotFoundError
from tests.contract.queue_world import NS, SECOND_MS, World

ACKED = DedupUntil.ACKED


def unique(world: World, dedup_id: str = "a", until: DedupUntil | None = ACKED, **fields: int) -> str:
    """Enqueue an item with this dedup id, and return the id that comes back."""
    return world.client.enqueue(NS, "t", b"x", dedup_id=dedup_id, dedup_until=until, **fields)


def taken(world: World, group: str | None = None) -> foqs.Item:
    (item,) = world.client.dequeue(NS, "t", group=group, wait_ms=5 * SECOND_MS)
    return item


def test_an_id_is_taken_while_its_item_is_queued_leased_and_redelivered(world: World) -> None:
    first = unique(world)
    assert unique(world) == first
    item = taken(world)
    assert unique(world) == first
    world.client.nack(NS, item)
    assert unique(world) == first
    world.client.extend(NS, taken(world), 60 * SECOND_MS)
    assert unique(world, delay_ms=SECOND_MS) == first
    assert sum(stats.ready + stats.leased for stats in world.client.topics(NS)) == 1


def test_an_id_is_free_once_its_item_is_acked_and_repeats_of_the_ack_free_no_other(world: World) -> None:
    first, item = unique(world), taken(world)
    world.client.ack(NS, item)
    second = unique(world)
    assert second != first
    with suppress(foqs.StaleLeaseError, NotFoundError):
        world.client.ack(NS, item)
    assert unique(world) == second


def test_an_id_is_free_once_its_item_is_deleted_in_any_state(world: World) -> None:
    for fields in ({}, {"delay_ms": 60 * SECOND_MS}):
        first = unique(world, **fields)
        assert unique(world) == first
        world.admin.delete_items(NS, first)
        second = unique(world)
        assert second != first
        world.admin.delete_items(NS, second)
    leased = unique(world)
    taken(world)
    world.admin.delete_items(NS, leased)
    assert unique(world) != leased


def test_an_id_is_free_once_its_item_has_expired(world: World) -> None:
    first = unique(world, ttl_ms=SECOND_MS)
    world.let_pass(2 * SECOND_MS)
    for _ in range(20):
        assert not world.client.dequeue(NS, "t")
        if (second := unique(world)) != first:
            break
        world.let_pass(SECOND_MS)
    assert second != first
    assert unique(world) == second


def test_a_dead_letter_holds_no_id_and_comes_back_without_it(world: World) -> None:
    first = unique(world)
    world.client.nack(NS, taken(world), dead_letter=True)
    second = unique(world)
    assert second != first
    assert world.admin.redrive_dead_letters(NS, "t", [first]).count == 1
    assert unique(world) == second
    items = world.client.dequeue(NS, "t", 10, wait_ms=SECOND_MS)
    assert {item.id for item in items} == {first, second}
    world.client.ack(NS, [item for item in items if item.id == first])
    assert unique(world) == second
    world.client.ack(NS, [item for item in items if item.id == second])
    assert unique(world) not in (first, second)


def test_a_purge_of_dead_letters_leaves_the_id_to_the_item_that_has_it(world: World) -> None:
    unique(world)
    world.client.nack(NS, taken(world), dead_letter=True)
    second = unique(world)
    assert world.admin.purge_dead_letters(NS, "t").count == 1
    assert unique(world) == second


def test_an_id_of_the_window_is_taken_as_long_as_that_lasts_for_both_kinds(world: World) -> None:
    first = unique(world, until=None)
    world.client.ack(NS, taken(world))
    assert unique(world, until=None) == unique(world) == unique(world, until=DedupUntil.WINDOW) == first
    held = unique(world, "b")
    assert unique(world, "b", until=None) == held
    world.client.ack(NS, taken(world))
    again = unique(world, "b", until=None)
    assert again != held
    world.client.ack(NS, taken(world))
    assert unique(world, "b") == again, "it is of the window now"


def test_one_call_makes_one_item_of_equal_ids_and_says_which_are_repeats(world: World) -> None:
    items = [NewItem("t", b"%d" % at, dedup_id=f"{at % 3}", dedup_until=ACKED) for at in range(9)]
    result = world.client.enqueue_many(NS, items)
    assert result.duplicates == [3, 4, 5, 6, 7, 8]
    assert result.ids == result.ids[:3] * 3
    again = world.client.enqueue_many(NS, [*items[:2], NewItem("t", b"new", dedup_id="new", dedup_until=ACKED)])
    assert (again.ids[:2], again.duplicates) == (result.ids[:2], [0, 1])


def test_an_id_of_an_item_with_copies_is_free_once_the_last_copy_has_ended(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.admin.create_group(NS, "t", "stats")
    first = unique(world)
    assert first.endswith("+2")
    for group in (None, "stats", "audit"):
        assert unique(world) == first
        item = taken(world, group)
        if group == "stats":
            world.client.nack(NS, item, dead_letter=True)
        else:
            world.client.ack(NS, item)
    second = unique(world)
    assert second not in ("", first)
    assert unique(world) == second
    world.admin.delete_items(NS, second)
    assert unique(world) not in (first, second)


def test_an_id_without_its_text_is_refused_and_so_is_an_unknown_kind(world: World) -> None:
    with pytest.raises(InvalidArgumentError, match="dedup_until is given without a dedup_id"):
        world.client.enqueue(NS, "t", b"x", dedup_until=ACKED)
    with pytest.raises(InvalidArgumentError, match="dedup_until is 2"):
        world.client.enqueue(NS, "t", b"x", dedup_id="a", dedup_until=2)  # type: ignore[arg-type]
    assert not list(world.client.topics(NS))


def test_operators_make_ids_of_both_kinds_free_and_items_stay(world: World) -> None:
    held, seen = unique(world, "held"), unique(world, "seen", until=None)
    errors = world.admin.forget_dedup_ids(NS, ["held", "none", "seen"], return_errors=True)
    assert {at: type(error) for at, error in errors.items()} == {1: NotFoundError}
    again = unique(world, "held"), unique(world, "seen", until=None)
    assert {held, seen}.isdisjoint(again)
    assert (unique(world, "held"), unique(world, "seen")) == again
    items = world.client.dequeue(NS, "t", 10)
    assert {item.id for item in items} == {held, seen, *again}
    world.client.ack(NS, [item for item in items if item.id == held])
    assert unique(world, "held") == again[0], "the end of an item frees only what it holds"


def test_forgetting_can_be_repeated_and_says_what_was_free(world: World) -> None:
    unique(world, until=None)
    world.admin.forget_dedup_ids(NS, "a")
    for _ in range(2):
        with pytest.raises(NotFoundError, match="free already"):
            world.admin.forget_dedup_ids(NS, "a")
    unique(world, until=None)
    assert world.admin.forget_dedup_ids(NS, ["a"]) == {}


def test_ids_of_topics_are_forgotten_by_topic(world: World) -> None:
    world.admin.create_namespace("by-topic", dedup_scope=DedupScope.TOPIC)
    ids = {
        topic: world.client.enqueue("by-topic", topic, b"x", dedup_id="a", dedup_until=ACKED) for topic in ("t", "u")
    }
    assert len(set(ids.values())) == 2
    with pytest.raises(InvalidArgumentError, match="give the topic"):
        world.admin.forget_dedup_ids("by-topic", "a")
    world.admin.forget_dedup_ids("by-topic", "a", "t")
    assert world.client.enqueue("by-topic", "t", b"x", dedup_id="a", dedup_until=ACKED) != ids["t"]
    assert world.client.enqueue("by-topic", "u", b"x", dedup_id="a", dedup_until=ACKED) == ids["u"]
    with pytest.raises(InvalidArgumentError, match="give no topic"):
        world.admin.forget_dedup_ids(NS, "a", "t")


def test_bad_ids_to_forget_are_refused_at_their_position(world: World) -> None:
    unique(world)
    errors = world.admin.forget_dedup_ids(NS, ["", "a", "x" * 256], return_errors=True)
    assert {at: type(error) for at, error in errors.items()} == {0: InvalidArgumentError, 2: InvalidArgumentError}
