"""Why items move or do not: stops that are staged on a MemoryQueue as on a host with MySQL, and the remedy of each."""

from __future__ import annotations

from contextlib import suppress

import pytest

from foqs import (
    Explanation,
    InvalidArgumentError,
    NewItem,
    OnDead,
    RateLimitedError,
    Reason,
    ReasonCode,
    ShardUse,
    UnknownNamespaceError,
    Verdict,
)
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.support.remedies import check_is_command, run_remedy

LEASE_MS = 20 * SECOND_MS
CLOCKS_MS = 100
"""A real host and its server have two clocks, and waits for tokens end in whole slots of time."""


def put(world: World, count: int = 1, topic: str = "t", **fields: object) -> list[str]:
    items = [NewItem(topic, b"%d" % number, **fields) for number in range(count)]  # type: ignore[arg-type]
    return list(world.client.enqueue_many(NS, items).ids)


def check(found: Explanation, verdict: Verdict, code: ReasonCode, count: int = 0) -> Reason:
    """Check the decisive reason of an explanation, and that the command line of each remedy is one of foqs."""
    first = found.reasons[0]
    assert (Verdict(found.verdict), ReasonCode(first.code)) == (verdict, code), found
    assert first.count == count, first
    assert found.summary
    assert found.as_of_ms > 0
    for reason in found.reasons:
        if reason.remedy:
            check_is_command(reason.remedy)
    return first


def test_nothing_is_there(world: World) -> None:
    assert check(world.admin.explain(NS, "t"), Verdict.EMPTY, ReasonCode.NOTHING_THERE).topic == "t"


def test_nobody_asks(world: World) -> None:
    put(world, 2)
    first = check(world.admin.explain(NS, "t"), Verdict.STOPPED, ReasonCode.NO_CONSUMERS, 2)
    assert first.text == "no consumer waits for topic 't' or has items of it: 2 ready items are waiting for one"
    world.payloads()
    assert world.admin.explain(NS, "t").verdict == Verdict.MOVING


