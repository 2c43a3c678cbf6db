"""Runs: items of an ordering key, or of a serial topic, that one dequeue gets together."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import DeliveryPolicy, NewItem, OnDead, StaleLeaseError
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.contract.test_ordering_keys import put, rest, taken

BATCH = 4
PAYLOADS = [b"%d" % number for number in range(10)]


def set_batch(world: World, number: int = BATCH, topic: str = "t", **changes: Any) -> None:
    world.admin.set_topic_policy(NS, topic, key_batch=number, **changes)


def run_of(world: World, count: int = 10, topic: str = "t", **options: Any) -> list[foqs.Item]:
    return list(world.client.dequeue(NS, topic, count, wait_ms=SECOND_MS, **options))


def payloads(items: list[foqs.Item]) -> list[bytes]:
    return [item.payload for item in items]


def check_stale(world: World, item: foqs.Item) -> None:
    with pytest.raises(foqs.BatchError) as caught:
        world.client.ack(NS, [item])
    assert [type(error) for error in caught.value.errors.values()] == [StaleLeaseError]


@pytest.mark.parametrize("is_keyed", [True, False])
def test_one_dequeue_gets_items_together_and_the_next_ones_follow_when_all_have_ended(
    world: World, is_keyed: bool
) -> None:
    set_batch(world, serial=not is_keyed)
    put(world, *PAYLOADS, key="k" if is_keyed else None)
    items = run_of(world)
    assert payloads(items) == PAYLOADS[:BATCH]
    assert taken(world) == []
    world.client.ack(NS, [items[2], items[0], items[3]])
    assert taken(world) == []
    world.client.ack(NS, items[1])
    assert payloads(run_of(world)) == PAYLOADS[BATCH : 2 * BATCH]


def test_no_dequeue_gets_the_rest_of_what_another_one_began(world: World) -> None:
    set_batch(world)
    put(world, *PAYLOADS)
    items = run_of(world, count=2)
    assert payloads(items) == PAYLOADS[:2]
    assert taken(world) == []
    world.client.ack(NS, items)
    assert rest(world) == PAYLOADS[2:]


def test_keys_have_runs_beside_each_other_and_beside_items_without_a_key(world: World) -> None:
    set_batch(world)
    for key in ("a", "b"):
        put(world, *[key.encode() + one for one in PAYLOADS], key=key)
    put(world, *PAYLOADS, key=None)
    found = payloads(taken(world, count=100))
    assert [one for one in found if one.startswith(b"a")] == [b"a" + one for one in PAYLOADS[:BATCH]]
    assert [one for one in found if one.startswith(b"b")] == [b"b" + one for one in PAYLOADS[:BATCH]]
    assert sorted([one for one in found if len(one) == 1]) == PAYLOADS


@pytest.mark.parametrize("fate", ["nack", "release", "lease"])
def test_an_item_that_comes_back_takes_those_behind_it_along(world: World, fate: str) -> None:
    set_batch(world)
    put(world, *PAYLOADS)
    items = run_of(world, lease_ms=3 * SECOND_MS)
    world.client.ack(NS, items[0])
    if fate == "lease":
        world.client.extend(NS, [items[2]], 60 * SECOND_MS)
        world.let_pass(3 * SECOND_MS + SECOND_MS // 2)
    else:
        (world.client.nack if fate == "nack" else world.client.release)(NS, items[1])
    check_stale(world, items[2])
    check_stale(world, items[3])
    again = run_of(world)
    assert payloads(again) == PAYLOADS[1 : 1 + BATCH]
    # The lease of the last one ended as well.
    attempts = {"nack": [2, 1, 1, 1], "release": [1, 1, 1, 1], "lease": [2, 1, 2, 1]}
    assert [one.attempt for one in again] == attempts[fate]
    world.client.ack(NS, again)
    assert rest(world) == PAYLOADS[1 + BATCH :]


def test_the_rest_of_a_run_waits_while_an_item_of_it_is_delivered_alone(world: World) -> None:
    set_batch(world)
    put(world, *PAYLOADS[:BATCH])
    items = run_of(world, lease_ms=3 * SECOND_MS, says_begun=True)
    assert payloads(items) == PAYLOADS[:BATCH]
    world.client.extend(NS, [], begun=items)
    world.let_pass(3 * SECOND_MS + SECOND_MS // 2)
    (first,) = run_of(world, says_begun=True)  # Its consumer has perhaps died of it.
    assert (first.payload, first.suspect) == (PAYLOADS[0], True)
    assert taken(world) == []
    world.client.ack(NS, first)
    assert payloads(run_of(world)) == PAYLOADS[1:BATCH]


def test_a_nack_with_a_delay_holds_those_behind_it(world: World) -> None:
    set_batch(world)
    put(world, *PAYLOADS)
    items = run_of(world)
    world.client.nack(NS, items[1], delay_ms=2 * SECOND_MS)
    check_stale(world, items[3])
    world.client.ack(NS, items[0])
    assert taken(world) == []
    world.let_pass(2 * SECOND_MS)
    assert payloads(run_of(world)) == PAYLOADS[1 : 1 + BATCH]


def test_items_nacked_by_one_call_count_a_failed_attempt_each(world: World) -> None:
    set_batch(world)
    put(world, *PAYLOADS)
    world.client.nack(NS, run_of(world))
    again = run_of(world)
    assert payloads(again) == PAYLOADS[:BATCH]
    assert [one.attempt for one in again] == [2] * BATCH


@pytest.mark.parametrize("on_dead", list(OnDead))
def test_a_dead_letter_lets_those_behind_it_go_on_or_holds_them(world: World, on_dead: OnDead) -> None:
    set_batch(world, on_dead=on_dead)
    put(world, *PAYLOADS)
    items = run_of(world)
    world.client.nack(NS, items[0], dead_letter=True)
    if on_dead is OnDead.CONTINUE:
        world.client.ack(NS, items[1:])
        assert rest(world) == PAYLOADS[BATCH:]
        return
    for item in items[1:]:
        check_stale(world, item)
    assert taken(world) == []
    world.admin.redrive_dead_letters(NS, "t", ordering_key="k")
    assert rest(world) == PAYLOADS


def test_an_item_that_is_delivered_at_most_once_stays_out_behind_one_that_comes_back(world: World) -> None:
    set_batch(world)
    once = DeliveryPolicy.AT_MOST_ONCE
    new = [NewItem("t", one, ordering_key="k", delivery=once if one == b"2" else None) for one in PAYLOADS]
    world.client.enqueue_many(NS, new)
    items = run_of(world)
    world.client.nack(NS, items[1])
    check_stale(world, items[3])
    world.client.ack(NS, items[0])
    assert taken(world) == []
    world.client.ack(NS, items[2])
    assert rest(world) == [one for one in PAYLOADS if one not in (b"0", b"2")]


def test_a_limit_of_items_in_flight_bounds_the_runs_of_all_keys(world: World) -> None:
    set_batch(world, in_flight_max=6)
    for key in ("a", "b", "c"):
        put(world, *PAYLOADS, key=key)
    items = taken(world, count=100)
    assert len(items) == 6
    world.client.ack(NS, items)
    assert len(rest(world)) == 3 * len(PAYLOADS) - 6


def test_a_cap_bounds_a_run(world: World) -> None:
    set_batch(world, deliveries_per_second_max=2.0)
    put(world, *PAYLOADS)
    assert 1 <= len(run_of(world)) <= 2 < BATCH


def test_another_number_holds_from_the_next_delivery_on(world: World) -> None:
    put(world, *PAYLOADS)
    (first,) = taken(world)
    set_batch(world)
    world.let_pass(3 * SECOND_MS)
    assert taken(world) == []
    world.client.ack(NS, first)
    items = run_of(world)
    assert payloads(items) == PAYLOADS[1 : 1 + BATCH]
    set_batch(world, 0)
    world.let_pass(3 * SECOND_MS)
    world.client.ack(NS, items)
    assert payloads(taken(world)) == PAYLOADS[1 + BATCH : 2 + BATCH]


def test_each_group_has_runs_of_its_own(world: World) -> None:
    set_batch(world)
    world.admin.create_group(NS, "t", "g")
    put(world, *PAYLOADS)
    of_topic, of_group = run_of(world), run_of(world, group="g")
    assert payloads(of_topic) == payloads(of_group) == PAYLOADS[:BATCH]
    world.client.nack(NS, of_topic[0])
    world.client.ack(NS, of_group)
    assert payloads(run_of(world, group="g")) == PAYLOADS[BATCH : 2 * BATCH]
    with pytest.raises(foqs.InvalidArgumentError, match="key_batch are of topic 't'"):
        world.admin.set_topic_policy(NS, "t", key_batch=2, group="g")
    with pytest.raises(foqs.InvalidArgumentError, match=r"key_batch .* is not within 0\.\.1000"):
        set_batch(world, 1_001)
