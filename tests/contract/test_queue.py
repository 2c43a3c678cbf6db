"""What users see of a queue holds of foqs.testing.MemoryQueue as of a host with MySQL, so the one cannot drift.

Time passes by dequeues that wait: a host is waited for, and the clock of a MemoryQueue moves.
"""

from __future__ import annotations

import pytest

import foqs
from foqs import BatchError, Nack, NewItem
from foqs.model import limits
from foqs.model.namespace import SETTING_BOUNDS, DedupScope
from foqs.testing import MemoryQueue
from tests.contract.queue_world import NS, SECOND_MS, World


def test_a_delivery_has_what_was_enqueued_and_an_acked_item_is_gone(world: World) -> None:
    item_id = world.client.enqueue(NS, "t", b"payload", priority=7, metadata=b"meta")
    (item,) = world.client.dequeue(NS, "t", 10, lease_ms=5_000)
    assert (item.id, item.topic, item.payload, item.priority, item.metadata, item.attempt) == (
        item_id, "t", b"payload", 7, b"meta", 1,
    )  # fmt: skip
    assert item.deliver_after_ms == item.enqueued_at_ms
    assert abs(item.lease_expires_at_ms - item.enqueued_at_ms - 5_000) < 5_000
    (leased,) = world.client.topics(NS)
    assert (leased.topic, leased.ready, leased.leased) == ("t", 0, 1)
    world.client.ack(NS, item)
    assert not list(world.client.topics(NS))
    with pytest.raises(foqs.NotFoundError):
        world.admin.get_item(NS, item_id)


def test_the_least_priority_number_comes_first_and_of_one_the_oldest(world: World) -> None:
    priorities = [3, 1, 2, 1, 3]
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n, priority) for n, priority in enumerate(priorities)])
    taken = world.payloads(count=3) + world.payloads(count=3)
    assert taken == [b"1", b"3", b"2", b"0", b"4"]


def test_a_dequeue_of_several_topics_takes_from_each(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem(topic, topic.encode()) for topic in "aabb"])
    items = world.client.dequeue(NS, {"a": 1, "b": 2, "c": 3}, wait_ms=SECOND_MS)
    assert sorted(item.topic for item in items) == ["a", "b", "b"]


def test_a_delayed_item_comes_when_its_delay_is_over(world: World) -> None:
    world.client.enqueue(NS, "t", b"later", delay_ms=1_500)
    assert world.payloads() == []
    (stats,) = world.client.topics(NS)
    assert (stats.ready, stats.delayed) == (0, 1)
    (item,) = world.client.dequeue(NS, "t", 1, wait_ms=10_000)
    assert item.deliver_after_ms == item.enqueued_at_ms + 1_500


def test_an_item_that_nobody_took_expires(world: World) -> None:
    item_id = world.client.enqueue(NS, "t", b"short-lived", ttl_ms=SECOND_MS)
    world.let_pass(2 * SECOND_MS)
    assert world.payloads() == []
    with pytest.raises(foqs.NotFoundError):
        world.admin.get_item(NS, item_id)


def test_a_lease_that_ends_brings_the_item_back_and_the_old_receipt_is_stale(world: World) -> None:
    world.client.enqueue(NS, "t", b"again")
    (first,) = world.client.dequeue(NS, "t", 1, lease_ms=SECOND_MS)
    assert world.payloads() == []
    (second,) = world.client.dequeue(NS, "t", 1, wait_ms=10_000)
    assert (second.id, second.attempt) == (first.id, 2)
    with pytest.raises(foqs.StaleLeaseError):
        world.client.ack(NS, first)
    world.client.ack(NS, second)
    with pytest.raises(foqs.StaleLeaseError):
        world.client.ack(NS, second)


def test_an_extended_lease_outlasts_the_first_one(world: World) -> None:
    world.client.enqueue(NS, "t", b"mine")
    (item,) = world.client.dequeue(NS, "t", 1, lease_ms=SECOND_MS)
    world.client.extend(NS, item, 60_000)
    assert world.payloads(wait_ms=2 * SECOND_MS) == []
    world.client.ack(NS, item)


def test_a_nack_brings_the_item_back_after_its_delay_with_new_metadata(world: World) -> None:
    world.client.enqueue(NS, "t", b"x", metadata=b"old")
    (item,) = world.client.dequeue(NS, "t", 1)
    world.client.nack(NS, [Nack(item.receipt, delay_ms=1_200, metadata=b"new")])
    assert world.payloads() == []
    (again,) = world.client.dequeue(NS, "t", 1, wait_ms=10_000)
    assert (again.attempt, again.metadata) == (2, b"new")


