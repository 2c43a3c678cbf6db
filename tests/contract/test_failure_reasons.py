"""What users see of failures: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from itertools import product

import pytest

import foqs
from foqs import InvalidArgumentError, ItemState, Nack, NewItem
from foqs.model.failures import FAILURES_SHOWN_MAX, REASON_BYTES_MAX
from tests.contract.queue_world import NS, SECOND_MS, World


def take(world: World, topic: str = "t", **how: object) -> foqs.Item:
    (item,) = world.client.dequeue(NS, topic, 1, wait_ms=5 * SECOND_MS, **how)
    return item


def reasons(world: World, item_id: str) -> list[tuple[int, str]]:
    return [(failure.attempt, failure.reason) for failure in world.admin.get_item(NS, item_id).errors]


def test_an_item_shows_the_reasons_of_its_last_failures_the_newest_first(world: World) -> None:
    item_id = world.client.enqueue(NS, "t", b"x")
    assert reasons(world, item_id) == []
    for attempt in (1, 2, 3):
        item = take(world)
        world.client.nack(NS, item, reason=f"ValueError: bad card {attempt}")
    assert reasons(world, item_id) == [(attempt, f"ValueError: bad card {attempt}") for attempt in (3, 2, 1)]
    stored = world.admin.get_item(NS, item_id)
    times = [failure.at_ms for failure in stored.errors]
    assert times == sorted(times, reverse=True)
    assert times[-1] >= stored.enqueued_at_ms


@pytest.mark.parametrize("is_old", [False, True])
def test_every_kind_of_nack_keeps_its_reason_and_those_before(world: World, is_old: bool) -> None:
    """Young items are in packs, and a nack gives them rows; with `is_old` the row is there before."""
    kinds = [
        {"delay_ms": delay_ms, "metadata": metadata, "dead_letter": dead, "release": release}
        for delay_ms, metadata, dead, release in product(
            (0, 60 * SECOND_MS), (None, b"m"), (False, True), (False, True)
        )
        if not (dead and release)
    ]
    topics = [f"kind-{number}" for number in range(len(kinds))]
    world.client.enqueue_many(NS, [NewItem(topic, b"x") for topic in topics])
    for topic, how in zip(topics, kinds, strict=True):
        expected = []
        if is_old:
            world.client.nack(NS, take(world, topic), reason="before")
            expected = [(1, "before")]
        item = take(world, topic)
        world.client.nack(NS, [Nack(item.receipt, reason="it's '); DROP TABLE item; --", **how)])
        assert reasons(world, item.id) == [(item.attempt, "it's '); DROP TABLE item; --"), *expected], how
        stored = world.admin.get_item(NS, item.id)
        assert (stored.state is ItemState.DEAD) == how["dead_letter"]
        assert stored.metadata == (how["metadata"] or b"")


def test_items_of_one_call_keep_reasons_of_their_own(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n) for n in range(12)])
    items = world.client.dequeue(NS, "t", 12, wait_ms=5 * SECOND_MS)
    given = {item.id: ["one", "other", None][at % 3] for at, item in enumerate(items)}
    world.client.nack(NS, [Nack(item.receipt, reason=given[item.id]) for item in items])
    for item_id, reason in given.items():
        assert reasons(world, item_id) == ([] if reason is None else [(1, reason)])


def test_a_nack_without_a_reason_leaves_the_earlier_ones(world: World) -> None:
    world.client.enqueue(NS, "t", b"x")
    world.client.nack(NS, take(world), reason="known")
    item = take(world)
    world.client.nack(NS, item)
    assert reasons(world, item.id) == [(1, "known")]


def test_the_reason_of_death_has_the_reason_of_the_last_attempt(world: World) -> None:
    world.admin.update_namespace(NS, attempts_max=2)
    world.client.enqueue_many(NS, [NewItem("a", b""), NewItem("b", b""), NewItem("c", b"", ttl_ms=60 * SECOND_MS)])
    for attempt in (1, 2):
        world.client.nack(NS, take(world, "a"), reason=f"timeout {attempt}")
    world.client.nack(NS, take(world, "b"), dead_letter=True, reason="poison")
    world.client.nack(NS, take(world, "c"), delay_ms=61 * SECOND_MS, reason="x" * 1_000)
    ((a,), (b,), (c,)) = (world.dead(topic) for topic in "abc")
    assert a.death_reason == "nacked: timeout 2"
    assert [failure.reason for failure in a.errors] == ["timeout 2"], "a page shows the newest alone"
    assert b.death_reason == "dead-lettered by its consumer: poison"
    assert c.death_reason is not None
    assert c.death_reason.startswith("nacked, and its TTL ends before its delay: xxx")
    assert len(c.death_reason.encode()) == 255
    assert [failure.reason for failure in c.errors] == ["x" * REASON_BYTES_MAX]


def test_a_redrive_keeps_what_failed_before(world: World) -> None:
    world.client.enqueue(NS, "t", b"x")
    item = take(world)
    world.client.nack(NS, item, dead_letter=True, reason="first life")
    assert world.admin.redrive_dead_letters(NS, "t", ids=[item.id]).count == 1
    assert reasons(world, item.id) == [(1, "first life")]
    world.client.nack(NS, take(world), reason="second life")
    assert reasons(world, item.id) == [(1, "second life"), (1, "first life")]


def test_a_lease_that_ended_is_a_failure_with_a_reason(world: World) -> None:
    world.client.enqueue(NS, "t", b"x")
    item = take(world, lease_ms=SECOND_MS)
    world.let_pass(3 * SECOND_MS)
    assert reasons(world, item.id) == [(1, "lease ended")]
    again = take(world)
    world.client.release(NS, again, reason="shutting down")
    assert reasons(world, item.id) == [(2, "shutting down"), (1, "lease ended")]
    assert world.admin.get_item(NS, item.id).failed_attempts == 1


def test_an_item_that_expires_keeps_its_failures(world: World) -> None:
    world.client.enqueue(NS, "t", b"x", ttl_ms=3 * SECOND_MS)
    item = take(world)
    world.client.nack(NS, item, reason="no connection")
    world.let_pass(8 * SECOND_MS)
    (dead,) = world.dead()
    assert dead.death_reason == "its TTL ended after failed attempts: 1"
    assert [failure.reason for failure in dead.errors] == ["no connection"]


def test_no_more_failures_are_kept_than_the_bounds_say(world: World) -> None:
    world.admin.update_namespace(NS, attempts_max=100)
    world.client.enqueue(NS, "t", b"x")
    count = FAILURES_SHOWN_MAX + 3
    for number in range(count):
        item = take(world)
        world.client.nack(NS, item, reason=f"r{number}")
    shown = [f"r{number}" for number in reversed(range(count))][:FAILURES_SHOWN_MAX]
    assert [reason for _, reason in reasons(world, item.id)] == shown
    for _ in range(3):
        world.client.nack(NS, take(world), reason="é" * 400)
    assert [reason for _, reason in reasons(world, item.id)] == ["é" * 250], "the second one does not fit as a whole"


HOSTILE = {
    "\x1b]0;title\x07\x1b[2J\r\n\u2028end": "]0;title  [2J   end",
    "\ud800 lone": "? lone",
    "x" * 1_000_000: "x" * REASON_BYTES_MAX,
    "😀" * 200: "😀" * 125,
    "\x00\n\t": None,
}


def test_a_reason_never_makes_a_nack_fail(world: World) -> None:
    world.admin.update_namespace(NS, attempts_max=100)
    world.client.enqueue(NS, "t", b"x")
    for given, kept in HOSTILE.items():
        item = take(world)
        before = reasons(world, item.id)
        assert world.client.nack(NS, item, reason=given) == {}
        shown = reasons(world, item.id)
        assert shown[:1] == (before[:1] if kept is None else [(item.attempt, kept)])
    with pytest.raises(InvalidArgumentError, match="reason is ValueError, not str"):
        Nack("0-1:1", reason=ValueError("x"))  # type: ignore[arg-type]


def test_pages_peeks_and_exports_show_the_last_failure(world: World) -> None:
    world.client.enqueue(NS, "t", b"x")
    for reason in ("first", "last"):
        world.client.nack(NS, take(world), reason=reason)
    for page in (world.admin.peek_items(NS, "t").items, list(world.admin.iterate_items(NS))):
        (item,) = page
        assert [failure.reason for failure in item.errors] == ["last"]


def test_groups_keys_and_serial_topics_have_reasons_too(world: World) -> None:
    world.admin.create_group(NS, "grouped", "audit")
    world.admin.set_topic_policy(NS, "serial", serial=True)
    world.client.enqueue_many(
        NS, [NewItem("grouped", b""), NewItem("keyed", b"", ordering_key="k"), NewItem("serial", b"")]
    )
    for topic, how in (("grouped", {}), ("grouped", {"group": "audit"}), ("keyed", {}), ("serial", {})):
        item = take(world, topic, **how)
        world.client.nack(NS, item, reason=f"of {topic} {how}")
        assert reasons(world, item.id) == [(1, f"of {topic} {how}")]
        again = take(world, topic, **how)
        world.client.nack(NS, again, dead_letter=True, reason="over")
        assert reasons(world, item.id) == [(2, "over"), (1, f"of {topic} {how}")]


def test_a_namespace_bounds_what_its_items_keep_of_failures(world: World) -> None:
    world.admin.update_namespace(NS, attempts_max=100, errors_bytes_max=2_048)
    item_id = world.client.enqueue(NS, "t", b"x")
    for attempt in range(1, 6):
        world.client.nack(NS, take(world), reason=f"{attempt} {'r' * 480}")
    assert [attempt for attempt, _ in reasons(world, item_id)] == [5, 4, 3, 2]
    world.admin.update_namespace(NS, errors_bytes_max=600)
    assert len(reasons(world, item_id)) == 4, "the bound holds from the next failure on"
    world.client.nack(NS, take(world), reason=f"6 {'r' * 480}")
    assert [attempt for attempt, _ in reasons(world, item_id)] == [6]
    for bad in (-1, 2_049):
        with pytest.raises(InvalidArgumentError, match=f"errors_bytes_max {bad} is not within"):
            world.admin.update_namespace(NS, errors_bytes_max=bad)


@pytest.mark.parametrize("is_old", [False, True])
def test_a_namespace_that_keeps_no_reasons_stores_none_anywhere(world: World, is_old: bool) -> None:
    item_id = world.client.enqueue(NS, "t", b"x")
    if is_old:
        world.client.nack(NS, take(world), reason="card 4111")
    world.admin.update_namespace(NS, errors_bytes_max=0)
    world.client.nack(NS, take(world), reason="card 4111")
    assert reasons(world, item_id) == [], "what was kept before goes with the next failure"
    world.client.nack(NS, [Nack(take(world).receipt, dead_letter=True, reason="card 4111")])
    stored = world.admin.get_item(NS, item_id)
    assert (stored.errors, stored.death_reason) == ([], "dead-lettered by its consumer")
