"""Bulk jobs, as operators see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import foqs
from foqs import BulkAction, BulkState, ItemFilter, ItemState, JobState, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World

ALL = ItemFilter()


def until_over(world: World, job: foqs.Job) -> foqs.Job:
    """Return the record of the job once it has ended or paused."""
    for _ in range(120):
        job = world.admin.get_job(NS, job.id)
        if job.state is not JobState.RUNNING:
            return job
        world.let_pass(SECOND_MS // 2)
    raise AssertionError(f"the job still runs: {job}")


def run(world: World, action: BulkAction, chosen: ItemFilter = ALL, **more: Any) -> foqs.Job:
    return until_over(world, world.admin.create_bulk_job(NS, action, chosen, **more))


def bulk(job: foqs.Job) -> BulkState:
    assert job.bulk is not None
    return job.bulk


def put(world: World, topic: str, count: int, **fields: object) -> list[str]:
    return list(world.client.enqueue_many(NS, [NewItem(topic, b"%d" % n, **fields) for n in range(count)]).ids)  # type: ignore[arg-type]


def bury(world: World, topic: str, count: int, reason: str, **fields: object) -> None:
    put(world, topic, count, **fields)
    items = world.client.dequeue(NS, topic, count)
    assert len(items) == count
    world.client.nack(NS, items, dead_letter=True, reason=reason)


def test_a_count_of_all_counts_items_in_each_state_but_under_lease(world: World) -> None:
    put(world, "t", 5)
    put(world, "later", 3, delay_ms=60_000)
    bury(world, "dead", 4, "no card")
    put(world, "held", 2)
    assert len(world.client.dequeue(NS, "held", 2)) == 2
    job = run(world, BulkAction.COUNT)
    assert (job.state, job.items_count) == (JobState.SUCCEEDED, 12)
    assert (bulk(job).matched, bulk(job).done, bulk(job).skipped) == (12, 0, 0)
    leased = run(world, BulkAction.COUNT, ItemFilter(states=(ItemState.LEASED,)))
    assert bulk(leased).matched == 2


def test_a_delete_deletes_what_matches_and_nothing_else(world: World) -> None:
    put(world, "t", 5)
    put(world, "u", 4)
    job = run(world, BulkAction.DELETE, ItemFilter(topics=("t",)))
    assert (bulk(job).matched, bulk(job).done, bulk(job).skipped, bulk(job).failed) == (5, 5, 0, 0)
    assert job.items_count == 5
    assert world.payloads("t") == []
    assert len(world.payloads("u")) == 4