def test_a_release_counts_no_attempt_towards_the_dead_letters(world: World) -> None:
    world.admin.update_namespace(NS, attempts_max=1)
    world.client.enqueue(NS, "t", b"x")
    (item,) = world.client.dequeue(NS, "t", 1)
    world.client.nack(NS, [Nack(item.receipt, release=True)])
    (again,) = world.client.dequeue(NS, "t", 1, wait_ms=5_000)
    assert again.id == item.id
    assert not world.dead()


def test_after_its_last_attempt_an_item_is_a_dead_letter_and_a_redrive_brings_it_back(world: World) -> None:
    world.admin.update_namespace(NS, attempts_max=2)
    item_id = world.client.enqueue(NS, "t", b"poison")
    for _ in range(2):
        (item,) = world.client.dequeue(NS, "t", 1, wait_ms=5_000)
        world.client.nack(NS, item)
    assert world.payloads() == []
    (dead,) = world.dead()
    assert (dead.id, dead.payload) == (item_id, b"poison")
    assert world.admin.redrive_dead_letters(NS, "t", ids=[item_id]).count == 1
    (again,) = world.client.dequeue(NS, "t", 1, wait_ms=5_000)
    assert again.id == item_id
    assert not world.dead()


def test_a_nack_to_the_dead_letters_needs_no_attempts_and_a_purge_deletes(world: World) -> None:
    world.client.enqueue(NS, "t", b"hopeless")
    (item,) = world.client.dequeue(NS, "t", 1)
    world.client.nack(NS, [Nack(item.receipt, dead_letter=True)])
    assert [dead.payload for dead in world.dead()] == [b"hopeless"]
    assert world.admin.purge_dead_letters(NS, "t", limit=10).count == 1
    assert not world.dead()


def test_more_enqueues_than_the_quota_are_rate_limited_until_it_has_room(world: World) -> None:
    world.admin.create_namespace("small", enqueues_per_minute_max=2)
    world.client.enqueue_many("small", [NewItem("t", b"1"), NewItem("t", b"2")])
    with pytest.raises(foqs.RateLimitedError) as limited:
        world.client.enqueue("small", "t", b"3")
    assert limited.value.nothing_done
    assert 0 < (limited.value.retry_after_ms or 0) <= 61_000


def test_a_namespace_is_unknown_before_it_is_made_and_cannot_go_while_it_has_items(world: World) -> None:
    with pytest.raises(foqs.UnknownNamespaceError):
        world.client.enqueue("new", "t", b"x")
    world.admin.create_namespace("new")
    with pytest.raises(foqs.AlreadyExistsError):
        world.admin.create_namespace("new")
    world.client.enqueue("new", "t", b"x")
    with pytest.raises(foqs.InvalidArgumentError):
        world.admin.delete_namespace("new")
    world.client.ack("new", world.client.dequeue("new", "t", 1))
    world.admin.delete_namespace("new")
    with pytest.raises(foqs.UnknownNamespaceError):
        world.client.dequeue("new", "t", 1)


def test_a_payload_over_the_namespaces_limit_is_too_large_and_the_others_of_its_batch_are_stored(world: World) -> None:
    world.admin.update_namespace(NS, payload_bytes_max=10)
    with pytest.raises(BatchError) as batch:
        world.client.enqueue_many(NS, [NewItem("t", b"x" * 10), NewItem("t", b"x" * 11)])
    assert {position: type(error) for position, error in batch.value.errors.items()} == {1: foqs.TooLargeError}
    assert world.payloads() == [b"x" * 10]


def test_a_paused_namespace_takes_and_gives_nothing_until_it_goes_on(world: World) -> None:
    world.client.enqueue(NS, "t", b"1")
    world.admin.update_namespace(NS, enqueue_paused=True, dequeue_paused=True)
    with pytest.raises(foqs.PausedError):
        world.client.enqueue(NS, "t", b"2")
    with pytest.raises(foqs.PausedError):
        world.client.dequeue(NS, "t", 1)
    world.admin.update_namespace(NS, enqueue_paused=False, dequeue_paused=False)
    assert world.payloads(wait_ms=5_000) == [b"1"]


def test_operators_look_at_items_and_delete_them(world: World) -> None:
    item_id = world.client.enqueue(NS, "t", b"seen")
    world.client.enqueue(NS, "t", b"stays", priority=1)
    assert [item.payload for item in world.admin.peek_items(NS, "t", 10).items] == [b"seen", b"stays"]
    assert world.admin.get_item(NS, item_id).payload == b"seen"
    world.admin.delete_items(NS, [item_id])
    assert world.payloads() == [b"stays"]


