"""Groups that begin with the items that wait, as users see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress

import pytest

import foqs
from foqs import JobState, NewItem, TopicGroup
from tests.contract.queue_world import NS, SECOND_MS, World


def until_copied(world: World, made: TopicGroup) -> foqs.Job:
    """Return the record of the job once it has ended."""
    for _ in range(60):
        job = world.admin.get_job(NS, made.copy_job)
        if job.state is not JobState.RUNNING:
            return job
        world.let_pass(SECOND_MS)
    raise AssertionError(f"the job still runs: {job}")


def create(world: World, group: str = "audit", topic: str = "t") -> TopicGroup:
    made = world.admin.create_group(NS, topic, group, from_queued=True)
    assert made.copy_job
    assert made.is_copying
    return made


def taken(world: World, group: str | None = "audit", topic: str = "t") -> list[bytes]:
    items = world.client.dequeue(NS, topic, 1_000, group=group)
    world.client.ack(NS, items)
    return [item.payload for item in items]


def test_the_items_that_are_unfinished_are_copied_once_and_later_ones_come_once(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n, n) for n in range(5)])
    world.client.enqueue(NS, "other", b"other")
    first, second, third = world.client.dequeue(NS, "t", 3)
    world.client.ack(NS, first)
    world.client.nack(NS, second, dead_letter=True)
    made = create(world)
    world.client.enqueue(NS, "t", b"later", priority=9)
    job = until_copied(world, made)
    assert (job.state, job.items_count) == (JobState.SUCCEEDED, 3)
    assert "'t'" in job.detail
    assert "'audit'" in job.detail
    assert taken(world) == [b"2", b"3", b"4", b"later"]
    assert taken(world, None) == [b"3", b"4", b"later"]
    world.client.ack(NS, third)
    (group,) = world.admin.list_groups(NS)
    assert (group.copy_job, group.is_copying) == (made.copy_job, False)
    assert [(one.topic, one.group) for one in world.client.topics(NS)] == [("other", None), ("t", None)]


def test_copies_keep_the_times_at_which_their_items_are_due_and_expire_and_begin_with_no_attempt(world: World) -> None:
    delayed = world.client.enqueue(NS, "t", b"delayed", delay_ms=5_000, ttl_ms=60_000, metadata=b"m")
    failed = world.client.enqueue(NS, "t", b"failed", ttl_ms=50_000)
    (item,) = world.client.dequeue(NS, "t")
    world.client.nack(NS, item)
    before = {one: world.admin.get_item(NS, one) for one in (delayed, failed)}
    until_copied(world, create(world))
    copies = {one.payload: one for one in world.admin.iterate_items(NS) if one.group == "audit"}
    assert copies.keys() == {b"delayed", b"failed"}
    for one in before.values():
        copy = copies[one.payload]
        assert (copy.deliver_after_ms, copy.expires_at_ms, copy.metadata) == (
            one.deliver_after_ms,
            one.expires_at_ms,
            one.metadata,
        )
        assert copy.failed_attempts == 0
    items = world.client.dequeue(NS, "t", 9, group="audit", wait_ms=SECOND_MS)
    assert [(item.payload, item.attempt) for item in items] == [(b"failed", 1)]
    (late,) = world.client.dequeue(NS, "t", 9, group="audit", wait_ms=10_000)
    assert (late.payload, late.metadata) == (b"delayed", b"m")


def test_many_items_are_copied_in_order_and_large_ones_too(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%04d" % n, n % 7) for n in range(730)])
    world.client.enqueue_many(NS, [NewItem("t", bytes([n]) * 10_000, 8) for n in range(20)])
    job = until_copied(world, create(world))
    assert job.items_count == 750
    payloads = taken(world)
    assert len(payloads) == 750
    assert payloads == taken(world, None)
    assert Counter(payloads).most_common(1)[0][1] == 1


def test_a_copy_that_an_operator_ends_leaves_what_it_has_copied(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n) for n in range(900)])
    made = create(world)
    world.admin.update_job(NS, made.copy_job, items_per_second_max=10)
    with suppress(foqs.FoqsError):
        world.let_pass(2 * SECOND_MS)
    job = world.admin.update_job(NS, made.copy_job, state=JobState.FAILED)
    world.let_pass(3 * SECOND_MS)
    (group,) = world.admin.list_groups(NS)
    assert not group.is_copying
    count = len(taken(world))
    world.let_pass(5 * SECOND_MS)
    assert taken(world) == []
    assert count <= 1_000
    assert world.admin.get_job(NS, made.copy_job).state is JobState.FAILED
    assert job.items_count <= count
    for state in (JobState.RUNNING, JobState.SUCCEEDED):
        with pytest.raises(foqs.InvalidArgumentError, match="FAILED ends it early"):
            world.admin.update_job(NS, made.copy_job, state=state)
    with pytest.raises(foqs.AlreadyExistsError, match="delete the group and create it again"):
        world.admin.create_group(NS, "t", "audit", from_queued=True)
    world.client.enqueue(NS, "t", b"later")
    assert taken(world) == [b"later"]


def test_a_group_that_is_deleted_while_items_are_copied_ends_its_job(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n) for n in range(900)])
    made = create(world)
    world.admin.delete_group(NS, "t", "audit")
    assert world.admin.get_job(NS, made.copy_job).state in (JobState.FAILED, JobState.SUCCEEDED)
    for _ in range(60):
        with suppress(foqs.PausedError):
            again = create(world)
            break
        world.let_pass(SECOND_MS)
    assert again.copy_job != made.copy_job
    assert until_copied(world, again).items_count == 900
    assert len(taken(world)) == 900


def test_a_creation_can_be_repeated_and_not_with_other_wishes(world: World) -> None:
    world.client.enqueue(NS, "t", b"x")
    made = create(world)
    again = world.admin.create_group(NS, "t", "audit", from_queued=True)
    assert again.copy_job == made.copy_job
    until_copied(world, made)
    assert not world.admin.create_group(NS, "t", "audit", from_queued=True).is_copying
    assert taken(world) == [b"x"]
    with pytest.raises(foqs.AlreadyExistsError, match="from_queued True"):
        world.admin.create_group(NS, "t", "audit")
    world.admin.create_group(NS, "t", "stats")
    with pytest.raises(foqs.AlreadyExistsError, match="from_queued False"):
        world.admin.create_group(NS, "t", "stats", from_queued=True)


def test_a_third_group_of_a_namespace_waits_until_a_copy_has_ended(world: World) -> None:
    count, made = 1_200, []  # More than are copied before a job is slowed down.
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n) for n in range(count)])
    for group in ("a", "b"):
        made.append(create(world, group))
        world.admin.update_job(NS, made[-1].copy_job, items_per_second_max=1)
    with pytest.raises(foqs.OverloadedError, match=f"2 new groups of namespace '{NS}'"):
        world.admin.create_group(NS, "t", "c", from_queued=True)
    for one in made:
        world.admin.update_job(NS, one.copy_job, items_per_second_max=0)
        until_copied(world, one)
    assert until_copied(world, create(world, "c")).items_count == count


def test_a_topic_without_items_is_copied_at_once(world: World) -> None:
    job = until_copied(world, create(world))
    assert (job.state, job.items_count) == (JobState.SUCCEEDED, 0)
