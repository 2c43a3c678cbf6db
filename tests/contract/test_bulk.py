"""Bulk jobs, as operators see them: of a MemoryQueue as of a host with MySQL."""

from __future__ import annotations

from typing import Any

import pytest

import foqs
from foqs import BulkAction, BulkState, DeliveryPolicy, ItemFilter, ItemState, JobState, NewItem
from tests.contract.queue_world import NS, SECOND_MS, World

ALL = ItemFilter()
T = ItemFilter(topics=("t",))


def until_over(world: World, job: foqs.Job) -> foqs.Job:
    """Return the record of the job once it has ended or paused."""
    for _ in range(120):
        job = world.admin.get_job(NS, job.id)
        if job.state is not JobState.RUNNING:
            return job
        world.let_pass(SECOND_MS // 2)
    raise AssertionError(f"the job still runs: {job}")


def run(world: World, action: BulkAction, chosen: ItemFilter = ALL, **more: Any) -> foqs.Job:
    if action is BulkAction.DELETE and chosen == ALL:
        more["all_items"] = True
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


def test_dead_letters_are_redriven_by_the_text_of_their_errors(world: World) -> None:
    bury(world, "t", 5, "ValueError: no card")
    bury(world, "t", 3, "timeout of the bank")
    bury(world, "u", 2, "a timeout")
    job = run(world, BulkAction.REDRIVE, ItemFilter(error_contains="timeout", topics=("t",)))
    assert (bulk(job).matched, bulk(job).done, bulk(job).skipped) == (3, 3, 0)
    assert (bulk(job).examined, bulk(job).of_items, bulk(job).shards_done) == (8, 8, bulk(job).shards)
    assert not bulk(job).is_recounted
    assert len(world.payloads("t")) == 3
    assert {one.death_reason for one in world.dead("t")} == {"dead-lettered by its consumer: ValueError: no card"}
    assert len(world.dead("u")) == 2
    again = run(world, BulkAction.COUNT, ItemFilter(error_contains="timeout", states=(ItemState.DEAD,)))
    assert bulk(again).matched == 2


def test_a_redriven_item_begins_anew_with_its_failures(world: World) -> None:
    bury(world, "t", 1, "no card")
    run(world, BulkAction.REDRIVE)
    (stored,) = world.admin.peek_items(NS, "t").items
    assert (stored.failed_attempts, stored.state) == (0, ItemState.READY)
    assert [failure.reason for failure in stored.errors] == ["no card"]


def test_items_that_are_delivered_once_are_not_redriven(world: World) -> None:
    put(world, "t", 2, delivery=DeliveryPolicy.AT_MOST_ONCE, ttl_ms=SECOND_MS)
    world.admin.set_topic_policy(NS, "t", dead_letter_on_expiry=True)
    for _ in range(60):
        if len(world.dead("t")) == 2:
            break
        world.let_pass(SECOND_MS)
    bury(world, "t", 1, "x")
    job = run(world, BulkAction.REDRIVE, ItemFilter(topics=("t",)))
    assert (bulk(job).matched, bulk(job).done, bulk(job).skipped) == (3, 1, 2)
    assert len(world.dead("t")) == 2


FILTERS = [
    ItemFilter(states=(ItemState.DEAD, ItemState.DELAYED)),
    ItemFilter(states=tuple(ItemState)),
    ItemFilter(topic_prefix="mail"),
    ItemFilter(topics=("mail.a", "slow"), states=tuple(ItemState)),
    ItemFilter(priority_min=1, priority_max=2, states=tuple(ItemState)),
    ItemFilter(attempts_min=1),
    ItemFilter(attempts_max=0, states=(ItemState.READY,)),
    ItemFilter(error_contains="bank"),
    ItemFilter(error_contains="lease", states=(ItemState.DEAD,)),
    ItemFilter(metadata_contains=b"eu"),
    ItemFilter(payload_contains=b"3", states=tuple(ItemState)),
    ItemFilter(payload_contains=b"\x00"),
    ItemFilter(topics=("nobody",)),
]


def has(chosen: ItemFilter, one: foqs.StoredItem) -> bool:
    """The filter once more, by the items as an export shows them."""
    states = chosen.states or (ItemState.READY, ItemState.DELAYED, ItemState.DEAD)
    texts = [one.death_reason or "", *[failure.reason for failure in one.errors]]
    return (
        one.state in states
        and (not chosen.topics or one.topic in chosen.topics)
        and one.topic.startswith(chosen.topic_prefix)
        and one.priority >= (chosen.priority_min if chosen.priority_min is not None else -(1 << 31))
        and one.priority <= (chosen.priority_max if chosen.priority_max is not None else 1 << 31)
        and one.failed_attempts >= (chosen.attempts_min or 0)
        and (chosen.attempts_max is None or one.failed_attempts <= chosen.attempts_max)
        and any(chosen.error_contains in text for text in texts)
        and chosen.metadata_contains in one.metadata
        and chosen.payload_contains in one.payload
        and one.enqueued_at_ms >= (chosen.enqueued_after_ms or 0)
        and one.enqueued_at_ms < (chosen.enqueued_before_ms or 1 << 62)
        and (chosen.died_after_ms is None or (one.died_at_ms or 0) >= chosen.died_after_ms)
        and (chosen.died_before_ms is None or (one.died_at_ms or 1 << 62) < chosen.died_before_ms)
    )


def many_kinds(world: World) -> None:
    for n in range(24):
        topic, metadata = ("mail.a", "mail.b", "slow")[n % 3], (b"", b"eu", b"us")[n % 2]
        delay_ms = 90_000 if n % 5 == 0 else None
        world.client.enqueue(NS, topic, b"%d" % n, priority=n % 4, metadata=metadata, delay_ms=delay_ms)
        if n == 11:
            world.let_pass(SECOND_MS)
    for at, item in enumerate(world.client.dequeue(NS, "mail.a", 5)):
        if at % 2:
            world.client.nack(NS, item, dead_letter=at > 2, reason="the bank is closed", delay_ms=0)
    for item in world.client.dequeue(NS, "slow", 2):
        world.client.nack(NS, item, dead_letter=True, reason="slow")


def test_counts_of_filters_are_those_of_all_items_one_by_one(world: World) -> None:
    many_kinds(world)
    items = list(world.admin.iterate_items(NS))
    assert len(items) == 24
    assert {one.state for one in items} == set(ItemState)
    times = sorted({one.enqueued_at_ms for one in items})
    died = sorted({one.died_at_ms for one in items if one.died_at_ms is not None})
    more = [
        ItemFilter(enqueued_after_ms=times[-1]),
        ItemFilter(enqueued_before_ms=times[-1], states=tuple(ItemState)),
        ItemFilter(died_after_ms=died[-1]),
        ItemFilter(died_before_ms=died[-1] + 1),
        ItemFilter(died_before_ms=died[0]),
    ]
    for chosen in FILTERS + more:
        job = run(world, BulkAction.COUNT, chosen)
        assert bulk(job).matched == sum(has(chosen, one) for one in items), chosen
    found = {chosen: sum(has(chosen, one) for one in items) for chosen in FILTERS}
    assert sum(0 < count < 24 for count in found.values()) > 8, "filters that choose something"


def test_ids_are_a_filter_that_others_narrow(world: World) -> None:
    ids = put(world, "t", 6)
    (other,) = put(world, "u", 1)
    gone = "0-ffffffffffffff"
    job = run(world, BulkAction.DELETE, ItemFilter(ids=(*ids[1:4], other, gone), topics=("t",), payload_contains=b"2"))
    assert (bulk(job).matched, bulk(job).done) == (1, 1)
    job = run(world, BulkAction.DELETE, ItemFilter(ids=(ids[0], *ids[1:4], other, gone)))
    assert (bulk(job).matched, bulk(job).done) == (4, 4)
    assert sorted(world.payloads("t")) == [b"4", b"5"]


def test_leased_items_are_deleted_only_by_their_state(world: World) -> None:
    put(world, "t", 4)
    held = world.client.dequeue(NS, "t", 2)
    assert bulk(run(world, BulkAction.DELETE)).done == 2
    assert bulk(run(world, BulkAction.DELETE, ItemFilter(states=(ItemState.LEASED,)))).done == 2
    with pytest.raises(foqs.BatchError):
        world.client.ack(NS, held)


def test_a_job_stops_at_its_most_items_and_is_not_resumed(world: World) -> None:
    put(world, "t", 30)
    job = run(world, BulkAction.DELETE, items_max=12)
    assert (job.state, bulk(job).matched, bulk(job).done) == (JobState.PAUSED, 12, 12)
    assert "items_max, which is 12" in bulk(job).error
    assert len(world.admin.peek_items(NS, "t", 100).items) == 18
    with pytest.raises(foqs.InvalidArgumentError, match="items_max"):
        world.admin.update_job(NS, job.id, state=JobState.RUNNING)
    assert world.admin.update_job(NS, job.id, state=JobState.CANCELLED).state is JobState.CANCELLED
    exact = run(world, BulkAction.DELETE, items_max=18)
    assert (exact.state, bulk(exact).done) == (JobState.SUCCEEDED, 18)


def slow_job(world: World, count: int = 40, per_second: int = 5) -> foqs.Job:
    put(world, "t", count)
    job = world.admin.create_bulk_job(NS, BulkAction.DELETE, all_items=True, items_per_second_max=per_second)
    for _ in range(40):
        job = world.admin.get_job(NS, job.id)
        if bulk(job).done:
            return job
        world.let_pass(SECOND_MS // 4)
    raise AssertionError(f"nothing is done: {job}")


def left(world: World) -> int:
    return len(world.admin.peek_items(NS, "t", 1_000).items)


def test_a_job_keeps_its_rate_pauses_and_is_resumed(world: World) -> None:
    job = slow_job(world)
    assert left(world) >= 20
    assert world.admin.update_job(NS, job.id, state=JobState.PAUSED).state is JobState.PAUSED
    world.let_pass(2 * SECOND_MS)
    stands = left(world)
    world.let_pass(3 * SECOND_MS)
    assert left(world) == stands
    paused = world.admin.get_job(NS, job.id)
    assert (bulk(paused).matched, bulk(paused).done) == (40 - stands, 40 - stands)
    world.admin.update_job(NS, job.id, state=JobState.RUNNING, items_per_second_max=1_000)
    job = until_over(world, job)
    assert (job.state, bulk(job).matched, bulk(job).done, left(world)) == (JobState.SUCCEEDED, 40, 40, 0)
    assert not bulk(job).is_recounted


def test_a_cancelled_job_stops_for_good_and_its_counts_are_exact(world: World) -> None:
    job = slow_job(world)
    world.admin.update_job(NS, job.id, state=JobState.CANCELLED)
    world.let_pass(2 * SECOND_MS)
    stands = left(world)
    world.let_pass(3 * SECOND_MS)
    cancelled = world.admin.get_job(NS, job.id)
    assert (cancelled.state, left(world)) == (JobState.CANCELLED, stands)
    assert bulk(cancelled).done == 40 - stands > 0
    for state in (JobState.RUNNING, JobState.PAUSED):
        with pytest.raises(foqs.InvalidArgumentError, match="is CANCELLED"):
            world.admin.update_job(NS, job.id, state=state)


def test_only_hosts_end_a_bulk_job_and_only_bulk_jobs_pause(world: World) -> None:
    job = run(world, BulkAction.COUNT)
    for state in (JobState.SUCCEEDED, JobState.FAILED):
        with pytest.raises(foqs.InvalidArgumentError, match="hosts do bulk job"):
            world.admin.update_job(NS, job.id, state=state)
    world.admin.create_job(NS, "load")
    for state in (JobState.PAUSED, JobState.CANCELLED):
        with pytest.raises(foqs.InvalidArgumentError, match="is no bulk job"):
            world.admin.update_job(NS, "load", state=state)
    assert world.admin.get_job(NS, "load").bulk is None
    assert [one.bulk for one in world.admin.list_jobs(NS).jobs] == [None, None]


def test_a_delayed_redrive_can_be_undone_until_its_items_are_delivered(world: World) -> None:
    bury(world, "t", 5, "no card")
    before = {one.id: one.death_reason for one in world.dead()}
    until_ms = world.dead()[0].died_at_ms + 20 * SECOND_MS  # type: ignore[operator]
    others = [NewItem("t", b"other", deliver_after_ms=until_ms) for _ in range(3)]
    world.client.enqueue_many(NS, others)
    job = run(world, BulkAction.REDRIVE, deliver_after_ms=until_ms)
    assert (bulk(job).done, world.dead(), world.payloads()) == (5, [], [])
    assert bulk(job).work.deliver_after_ms == until_ms
    world.client.enqueue_many(NS, others)
    undo = until_over(world, world.admin.undo_bulk_job(NS, job.id))
    assert (undo.state, bulk(undo).matched, bulk(undo).done) == (JobState.SUCCEEDED, 5, 5)
    assert {one.id: one.death_reason for one in world.dead()} == before
    again = until_over(world, world.admin.undo_bulk_job(NS, job.id))
    assert bulk(again).matched == 0
    assert {one.payload for one in world.client.dequeue(NS, "t", 10, wait_ms=25 * SECOND_MS)} == {b"other"}
    with pytest.raises(foqs.InvalidArgumentError, match="cannot be undone any more"):
        world.admin.undo_bulk_job(NS, job.id)


def test_an_undo_takes_back_its_own_job_alone_and_cancels_it(world: World) -> None:
    bury(world, "t", 30, "slow")
    bury(world, "u", 4, "other")
    until_ms = world.dead()[0].died_at_ms + 20 * SECOND_MS  # type: ignore[operator]
    other = run(world, BulkAction.REDRIVE, ItemFilter(topics=("u",)), deliver_after_ms=until_ms)
    job = world.admin.create_bulk_job(
        NS, BulkAction.REDRIVE, ItemFilter(topics=("t",)), deliver_after_ms=until_ms, items_per_second_max=4
    )
    assert bulk(job).work.deliver_after_ms != bulk(other).work.deliver_after_ms
    while not (done := bulk(world.admin.get_job(NS, job.id)).done):
        world.let_pass(SECOND_MS // 4)
    assert 0 < done < 30
    undo = until_over(world, world.admin.undo_bulk_job(NS, job.id))
    cancelled = world.admin.get_job(NS, job.id)
    assert cancelled.state is JobState.CANCELLED
    assert bulk(undo).done == bulk(cancelled).done
    assert len(world.admin.list_dead_letters(NS, "t", 100).items) == 30
    assert len(world.client.dequeue(NS, "u", 10, wait_ms=25 * SECOND_MS)) == 4


def test_what_cannot_be_undone_is_refused(world: World) -> None:
    bury(world, "t", 1, "x")
    for job in (run(world, BulkAction.COUNT), run(world, BulkAction.REDRIVE)):
        with pytest.raises(foqs.InvalidArgumentError, match="only a redrive with a deliver_after_ms"):
            world.admin.undo_bulk_job(NS, job.id)
    for missing in ("bulk-" + "0" * 20, "load"):
        with pytest.raises(foqs.NotFoundError, match="has no job"):
            world.admin.undo_bulk_job(NS, missing)


def test_items_that_die_behind_the_beginning_are_not_redriven(world: World) -> None:
    """Neither those that the job has redriven itself, nor others."""
    bury(world, "t", 20, "x")
    put(world, "late", 5)
    job = world.admin.create_bulk_job(NS, BulkAction.REDRIVE, items_per_second_max=4)
    deaths = 0
    for _ in range(100):
        world.let_pass(SECOND_MS // 4)
        for item in world.client.dequeue(NS, "t", 20):
            world.client.nack(NS, item, dead_letter=True, reason="again")
            deaths += 1
        if deaths > 4:  # Later than in the millisecond of the beginning.
            for item in world.client.dequeue(NS, "late", 5):
                world.client.nack(NS, item, dead_letter=True, reason="late")
        if world.admin.get_job(NS, job.id).state is not JobState.RUNNING:
            break
    job = until_over(world, job)
    assert (bulk(job).done, deaths + len(world.payloads("t", 20))) == (20, 20)
    assert len(world.dead("late")) == 5


def test_too_many_jobs_are_refused_until_one_has_ended(world: World) -> None:
    put(world, "t", 50)
    jobs = [world.admin.create_bulk_job(NS, BulkAction.DELETE, T, items_per_second_max=1) for _ in range(10)]
    with pytest.raises(foqs.OverloadedError, match="10 bulk jobs run in the namespace"):
        world.admin.create_bulk_job(NS, BulkAction.COUNT)
    world.admin.create_namespace("other")
    world.admin.create_bulk_job("other", BulkAction.COUNT)
    world.admin.update_job(NS, jobs[0].id, state=JobState.PAUSED)
    run_by_hand = world.admin.create_bulk_job(NS, BulkAction.COUNT)
    with pytest.raises(foqs.OverloadedError):
        world.admin.update_job(NS, jobs[0].id, state=JobState.RUNNING)
    for job in [*jobs, run_by_hand]:
        if world.admin.get_job(NS, job.id).state is JobState.RUNNING:
            world.admin.update_job(NS, job.id, state=JobState.CANCELLED)


def test_items_of_ordering_keys_are_redriven_in_their_turn(world: World) -> None:
    world.client.enqueue_many(NS, [NewItem("t", b"%d" % n, ordering_key=f"k{n % 3}") for n in range(9)])
    died = 0
    while died < 9:
        for item in world.client.dequeue(NS, "t", 9):
            world.client.nack(NS, item, dead_letter=True, reason="x")
            died += 1
    job = run(world, BulkAction.REDRIVE, ItemFilter(topics=("t",)))
    assert (bulk(job).matched, bulk(job).done) == (9, 9)
    taken: list[bytes] = []
    while len(taken) < 9:
        items = world.client.dequeue(NS, "t", 9, wait_ms=5 * SECOND_MS)
        assert items
        taken += [item.payload for item in items]
        world.client.ack(NS, items)
    for key in range(3):
        assert [one for one in taken if int(one) % 3 == key] == [b"%d" % n for n in range(key, 9, 3)]


LONG, MANY = tuple(f"{n:0>250}" for n in range(100)), tuple(f"fff-{n:x}ffffffffff" for n in range(1, 1_001))
BAD: list[tuple[str, dict[str, Any]]] = [
    ("exclude each other", {"chosen": ItemFilter(topics=("t",), topic_prefix="u")}),
    ("101 topics", {"chosen": ItemFilter(topics=tuple(f"t{n}" for n in range(101)))}),
    ("1001 ids", {"chosen": ItemFilter(ids=("0-1",) * 1_001)}),
    ("neither an item id", {"chosen": ItemFilter(ids=("nope",))}),
    ("is a receipt", {"chosen": ItemFilter(ids=("0-1:1",))}),
    ("error_contains of 501 bytes", {"chosen": ItemFilter(error_contains="x" * 501)}),
    ("payload_contains of 1025 bytes", {"chosen": ItemFilter(payload_contains=b"x" * 1_025)}),
    ("priority_min", {"chosen": ItemFilter(attempts_min=0, priority_min=0), "items_max": -1, "match": "items_max"}),
    ("enqueued_after_ms", {"chosen": ItemFilter(enqueued_after_ms=-1)}),
    ("attempts_max", {"chosen": ItemFilter(attempts_max=-1)}),
    ("REDRIVE is of dead letters", {"action": BulkAction.REDRIVE, "chosen": ItemFilter(states=(ItemState.READY,))}),
    ("deliver_after_ms is for REDRIVE", {"action": BulkAction.DELETE, "chosen": T, "deliver_after_ms": 1 << 41}),
    ("has no condition, so it would delete all", {"action": BulkAction.DELETE}),
    ("all_items is for a DELETE without", {"action": BulkAction.DELETE, "chosen": T, "all_items": True}),
    ("all_items is for a DELETE without", {"action": BulkAction.COUNT, "all_items": True}),
    ("deliver_after_ms", {"action": BulkAction.REDRIVE, "deliver_after_ms": 1}),
    ("is none of a bulk job", {"job_id": "load"}),
    ("undoes '' is for UNDO", {"action": BulkAction.UNDO}),
    ("the definition of the job has", {"chosen": ItemFilter(topics=LONG, ids=MANY)}),
]  # fmt: skip


def test_bad_jobs_are_refused_and_leave_nothing(world: World) -> None:
    for text, given in BAD:
        arguments = {"action": BulkAction.COUNT, "chosen": ALL, **given}
        action, chosen = arguments.pop("action"), arguments.pop("chosen")
        match = arguments.pop("match", text)
        with pytest.raises((foqs.InvalidArgumentError, foqs.TooLargeError), match=match):
            world.admin.create_bulk_job(NS, action, chosen, **arguments)
    assert world.admin.list_jobs(NS).jobs == []


def test_other_jobs_have_other_ids(world: World) -> None:
    with pytest.raises(foqs.InvalidArgumentError, match="is that of a bulk job"):
        world.admin.create_job(NS, "bulk-" + "7" * 20)


def test_a_job_is_made_once_by_its_id(world: World) -> None:
    job_id = "bulk-" + "7" * 20
    job = world.admin.create_bulk_job(NS, BulkAction.COUNT, job_id=job_id, detail="why")
    assert (job.id, job.detail) == (job_id, "why")
    again = world.admin.create_bulk_job(NS, BulkAction.COUNT, job_id=job_id)
    assert (again.id, again.detail, again.created_at_ms) == (job_id, "why", job.created_at_ms)
    assert len(world.admin.list_jobs(NS).jobs) == 1
    with pytest.raises(foqs.AlreadyExistsError, match="already"):
        world.admin.create_bulk_job(NS, BulkAction.COUNT, T, job_id=job_id)


MANY_ITEMS = 2_300


def test_counts_of_many_pages_are_exact(world: World) -> None:
    for n in range(0, MANY_ITEMS, 100):
        put(world, f"t{n % 7}", 100)
    counted = run(world, BulkAction.COUNT)
    assert (bulk(counted).matched, bulk(counted).examined, bulk(counted).of_items) == (MANY_ITEMS,) * 3
    deleted = run(world, BulkAction.DELETE, items_max=MANY_ITEMS)
    assert (bulk(deleted).matched, bulk(deleted).done, bulk(deleted).examined) == (MANY_ITEMS,) * 3
    assert bulk(run(world, BulkAction.COUNT)).matched == 0