def test_of_items_with_one_dedup_id_the_first_is_made_and_the_others_get_its_id(world: World) -> None:
    news = [
        NewItem("t", b"1", dedup_id="a"), NewItem("t", b"2"), NewItem("t", b"3", dedup_id="b"),
        NewItem("u", b"4", dedup_id="a"),
    ]  # fmt: skip
    result = world.client.enqueue_many(NS, news)
    assert (result.duplicates, result.ids[3]) == ([3], result.ids[0])
    assert len(set(result.ids)) == 3
    assert world.client.enqueue(NS, "t", b"5", dedup_id="b") == result.ids[2]
    assert world.client.enqueue_many(NS, news[2:]).duplicates == [0, 1]
    assert sorted(world.payloads()) == [b"1", b"2", b"3"]
    assert world.payloads("u") == []


def test_a_repeat_is_known_whatever_became_of_the_first(world: World) -> None:
    news = [NewItem("t", b"x", number, dedup_id=f"{number}") for number in range(3)]
    ids = world.client.enqueue_many(NS, news).ids
    acked, dead = world.client.dequeue(NS, "t", 2)
    world.client.ack(NS, acked)
    world.client.nack(NS, [Nack(dead.receipt, dead_letter=True)])
    world.admin.delete_items(NS, [ids[2]])
    again = world.client.enqueue_many(NS, news)
    assert (again.ids, again.duplicates) == (ids, [0, 1, 2])
    assert world.payloads() == []


def test_an_item_that_was_refused_leaves_no_id_and_a_repeat_costs_no_quota(world: World) -> None:
    world.admin.create_namespace("small", enqueues_per_minute_max=2, payload_bytes_max=10)
    with pytest.raises(foqs.TooLargeError):
        world.client.enqueue("small", "t", b"x" * 11, dedup_id="a")
    first = world.client.enqueue("small", "t", b"x", dedup_id="a")
    assert {world.client.enqueue("small", "t", b"x", dedup_id="a") for _ in range(5)} == {first}
    world.client.enqueue("small", "t", b"x")
    with pytest.raises(foqs.RateLimitedError):
        world.client.enqueue("small", "t", b"x")


def test_dedup_ids_count_by_namespace_or_by_topic(world: World) -> None:
    world.admin.create_namespace("by-topic", dedup_scope=DedupScope.TOPIC)
    news = [NewItem(topic, b"x", dedup_id="a") for topic in "tut"]
    assert world.client.enqueue_many(NS, news).duplicates == [1, 2]
    assert world.client.enqueue_many("by-topic", news).duplicates == [2]


def test_an_id_is_forgotten_when_its_window_is_over(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SETTING_BOUNDS, "dedup_ms", (1, limits.DEDUP_MS_MAX))
    world.admin.create_namespace("short", dedup_ms=2 * SECOND_MS)
    first = world.client.enqueue("short", "t", b"x", dedup_id="a")
    assert world.client.enqueue("short", "t", b"x", dedup_id="a") == first
    world.let_pass(4 * SECOND_MS)
    assert world.client.enqueue("short", "t", b"x", dedup_id="a") != first
    assert world.client.shard_map("short").dedup_window_ms is not None
    assert world.client.shard_map(NS).dedup_window_ms is None


def test_an_idempotent_client_makes_as_many_items_as_it_was_given(world: World) -> None:
    item = NewItem("t", b"x")
    result = world.idempotent.enqueue_many(NS, [item] * 5)
    assert (len(set(result.ids)), result.duplicates, item.dedup_id) == (5, [], None)
    assert len({world.idempotent.enqueue(NS, "t", b"y") for _ in range(3)}) == 3
    assert len({world.idempotent.enqueue(NS, "t", b"z", dedup_id="same") for _ in range(3)}) == 1


def test_the_shard_map_tells_the_spread_of_a_namespace_that_keeps_it(world: World) -> None:
    world.admin.create_namespace("wide", key_spread=4)
    told = world.client.shard_map("wide")
    assert (told.version, len(told.shard_by_slot), told.key_spread) == (1, 1_024, 4)
    assert world.client.shard_map(NS).key_spread == 1
    with pytest.raises(foqs.InvalidArgumentError, match="key_spread"):
        world.admin.update_namespace("wide", key_spread=2)


