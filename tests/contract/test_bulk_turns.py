"""Bulk jobs beside each other, and items that cannot be changed now: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any
from unittest.mock import patch

import pytest

import foqs
from foqs import BulkAction, DeliveryPolicy, ItemFilter, ItemState, JobState, NewItem
from foqs.host.registry.kept_gates import SlotGates
from foqs.host.verbs import bulk_acts
from foqs.model.errors import UnavailableError
from tests.contract.queue_world import NS, SECOND_MS, World
from tests.contract.test_bulk import bulk, bury, put, until_over

DEAD = ItemFilter(states=(ItemState.DEAD,))


def die_once(world: World, topic: str, count: int) -> None:
    """Make dead letters that a redrive skips, because they are delivered once at most."""
    put(world, topic, count, delivery=DeliveryPolicy.AT_MOST_ONCE, ttl_ms=SECOND_MS)
    world.admin.set_topic_policy(NS, topic, dead_letter_on_expiry=True)
    for _ in range(60):
        if len(world.admin.list_dead_letters(NS, topic, 1_000).items) == count:
            return
        world.let_pass(SECOND_MS)
    raise AssertionError("they have not died")


def test_a_pause_loses_no_count(world: World) -> None:
    """Neither of items that were skipped, nor of those that were looked at."""
    die_once(world, "t", 15)
    bury(world, "t", 15, "x")
    job = world.admin.create_bulk_job(NS, BulkAction.REDRIVE, ItemFilter(topics=("t",)), items_per_second_max=4)
    for _ in range(40):
        if bulk(world.admin.get_job(NS, job.id)).matched > 5:
            break
        world.let_pass(SECOND_MS // 4)
    world.admin.update_job(NS, job.id, state=JobState.PAUSED)
    world.let_pass(3 * SECOND_MS)
    paused = bulk(world.admin.get_job(NS, job.id))
    left = len(world.admin.list_dead_letters(NS, "t", 100).items)
    assert (paused.done, paused.matched) == (30 - left, paused.done + paused.skipped)
    assert not paused.is_recounted
    world.admin.update_job(NS, job.id, state=JobState.RUNNING, items_per_second_max=1_000)
    ended = bulk(until_over(world, job))
    assert (ended.matched, ended.done, ended.skipped, ended.examined) == (30, 15, 15, 30)
    assert not ended.is_recounted


def test_items_behind_a_gate_are_passed_over_and_come_again(world: World) -> None:
    world.admin.set_topic_policy(NS, "serial", serial=True)
    for n in range(3):
        put(world, "serial", 1)
        (item,) = world.client.dequeue(NS, "serial", 1, wait_ms=SECOND_MS)
        world.client.nack(NS, item, dead_letter=True, reason=f"no card {n}")
    bury(world, "t", 20, "no card")
    is_open, take_turn = [False], SlotGates._take_turn

    async def refused(self: SlotGates, shard_id: int, slot: int) -> None:
        if not is_open[0]:
            raise UnavailableError("the slot moves", nothing_done=True)
        await take_turn(self, shard_id, slot)

    with patch.object(SlotGates, "_take_turn", refused), patch.object(bulk_acts, "CLOSED_S", 0.5):
        job = world.admin.create_bulk_job(NS, BulkAction.REDRIVE, DEAD)
        world.let_pass(4 * SECOND_MS)
        waits = world.admin.get_job(NS, job.id)
        assert (waits.state, bulk(waits).done, bulk(waits).matched) == (JobState.RUNNING, 20, 20)
        assert "items wait: the slot moves" in bulk(waits).error
        assert len(world.dead("serial")) == 3
        is_open[0] = True
        ended = until_over(world, job)
    assert (ended.state, bulk(ended).done, bulk(ended).matched) == (JobState.SUCCEEDED, 23, 23)
    assert (bulk(ended).error, bulk(ended).examined) == ("", 23)


def test_a_job_with_items_that_wait_is_paused_and_resumed(world: World) -> None:
    world.admin.set_topic_policy(NS, "serial", serial=True)
    put(world, "serial", 1)
    (item,) = world.client.dequeue(NS, "serial", 1, wait_ms=SECOND_MS)
    world.client.nack(NS, item, dead_letter=True)
    bury(world, "t", 4, "x")

    async def refused(self: SlotGates, shard_id: int, slot: int) -> None:
        raise UnavailableError("the slot moves", nothing_done=True)

    with patch.object(SlotGates, "_take_turn", refused):
        job = world.admin.create_bulk_job(NS, BulkAction.REDRIVE, DEAD)
        world.let_pass(3 * SECOND_MS)
        world.admin.update_job(NS, job.id, state=JobState.PAUSED)
        world.let_pass(2 * SECOND_MS)
        paused = bulk(world.admin.get_job(NS, job.id))
        assert (paused.done, paused.matched, paused.is_recounted) == (4, 4, False)
    with patch.object(bulk_acts, "CLOSED_S", 0.0):
        world.admin.update_job(NS, job.id, state=JobState.RUNNING)
        ended = bulk(until_over(world, job))
    assert (ended.done, ended.matched, ended.is_recounted) == (5, 5, False)


def test_jobs_that_wait_for_their_rates_hold_up_no_other_one(world: World) -> None:
    put(world, "slow", 200)
    put(world, "t", 30)
    slow = [
        world.admin.create_bulk_job(NS, BulkAction.DELETE, ItemFilter(topics=("slow",)), items_per_second_max=1)
        for _ in range(8)
    ]
    world.let_pass(2 * SECOND_MS)
    job = world.admin.create_bulk_job(NS, BulkAction.COUNT, ItemFilter(topics=("t",)))
    for _ in range(6):
        world.let_pass(SECOND_MS // 2)
        job = world.admin.get_job(NS, job.id)
        if job.state is not JobState.RUNNING:
            break
    assert (job.state, bulk(job).matched) == (JobState.SUCCEEDED, 30)
    for one in slow:
        assert world.admin.update_job(NS, one.id, state=JobState.CANCELLED).state is JobState.CANCELLED


def test_jobs_beside_each_other_keep_their_rates(world: World) -> None:
    put(world, "a", 400)
    put(world, "b", 400)
    jobs = [
        world.admin.create_bulk_job(NS, BulkAction.DELETE, ItemFilter(topics=(topic,)), items_per_second_max=rate)
        for topic, rate in (("a", 20), ("b", 60))
    ]
    world.let_pass(2 * SECOND_MS)
    before = [bulk(world.admin.get_job(NS, job.id)).done for job in jobs]
    world.let_pass(4 * SECOND_MS)
    after = [bulk(world.admin.get_job(NS, job.id)).done for job in jobs]
    rates = [(late - early) / 4 for early, late in zip(before, after, strict=True)]
    assert 8 <= rates[0] <= 32
    assert 24 <= rates[1] <= 96
    for job in jobs:
        world.admin.update_job(NS, job.id, state=JobState.CANCELLED)


def test_a_repeated_call_is_one_job(world: World) -> None:
    """The id is known to the caller before it sends the call."""
    bury(world, "t", 6, "no card")
    job_id = foqs.new_bulk_job_id()
    until_ms = world.dead("t")[0].died_at_ms + 60 * SECOND_MS  # type: ignore[operator]
    given: dict[str, Any] = {"deliver_after_ms": until_ms, "job_id": job_id}
    first = world.admin.create_bulk_job(NS, BulkAction.REDRIVE, DEAD, **given)
    ended = until_over(world, first)
    again = world.admin.create_bulk_job(NS, BulkAction.REDRIVE, DEAD, **given)
    assert (again.id, again.state, bulk(again).done) == (job_id, JobState.SUCCEEDED, bulk(ended).done)
    undo_id = foqs.new_bulk_job_id()
    undone = until_over(world, world.admin.undo_bulk_job(NS, job_id, job_id=undo_id))
    again = world.admin.undo_bulk_job(NS, job_id, job_id=undo_id)
    assert (again.id, bulk(again).done, bulk(undone).done) == (undo_id, 6, 6)
    with pytest.raises(foqs.AlreadyExistsError):
        world.admin.create_bulk_job(NS, BulkAction.REDRIVE, DEAD, job_id=job_id)


def test_items_are_looked_at_once_whatever_the_pages_are(world: World) -> None:
    """A low rate takes up a page in parts."""
    for n in range(3):
        world.client.enqueue_many(NS, [NewItem(f"t{m % 2}", b"%d" % (m % 3)) for m in range(n, 30)])
    job = world.admin.create_bulk_job(NS, BulkAction.DELETE, ItemFilter(payload_contains=b"1"), items_per_second_max=20)
    ended = bulk(until_over(world, job))
    assert (ended.examined, ended.of_items) == (87, 87)
    assert ended.matched == ended.done == 29
