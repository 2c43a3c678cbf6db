"""Consumer groups as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from contextlib import suppress

import pytest

import foqs
from foqs import BatchError, NewItem
from foqs.model.groups import GROUPS_PER_TOPIC_MAX
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.support.waiting import until_given


def taken(world: World, group: str | None = None, topic: str = "t") -> list[bytes]:
    """Take and ack all that is ready."""
    items = world.client.dequeue(NS, topic, 100, group=group)
    assert {(item.topic, item.group) for item in items} <= {(topic, group)}
    world.client.ack(NS, items)
    return [item.payload for item in items]


def create_again(world: World) -> None:
    """Create a deleted group, as soon as its items are deleted."""
    for _ in range(30):
        with suppress(foqs.PausedError):
            world.admin.create_group(NS, "t", "audit")
            return
        world.let_pass(SECOND_MS)
    raise AssertionError("the items of the group were not deleted")


def test_each_group_gets_each_item_that_is_enqueued_after_it_was_created(world: World) -> None:
    world.client.enqueue(NS, "t", b"before")
    for group in ("audit", "stats"):
        created = world.admin.create_group(NS, "t", group)
        assert (created.topic, created.group, created.is_deleted) == ("t", group, False)
    world.client.enqueue_many(NS, [NewItem("t", b"1", 1), NewItem("t", b"0"), NewItem("u", b"other")])
    assert taken(world) == [b"before", b"0", b"1"]
    assert taken(world, "audit") == [b"0", b"1"]
    assert taken(world, "stats") == [b"0", b"1"]
    assert taken(world, topic="u") == [b"other"]
    assert [(one.topic, one.group) for one in world.admin.list_groups(NS)] == [("t", "audit"), ("t", "stats")]


def test_a_group_has_leases_attempts_and_dead_letters_of_its_own(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.client.enqueue(NS, "t", b"x")
    (own,) = world.client.dequeue(NS, "t")
    (copy,) = world.client.dequeue(NS, "t", group="audit")
    world.client.nack(NS, copy, dead_letter=True)
    assert world.dead() == []
    (dead,) = world.admin.list_dead_letters(NS, "t", group="audit").items
    assert (dead.topic, dead.group, dead.payload) == ("t", "audit", b"x")
    world.client.ack(NS, own)
    with pytest.raises(BatchError):
        world.admin.redrive_dead_letters(NS, "t", [dead.id])
    assert world.admin.redrive_dead_letters(NS, "t", group="audit").count == 1
    (again,) = world.client.dequeue(NS, "t", group="audit", wait_ms=SECOND_MS)
    assert again.attempt == 1
    world.client.nack(NS, again, dead_letter=True)
    assert world.admin.purge_dead_letters(NS, "t", group="audit").count == 1
    assert list(world.client.topics(NS)) == []


def test_counts_are_by_group_and_no_call_shows_a_hidden_name(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.client.enqueue_many(NS, [NewItem("t", b"x"), NewItem("t", b"later", delay_ms=60_000)])
    world.client.dequeue(NS, "t", group="audit")
    stats = {(one.topic, one.group): (one.ready, one.delayed, one.leased) for one in world.client.topics(NS)}
    assert stats == {("t", None): (1, 1, 0), ("t", "audit"): (0, 1, 1)}
    stored = list(world.admin.iterate_items(NS))
    assert sorted((one.topic, one.group or "") for one in stored) == [
        ("t", ""),
        ("t", ""),
        ("t", "audit"),
        ("t", "audit"),
    ]
    assert [(one.topic, one.group) for one in world.admin.peek_items(NS, "t", group="audit").items] == [("t", "audit")]


def test_a_group_can_delay_its_copies_and_let_them_expire_earlier(world: World) -> None:
    world.admin.create_group(NS, "t", "late", delay_ms=1_500, ttl_ms=5_000)
    world.client.enqueue(NS, "t", b"x")
    assert taken(world) == [b"x"]
    assert taken(world, "late") == []
    (item,) = world.client.dequeue(NS, "t", group="late", wait_ms=10_000)
    stored = world.admin.get_item(NS, item.id)
    assert stored.deliver_after_ms == stored.enqueued_at_ms + 1_500
    assert stored.expires_at_ms == stored.deliver_after_ms + 5_000


def test_the_id_of_an_item_names_all_its_copies(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    item_id = world.client.enqueue(NS, "t", b"x")
    assert world.admin.get_item(NS, item_id).payload == b"x"
    (own,) = world.client.dequeue(NS, "t")
    world.client.ack(NS, own)
    assert world.admin.get_item(NS, item_id).group == "audit"
    world.admin.delete_items(NS, item_id)
    assert taken(world, "audit") == []
    with pytest.raises(foqs.NotFoundError):
        world.admin.delete_items(NS, item_id)


def test_an_id_names_as_many_copies_as_a_topic_has_groups_and_a_call_as_many_as_an_enqueue(world: World) -> None:
    item_id = world.client.enqueue(NS, "t", b"x")
    for copies in ("+0", "+11", "+ff", "+1+1", "+"):
        with pytest.raises(foqs.InvalidArgumentError):
            world.admin.delete_items(NS, item_id + copies)
    many = [f"0-{key:x}+10" for key in range(1, 17 * 1_000, 17)]
    with pytest.raises(foqs.TooLargeError, match="17000 copies in one call are over the limit of 4000"):
        world.admin.delete_items(NS, many[:1_000])
    assert world.admin.get_item(NS, item_id).payload == b"x"


def test_a_repeat_of_a_dedup_id_makes_no_copy(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    first = world.client.enqueue(NS, "t", b"1", dedup_id="once")
    assert world.client.enqueue(NS, "t", b"2", dedup_id="once") == first
    result = world.client.enqueue_many(NS, [NewItem("t", b"3", dedup_id="twice"), NewItem("t", b"4", dedup_id="twice")])
    assert result.duplicates == [1]
    assert taken(world) == [b"1", b"3"]
    assert taken(world, "audit") == [b"1", b"3"]


def test_a_group_that_was_not_created_is_not_found_and_the_error_names_the_others(world: World) -> None:
    with pytest.raises(foqs.NotFoundError, match=r"no group 'audit': create it first \(its groups: none\)"):
        world.client.dequeue(NS, "t", group="audit")
    world.admin.create_group(NS, "t", "stats")
    with pytest.raises(foqs.NotFoundError, match="'stats'"):
        world.client.dequeue(NS, "t", group="audit")
    with pytest.raises(foqs.NotFoundError):
        world.admin.delete_group(NS, "t", "audit")


@pytest.mark.parametrize("group", ["a\x1fb", "a\x1db", "ü" * 33, "\x00"])
def test_a_bad_name_of_a_group_is_refused_everywhere(world: World, group: str) -> None:
    calls = [
        lambda: world.admin.create_group(NS, "t", group),
        lambda: world.admin.delete_group(NS, "t", group),
        lambda: world.client.dequeue(NS, "t", group=group),
        lambda: world.admin.list_dead_letters(NS, "t", group=group),
        lambda: world.admin.purge_dead_letters(NS, "t", group=group),
        lambda: world.admin.set_topic_policy(NS, "t", group=group, weight=2),
    ]
    for call in calls:
        with pytest.raises(foqs.InvalidArgumentError, match="group"):
            call()


def test_a_topic_and_a_group_that_are_too_long_together_are_refused(world: World) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="256 bytes together"):
        world.admin.create_group(NS, "t" * 250, "audit")


def test_a_group_can_be_created_again_with_the_same_settings_and_not_with_others(world: World) -> None:
    first = world.admin.create_group(NS, "t", "audit", ttl_ms=9_000)
    assert world.admin.create_group(NS, "t", "audit", ttl_ms=9_000) == first
    with pytest.raises(foqs.AlreadyExistsError, match="ttl_ms 9000"):
        world.admin.create_group(NS, "t", "audit")


def test_a_topic_has_so_many_groups_and_no_more(world: World) -> None:
    for number in range(GROUPS_PER_TOPIC_MAX):
        world.admin.create_group(NS, "t", f"g{number}")
    with pytest.raises(foqs.InvalidArgumentError, match="the limit is 16"):
        world.admin.create_group(NS, "t", "one-more")
    assert len(set(world.client.enqueue_many(NS, [NewItem("t", b"")] * 1_000).ids)) == 1_000, "in calls of 235 items"


def test_a_call_whose_copies_have_more_bytes_than_a_frame_is_sent_in_two(world: World) -> None:
    world.admin.update_namespace(NS, payload_bytes_max=1 << 20)
    for number in range(8):
        world.admin.create_group(NS, "t", f"g{number}")
    # A call of nine MiB takes a slow disk so long that its shard takes no other for a moment.
    first = until_given(lambda: world.client.enqueue(NS, "t", b"x" * (1 << 20)), foqs.OverloadedError)
    call = [NewItem("t", b"x" * (1 << 20))] * 2
    ids = until_given(lambda: world.client.enqueue_many(NS, call), foqs.OverloadedError, BatchError).ids
    assert len({first, *ids}) == 3


def test_a_deleted_group_gets_nothing_more_and_loses_what_it_holds(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n) for n in range(5)])
    (leased,) = world.client.dequeue(NS, "t", group="audit")
    world.admin.delete_group(NS, "t", "audit")
    world.client.enqueue(NS, "t", b"5")
    with pytest.raises(foqs.NotFoundError):
        world.client.dequeue(NS, "t", group="audit")
    create_again(world)
    with pytest.raises(foqs.StaleLeaseError):
        world.client.ack(NS, leased)
    assert taken(world, "audit") == []
    assert len(taken(world)) == 6


def test_a_topic_can_be_read_by_its_groups_alone(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.admin.delete_group(NS, "t", "")
    item_id = world.client.enqueue(NS, "t", b"x")
    assert "+" not in item_id
    with pytest.raises(foqs.InvalidArgumentError, match=r"read by its groups alone.*\('audit'\)"):
        world.client.dequeue(NS, "t")
    assert taken(world, "audit") == [b"x"]
    for settings in ({"ttl_ms": 1_000}, {"delay_ms": 1_000}, {"from_queued": True}):
        with pytest.raises(foqs.InvalidArgumentError, match="own group of topic 't' takes no settings"):
            world.admin.create_group(NS, "t", "", **settings)
    for _ in range(2):
        assert world.admin.create_group(NS, "t", "").group == "", "a creation can be repeated"
    world.client.enqueue(NS, "t", b"y")
    assert taken(world) == [b"y"]
    with pytest.raises(foqs.InvalidArgumentError, match="has no group but its own"):
        world.admin.delete_group(NS, "plain", "")


def test_a_call_for_any_topic_gets_the_items_of_no_group_or_of_the_named_one(world: World) -> None:
    for topic, group in (("t", "audit"), ("t", "stats"), ("tu", "audit")):
        world.admin.create_group(NS, topic, group)
    world.client.enqueue_many(NS, [NewItem("t", b"x"), NewItem("tu", b"y"), NewItem("z", b"z")])

    def any_of(prefix: str, group: str | None = None) -> list[tuple[str, str | None, bytes]]:
        items = world.client.dequeue(NS, topic_prefix=prefix, count=10, group=group)
        return sorted([(item.topic, item.group, item.payload) for item in items], key=str)

    assert any_of("tu", "audit") == [("tu", "audit", b"y")]
    assert any_of("", "audit") == [("t", "audit", b"x")]
    assert any_of("", "") == [("t", None, b"x"), ("tu", None, b"y"), ("z", None, b"z")]
    assert any_of("t", "stats") == [("t", "stats", b"x")]
    assert any_of("", "stats") == any_of("", "unknown") == any_of("") == []
    for bad in ("a\x1fb", "x" * 65):
        with pytest.raises(foqs.InvalidArgumentError, match="group"):
            any_of("t", bad)


def test_a_call_for_a_group_of_any_topic_waits_and_learns_why_nothing_comes(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    found = world.client.dequeue(NS, topic_prefix="t", group="audit", want_why=True)
    assert isinstance(found, foqs.Dequeued)
    assert found.why_empty[0].text == "no topic with prefix 't' holds items of group 'audit'"
    world.client.enqueue(NS, "t", b"later", delay_ms=SECOND_MS)
    found = world.client.dequeue(NS, topic_prefix="t", group="audit", want_why=True)
    assert isinstance(found, foqs.Dequeued)
    assert [reason.text for reason in found.why_empty] == ["1 item of topic 't', group 'audit' is not due yet"]
    (item,) = world.client.dequeue(NS, topic_prefix="t", group="audit", wait_ms=5 * SECOND_MS)
    assert (item.group, item.payload) == ("audit", b"later")


def test_a_call_for_a_group_of_any_topic_keeps_to_pauses_and_gets_nothing_of_a_deleted_group(world: World) -> None:
    for topic in ("t", "u"):
        world.admin.create_group(NS, topic, "audit")
    world.client.enqueue_many(NS, [NewItem(topic, topic.encode()) for topic in "tu"] * 3)
    world.admin.set_topic_policy(NS, "t", group="audit", dequeue_paused=True)
    items = world.client.dequeue(NS, topic_prefix="", group="audit", count=2, wait_ms=SECOND_MS)
    assert [item.topic for item in items] == ["u", "u"]
    world.admin.delete_group(NS, "u", "audit")
    world.client.nack(NS, items)
    assert world.client.dequeue(NS, topic_prefix="", group="audit", count=9, wait_ms=3 * SECOND_MS) == []
    world.admin.set_topic_policy(NS, "t", group="audit", dequeue_paused=False)
    items = world.client.dequeue(NS, topic_prefix="", group="audit", count=9, wait_ms=5 * SECOND_MS)
    assert [item.topic for item in items] == ["t", "t", "t"]


def test_workers_and_consumers_read_a_group_of_any_topic(world: World) -> None:
    for topic in ("t", "u"):
        world.admin.create_group(NS, topic, "audit")
    world.client.enqueue_many(NS, [NewItem("t", b"0"), NewItem("u", b"1")])
    seen: list[tuple[str, str | None]] = []
    with world.client.consume(NS, topic_prefix="", group="audit") as items:
        for item in items:
            seen.append((item.topic, item.group))
            item.ack()
            if len(seen) == 2:
                break
    assert sorted(seen) == [("t", "audit"), ("u", "audit")]


def test_a_policy_of_a_group_leaves_the_topic_and_other_groups_alone(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.client.enqueue(NS, "t", b"x")
    policy = world.admin.set_topic_policy(NS, "t", group="audit", dequeue_paused=True, reason="why")
    assert (policy.topic, policy.group, policy.dequeue_paused) == ("t", "audit", True)
    assert world.admin.get_topic_policy(NS, "t", group="audit") == policy
    assert not world.admin.get_topic_policy(NS, "t").dequeue_paused
    assert [(one.topic, one.group) for one in world.admin.list_topic_policies(NS)] == [("t", "audit")]
    with pytest.raises(foqs.PausedError, match=r"'t' of group 'audit' are paused by an operator: why"):
        world.client.dequeue(NS, "t", group="audit")
    assert taken(world) == [b"x"]
    with pytest.raises(foqs.InvalidArgumentError, match="set it without a group"):
        world.admin.set_topic_policy(NS, "t", group="audit", enqueue_paused=True)
    world.admin.set_topic_policy(NS, "t", group="audit", dequeue_paused=False)
    (item,) = world.client.dequeue(NS, "t", group="audit", wait_ms=5_000)
    assert item.payload == b"x"


def test_why_nothing_comes_is_told_of_the_group(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.client.enqueue(NS, "t", b"x")
    world.client.dequeue(NS, "t", group="audit")
    found = world.client.dequeue(NS, "t", group="audit", want_why=True)
    assert isinstance(found, foqs.Dequeued)
    assert "1 item of topic 't', group 'audit' is under lease" in found.why_empty[0].text


def test_a_copy_counts_against_the_quota(world: World) -> None:
    world.admin.update_namespace(NS, enqueues_per_minute_max=6_000)
    for group in ("a", "b"):
        world.admin.create_group(NS, "t", group)
    world.client.enqueue_many(NS, [NewItem("t", b"")] * 1_000)
    left = [NewItem("t", b"")] * 1_001
    with pytest.raises(BatchError) as refused:
        world.client.enqueue_many(NS, left)
    assert {type(error) for error in refused.value.errors.values()} == {foqs.RateLimitedError}


def test_workers_and_consumers_read_a_group(world: World) -> None:
    world.admin.create_group(NS, "t", "audit")
    world.client.enqueue_many(NS, [NewItem("t", b"0"), NewItem("t", b"1", 1)])
    seen: list[tuple[bytes, str | None]] = []
    with world.client.consume(NS, "t", group="audit") as items:
        for item in items:
            seen.append((item.payload, item.group))
            item.ack()
            if len(seen) == 2:
                break
    assert seen == [(b"0", "audit"), (b"1", "audit")]
    assert taken(world) == [b"0", b"1"]