def test_a_paused_topic_takes_and_gives_nothing_until_it_goes_on_and_says_why(world: World) -> None:
    world.client.enqueue(NS, "t", b"1")
    world.client.enqueue(NS, "u", b"u")
    policy = world.admin.set_topic_policy(NS, "t", enqueue_paused=True, dequeue_paused=True, reason="the bank is down")
    assert policy == world.admin.get_topic_policy(NS, "t")
    with pytest.raises(foqs.PausedError, match="the bank is down"):
        world.client.enqueue(NS, "t", b"2")
    with pytest.raises(foqs.PausedError, match="the bank is down"):
        world.client.dequeue(NS, "t", 1)
    assert [item.payload for item in world.client.dequeue(NS, {"t": 1, "u": 1}, wait_ms=SECOND_MS)] == [b"u"]
    with pytest.raises(BatchError) as batch:
        world.client.enqueue_many(NS, [NewItem("t", b"2"), NewItem("u", b"3")])
    assert {position: type(error) for position, error in batch.value.errors.items()} == {0: foqs.PausedError}
    assert [one.topic for one in world.admin.list_topic_policies(NS)] == ["t"]
    assert not list(world.admin.list_topic_policies(NS, "u"))
    world.admin.set_topic_policy(NS, "t", enqueue_paused=False, dequeue_paused=False, reason="")
    assert not list(world.admin.list_topic_policies(NS)), "defaults are no policy"
    assert world.payloads(wait_ms=5_000) == [b"1"]


def test_a_pause_of_a_namespace_says_why(world: World) -> None:
    world.admin.update_namespace(NS, dequeue_paused=True, enqueue_paused=True, pause_reason="a move")
    for call in (lambda: world.client.enqueue(NS, "t", b"2"), lambda: world.client.dequeue(NS, topic_prefix="")):
        with pytest.raises(foqs.PausedError, match="paused by an operator: a move"):
            call()


def test_a_cap_lets_its_rate_through(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % number) for number in range(20)])
    world.admin.set_topic_policy(NS, "t", deliveries_per_second_max=2)
    taken = []
    for _ in range(4):
        taken += world.payloads(wait_ms=5_000)
    assert 4 <= len(taken) <= 5
    world.admin.set_topic_policy(NS, "t", deliveries_per_second_max=0)
    assert len(world.payloads(count=20, wait_ms=5_000)) == 20 - len(taken)


def test_items_of_any_topic_and_of_a_prefix(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem(topic, topic.encode()) for topic in ("a/1", "a/2", "b/1") for _ in range(3)])
    some = world.client.dequeue(NS, topic_prefix="a/", count=4, wait_ms=5_000)
    assert {item.topic for item in some} == {"a/1", "a/2"}
    rest = world.client.dequeue(NS, topic_prefix="", count=100, wait_ms=5_000)
    assert len(some) + len(rest) == 9
    assert not world.client.dequeue(NS, topic_prefix="c", count=100)
    for wrong in (
        lambda: world.client.dequeue(NS, "t", topic_prefix="t"),
        lambda: world.client.dequeue(NS, topic_prefix="x" * 256),
        lambda: world.client.dequeue(NS, topic_prefix="t", count=0),
        lambda: world.admin.set_topic_policy(NS, "t", weight=0),
        lambda: world.admin.set_topic_policy(NS, "t", deliveries_per_second_max=-1),
        lambda: world.admin.set_topic_policy(NS, "t", deliveries_per_second_max=float("nan")),
        lambda: world.admin.set_topic_policy(NS, "t", reason="x" * 513),
        lambda: world.admin.set_topic_policy(NS, "", weight=1),
    ):
        with pytest.raises(foqs.InvalidArgumentError):
            wrong()


def test_a_worker_of_a_prefix_handles_items_of_topics_that_are_new() -> None:
    with MemoryQueue(NS) as queue:
        client, seen = queue.client(), []
        client.enqueue_many(NS, [NewItem(f"mail/{number}", b"x") for number in range(10)] + [NewItem("other", b"y")])
        queue.run_until_idle(
            foqs.Worker(client, NS, handler=lambda item: seen.append(item.topic), topic_prefix="mail/")
        )
        assert sorted(seen) == [f"mail/{number}" for number in range(10)]
        with pytest.raises(foqs.InvalidArgumentError):
            foqs.Worker(client, NS, ["a"], print, topic_prefix="mail/")
        with pytest.raises(foqs.InvalidArgumentError):
            foqs.Worker(client, NS, handler=print)


@pytest.mark.parametrize(
    "place",
    [
        "",
        "/five",
        "postgresql://h/five",
        "mysql://h",
        "mysql://u:p@h/five",
        "mysql://h/five?ssl=1",
        "mysql://127.0.0.1:1/five",
    ],
)
def test_a_shard_is_not_added_where_none_can_be_served(world: World, place: str) -> None:
    with pytest.raises(foqs.InvalidArgumentError):
        world.admin.add_shard(5, place)
    assert [shard.shard_id for shard in world.admin.list_shards()] == [0]