def test_a_topic_is_paused(world: World) -> None:
    (item_id,) = put(world)
    world.admin.set_topic_policy(NS, "t", dequeue_paused=True, reason="migration")
    first = check(world.admin.explain(NS, "t"), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    assert first.text == "dequeues of topic 't' are paused by an operator: migration"
    assert first.remedy == f"foqs topic resume --dequeue {NS} t"
    check(world.admin.explain(NS, item_id=item_id), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    check(world.admin.explain(NS), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    run_remedy(first.remedy, world.admin, world.client)
    assert world.payloads() == [b"0"]


def test_the_namespace_is_paused(world: World) -> None:
    (item_id,) = put(world)
    world.admin.update_namespace(NS, dequeue_paused=True, pause_reason="night")
    first = check(world.admin.explain(NS, "t"), Verdict.STOPPED, ReasonCode.NAMESPACE_PAUSED)
    assert first.text == f"dequeues of namespace {NS!r} are paused by an operator: night"
    for found in (world.admin.explain(NS), world.admin.explain(NS, item_id=item_id)):
        check(found, Verdict.STOPPED, ReasonCode.NAMESPACE_PAUSED)
    run_remedy(first.remedy, world.admin, world.client)
    assert world.payloads() == [b"0"]


def test_a_topic_waits_for_its_cap(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", deliveries_per_second_max=0.01)
    put(world, 3)
    while world.payloads(count=1):
        continue
    found = world.admin.explain(NS, "t")
    first = check(found, Verdict.SLOW, ReasonCode.TOPIC_CAPPED, found.reasons[0].count)
    assert "for its cap of 0.01 deliveries a second" in first.text
    assert 0 < first.until_ms - found.as_of_ms <= 100 * SECOND_MS + CLOCKS_MS
    assert found.expected_wait_ms == first.count * 100 * SECOND_MS
    run_remedy(first.remedy, world.admin, world.client)
    assert len(world.payloads(wait_ms=SECOND_MS)) == first.count


def test_topics_wait_for_the_cap_of_the_namespace(world: World) -> None:
    world.admin.update_namespace(NS, deliveries_per_second_max=0.01)
    put(world, 3)
    while world.payloads(count=1):
        continue
    found = world.admin.explain(NS, "t")
    first = check(found, Verdict.SLOW, ReasonCode.NAMESPACE_CAPPED, found.reasons[0].count)
    run_remedy(first.remedy, world.admin, world.client)
    assert len(world.payloads(wait_ms=SECOND_MS)) == first.count


def test_as_many_items_are_in_flight_as_there_can_be(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", in_flight_max=2)
    put(world, 5)
    items = world.client.dequeue(NS, "t", 2, lease_ms=LEASE_MS, wait_ms=SECOND_MS, consumer="worker@a/1")
    assert len(items) == 2
    found = world.admin.explain(NS, "t")
    first = check(found, Verdict.SLOW, ReasonCode.IN_FLIGHT_FULL, 3)
    assert "wait for permits: at most 2 can be in flight, and 2 are under lease; the first lease ends in " in first.text
    assert abs(first.until_ms - items[0].lease_expires_at_ms) <= CLOCKS_MS
    world.client.ack(NS, items)
    assert len(world.payloads(wait_ms=SECOND_MS)) == 2


def test_consumers_are_busy(world: World) -> None:
    put(world, 3)
    (one,) = world.client.dequeue(NS, "t", 1, lease_ms=LEASE_MS)
    found = world.admin.explain(NS, "t")
    first = check(found, Verdict.SLOW, ReasonCode.CONSUMERS_SLOW, 2)
    assert first.text == "2 ready items of topic 't' wait for consumers, which are busy with 1 item"
    assert [ReasonCode(reason.code) for reason in found.reasons[1:]] == [ReasonCode.LEASED]
    assert first.remedy == f"foqs consumer list --topic t {NS}"
    world.client.ack(NS, one)


def test_an_item_is_under_lease_delayed_dead_and_gone(world: World) -> None:
    (item_id,) = put(world)
    (item,) = world.client.dequeue(NS, "t", 1, lease_ms=LEASE_MS, consumer="worker@a/1")
    found = world.admin.explain(NS, item_id=item_id)
    first = check(found, Verdict.MOVING, ReasonCode.LEASED, 1)
    assert first.text.startswith("it has been under a lease of worker@a/1 for ")
    assert abs(first.until_ms - item.lease_expires_at_ms) <= CLOCKS_MS
    assert first.remedy == f"foqs consumer list --topic t {NS}"
    world.client.nack(NS, item, delay_ms=LEASE_MS, reason="no paper")
    found = world.admin.explain(NS, item_id=item_id)
    first = check(found, Verdict.SLOW, ReasonCode.DELAYED, 1)
    assert first.text.endswith("; 1 attempt failed: no paper")
    assert 0 < first.until_ms - found.as_of_ms <= LEASE_MS + CLOCKS_MS
    world.let_pass(LEASE_MS + SECOND_MS)
    world.client.nack(NS, world.client.dequeue(NS, "t", 1), dead_letter=True, reason="torn")
    first = check(world.admin.explain(NS, item_id=item_id), Verdict.STOPPED, ReasonCode.DEAD, 1)
    assert first.text.startswith("it has been a dead letter for ")
    assert first.text.endswith("torn")
    check(world.admin.explain(NS, "t"), Verdict.EMPTY, ReasonCode.DEAD, 1)
    run_remedy(first.remedy, world.admin, world.client)
    found = world.admin.explain(NS, item_id=item_id)
    assert found.reasons[0].code in (ReasonCode.CONSUMERS_SLOW, ReasonCode.NO_CONSUMERS)  # One was here just now.
    world.client.ack(NS, world.client.dequeue(NS, "t", 1))
    check(world.admin.explain(NS, item_id=item_id), Verdict.GONE, ReasonCode.GONE)


def test_other_items_come_first(world: World) -> None:
    ids = put(world, 4)
    world.client.dequeue(NS, "t", 1, lease_ms=LEASE_MS)
    world.admin.set_topic_policy(NS, "t", dequeue_paused=True)
    found = world.admin.explain(NS, item_id=ids[3])
    behind = found.reasons[-1]
    assert (behind.code, behind.count, found.ahead_count, found.ahead_is_exact) == (ReasonCode.BEHIND, 2, 2, True)
    assert world.admin.explain(NS, item_id=ids[1]).ahead_count == 0


def test_a_serial_topic_is_busy_and_then_waits_for_the_next_attempt(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", serial=True)
    put(world, 3)
    (item,) = world.client.dequeue(NS, "t", 3, lease_ms=LEASE_MS, wait_ms=SECOND_MS, consumer="worker@a/1")
    found = world.admin.explain(NS, "t")
    first = check(found, Verdict.SLOW, ReasonCode.SERIAL_BUSY, 2)
    assert "wait for the delivery before, which is with worker@a/1 for another " in first.text
    assert abs(first.until_ms - item.lease_expires_at_ms) <= CLOCKS_MS
    world.client.nack(NS, item, delay_ms=LEASE_MS)
    found = world.admin.explain(NS, "t")
    first = check(found, Verdict.SLOW, ReasonCode.SERIAL_BUSY, 2)
    assert "for the next attempt of the item before, due in " in first.text
    assert 0 < first.until_ms - found.as_of_ms <= LEASE_MS + CLOCKS_MS


def test_an_ordering_key_is_busy_and_others_are_not(world: World) -> None:
    put(world, 3, ordering_key="a")
    put(world, 1, ordering_key="b")
    (item,) = world.client.dequeue(NS, "t", 1, lease_ms=LEASE_MS, wait_ms=SECOND_MS)
    assert item.ordering_key == "a"
    first = check(world.admin.explain(NS, "t", ordering_key="a"), Verdict.SLOW, ReasonCode.KEY_BUSY, 2)
    assert "topic 't', ordering key 'a' wait for the delivery before" in first.text
    assert ReasonCode.KEY_BUSY not in [one.code for one in world.admin.explain(NS, "t", ordering_key="b").reasons]
    (busy,) = [one for one in world.admin.explain(NS, "t").reasons if one.code == ReasonCode.KEY_BUSY]
    assert (busy.count, "with 1 ordering key wait" in busy.text) == (2, True)


def test_a_dead_letter_holds_a_serial_topic(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", serial=True, on_dead=OnDead.HOLD)
    put(world, 2)
    world.client.nack(NS, world.client.dequeue(NS, "t", 1, wait_ms=SECOND_MS), dead_letter=True)
    world.client.dequeue(NS, "t", 1, wait_ms=100)
    found = world.admin.explain(NS, "t")
    (held,) = [reason for reason in found.reasons if reason.code == ReasonCode.HELD_BY_DEAD]
    assert (found.verdict, held.count) == (Verdict.STOPPED, 1)
    run_remedy(f"{held.remedy} --yes" if "purge" in held.remedy else held.remedy, world.admin, world.client)
    assert world.payloads(count=1, wait_ms=SECOND_MS) == [b"0"]


def test_a_group_is_judged_by_itself_and_may_not_exist(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    put(world, 2)
    world.client.dequeue(NS, "t", 2)
    first = check(world.admin.explain(NS, "t", group="audit"), Verdict.STOPPED, ReasonCode.NO_CONSUMERS, 2)
    assert "topic 't', group 'audit'" in first.text
    world.admin.set_topic_policy(NS, "t", group="audit", dequeue_paused=True)
    first = check(world.admin.explain(NS, "t", group="audit"), Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 2)
    run_remedy(first.remedy, world.admin, world.client)
    assert len(world.client.dequeue(NS, "t", 2, group="audit", wait_ms=SECOND_MS)) == 2
    check(world.admin.explain(NS, "t", group="nobody"), Verdict.STOPPED, ReasonCode.NO_GROUP)


def test_no_more_items_are_taken(world: World) -> None:
    world.admin.set_topic_policy(NS, "t", depth_max=2)
    put(world, 2)
    (full,) = [one for one in world.admin.explain(NS, "t").reasons if one.code == ReasonCode.DEPTH_FULL]
    assert full.text == "topic 't' holds 2 items, and can hold 2: enqueues are refused"
    check_is_command(full.remedy)
    run_remedy(full.remedy, world.admin, world.client)
    put(world, 1)
    world.admin.set_topic_policy(NS, "t", enqueue_paused=True)
    world.admin.update_namespace(NS, enqueue_paused=True)
    remedies = [one.remedy for one in world.admin.explain(NS, "t").reasons if one.code == ReasonCode.ENQUEUE_PAUSED]
    assert len(remedies) == 2
    for remedy in remedies:
        run_remedy(remedy, world.admin, world.client)
    put(world, 1)


def test_the_quota_of_the_namespace_is_used(world: World) -> None:
    world.admin.update_namespace(NS, enqueues_per_minute_max=2)
    for _ in range(5):
        with suppress(RateLimitedError):
            put(world, 1)
    found = world.admin.explain(NS)
    (used,) = [one for one in found.reasons if one.code == ReasonCode.QUOTA_USED]
    assert used.text == f"namespace {NS!r} has used its quota of 2 enqueues a minute: enqueues are refused"
    assert 0 < used.until_ms - found.as_of_ms <= 120 * SECOND_MS
    check_is_command(used.remedy)


def test_no_shard_takes_items(world: World) -> None:
    for shard in world.admin.list_shards():
        world.admin.update_shard(shard.shard_id, state=ShardUse.DRAINING, last=True)
    world.let_pass(3 * SECOND_MS)
    (none,) = [one for one in world.admin.explain(NS).reasons if one.code == ReasonCode.NO_SHARD_TAKES]
    check_is_command(none.remedy)
    for shard in world.admin.list_shards():
        world.admin.update_shard(shard.shard_id, state=ShardUse.SERVING)
    world.let_pass(3 * SECOND_MS)
    assert ReasonCode.NO_SHARD_TAKES not in [one.code for one in world.admin.explain(NS).reasons]


def test_a_namespace_names_the_topics_that_stand_still_first(world: World) -> None:
    assert check(world.admin.explain(NS), Verdict.EMPTY, ReasonCode.NOTHING_THERE).topic == ""
    put(world, 5, "busy")
    put(world, 1, "paused")
    put(world, 2, "later", delay_ms=LEASE_MS)
    world.client.dequeue(NS, "busy", 1, lease_ms=LEASE_MS)
    world.admin.set_topic_policy(NS, "paused", dequeue_paused=True)
    found = world.admin.explain(NS)
    check(found, Verdict.STOPPED, ReasonCode.TOPIC_PAUSED, 1)
    assert [(one.code, one.topic, one.count) for one in found.reasons] == [
        (ReasonCode.TOPIC_PAUSED, "paused", 1), (ReasonCode.CONSUMERS_SLOW, "busy", 4), (ReasonCode.LEASED, "", 1),
        (ReasonCode.DELAYED, "", 2),
    ]  # fmt: skip
    assert "5 ready, 1 under lease, 2 delayed, 0 dead letters" in found.summary


def test_what_is_asked_must_be_one_thing(world: World) -> None:
    for wrong in (
        {"topic": "t", "item_id": "0-10000000001"},
        {"item_id": "not an id"},
        {"group": "audit"},
        {"ordering_key": "k"},
        {"topic": "t", "ordering_key": "k", "fairness_key": "k"},
        {"topic": "a\x1fb"},
    ):
        with pytest.raises(InvalidArgumentError):
            world.admin.explain(NS, **wrong)  # type: ignore[arg-type]
    with pytest.raises(UnknownNamespaceError):
        world.admin.explain("nowhere")


def test_of_many_topics_those_with_the_most_ready_items_are_explained(world: World) -> None:
    for number in range(1, 13):
        put(world, number, f"t{number:02}")
    found = world.admin.explain(NS)
    assert [one.topic for one in found.reasons if one.topic] == [f"t{number:02}" for number in range(12, 2, -1)]
    (others,) = [one for one in found.reasons if one.code == ReasonCode.NOT_LOOKED_AT]
    assert others.count == 2


def test_attempts_fail_and_their_items_come_again(world: World) -> None:
    """The remedy shows the errors; the reason ends with the failures."""
    put(world, 8)
    world.admin.set_topic_policy(NS, "t", attempts_max=1_000)
    found = world.admin.explain(NS, "t")
    for _ in range(60):
        if items := world.client.dequeue(NS, "t", 8):
            world.client.nack(NS, items, delay_ms=4 * SECOND_MS, reason="the bank is closed")
        world.let_pass(SECOND_MS)
        found = world.admin.explain(NS, "t")
        if any(reason.code == ReasonCode.ATTEMPTS_FAIL for reason in found.reasons):
            break
    first = check(found, Verdict.SLOW, ReasonCode.ATTEMPTS_FAIL, 8)
    assert first.text.startswith("100 % of the attempts at topic 't' failed in the last minute")
    assert first.remedy == f"foqs dead-letter list {NS} t"


def test_the_wait_of_an_item_is_known_by_the_speed_of_its_topic(world: World) -> None:
    put(world, 100)
    for _ in range(30):
        world.client.ack(NS, world.client.dequeue(NS, "t", 2))
        world.let_pass(SECOND_MS)
    found = world.admin.explain(NS, "t")
    # The average forgets what was before the topic's first item only slowly.
    assert 20 * SECOND_MS <= found.expected_wait_ms <= 120 * SECOND_MS