def test_a_shard_is_not_added_at_the_database_of_another_one(world: World) -> None:
    (only,) = world.admin.list_shards()
    with pytest.raises(foqs.InvalidArgumentError, match="that of shard 0, and two shards need two databases"):
        world.admin.add_shard(5, only.place)
    with pytest.raises(foqs.AlreadyExistsError, match="shard 0 exists already"):
        world.admin.add_shard(0, only.place)
    with pytest.raises(foqs.InvalidArgumentError):
        world.admin.add_shard(70_000, only.place)
    assert [shard.shard_id for shard in world.admin.list_shards()] == [0]


def test_the_id_of_an_item_that_is_not_there_is_named(world: World) -> None:
    """A log of many calls has the text of the error alone."""
    gone, kept = world.client.enqueue_many(NS, [NewItem("t", b"x"), NewItem("t", b"y")]).ids
    world.admin.delete_items(NS, gone)
    with pytest.raises(foqs.NotFoundError, match=f"there is no item {gone} in namespace '{NS}'"):
        world.admin.get_item(NS, gone)
    with pytest.raises(BatchError) as deleting:
        world.admin.delete_items(NS, [gone])
    with pytest.raises(BatchError) as redriving:
        world.admin.redrive_dead_letters(NS, "t", ids=[kept, gone])
    assert gone in str(deleting.value.errors[0])
    assert gone in str(redriving.value.errors[1])
    assert gone not in str(redriving.value.errors[0])


def test_a_nack_whose_delay_ends_after_the_ttl_leaves_a_dead_letter_that_says_so(world: World) -> None:
    world.client.enqueue(NS, "t", b"x", ttl_ms=60 * SECOND_MS)
    (item,) = world.client.dequeue(NS, "t", 1, wait_ms=SECOND_MS)
    world.client.nack(NS, [Nack(item.receipt, delay_ms=61 * SECOND_MS)])
    (dead,) = world.dead()
    assert (dead.id, dead.failed_attempts) == (item.id, 1)
    assert dead.death_reason == "nacked, and its TTL ends before its delay"


def test_a_failed_item_that_expires_is_a_dead_letter_and_so_it_is_after_a_redrive(world: World) -> None:
    world.client.enqueue(NS, "t", b"x", ttl_ms=3 * SECOND_MS)
    (item,) = world.client.dequeue(NS, "t", 1, wait_ms=SECOND_MS)
    world.client.nack(NS, [Nack(item.receipt)])
    world.let_pass(8 * SECOND_MS)
    (dead,) = world.dead()
    assert (dead.id, dead.death_reason) == (item.id, "its TTL ended after failed attempts: 1")
    assert world.admin.redrive_dead_letters(NS, "t", ids=[item.id]).count == 1
    world.let_pass(8 * SECOND_MS)
    (dead,) = world.dead()
    assert (dead.failed_attempts, dead.death_reason) == (0, "its TTL ended after it was redriven")


def test_a_lease_that_is_lost_after_the_ttl_leaves_a_dead_letter(world: World) -> None:
    world.client.enqueue(NS, "t", b"x", ttl_ms=2 * SECOND_MS)
    (item,) = world.client.dequeue(NS, "t", 1, wait_ms=SECOND_MS, lease_ms=3 * SECOND_MS)
    world.let_pass(5 * SECOND_MS)
    (dead,) = world.dead()
    assert (dead.id, dead.death_reason) == (item.id, "lease ended, and its TTL ends before another attempt")


def test_what_never_failed_expires_into_the_dead_letters_where_the_namespace_wants_it(world: World) -> None:
    world.client.enqueue(NS, "gone", b"x", ttl_ms=SECOND_MS)
    world.let_pass(6 * SECOND_MS)
    assert world.dead("gone") == []
    assert world.admin.update_namespace(NS, dead_letter_on_expiry=True).settings.dead_letter_on_expiry
    ready = world.client.enqueue(NS, "t", b"x", ttl_ms=SECOND_MS)
    (released,) = world.client.dequeue(NS, "t", 1, wait_ms=SECOND_MS) or [None]
    assert released is not None
    world.client.nack(NS, [Nack(released.receipt, release=True)])
    world.let_pass(6 * SECOND_MS)
    (dead,) = world.dead()
    assert (dead.id, dead.failed_attempts, dead.death_reason) == (ready, 0, "its TTL ended")
    world.admin.update_namespace(NS, dead_letter_on_expiry=False)
