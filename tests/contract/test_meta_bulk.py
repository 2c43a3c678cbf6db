"""Bulk jobs, as the meta database keeps them: the real one, and the one in memory, which does the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from typing import Any

import pytest

from foqs.model.bulk_work import RUNNING_MAX, BulkAction, BulkPart, BulkWork, PartBeginning
from foqs.model.cluster import ShardUse
from foqs.model.errors import (
    AlreadyExistsError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    UnknownNamespaceError,
)
from foqs.model.item_filter import ItemFilter
from foqs.model.jobs import Job, JobChanges, JobState
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.storage.meta import meta_bulk
from foqs.storage.meta.meta_jobs import JobKey
from foqs.storage.meta.meta_store import MetaStore
from foqs.testing import fake_bulk
from foqs.testing.fake_meta import memory_meta

BEGIN = PartBeginning(5_000, 100, 30)
DELETE = BulkWork(filter=ItemFilter(topics=("t",)), action=BulkAction.DELETE)


@pytest.fixture(params=[pytest.param("mysql", marks=pytest.mark.database), "memory"])
def meta(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A meta database with the shards 1 and 2, and the namespace `jobs`."""
    if request.param == "memory":
        yield prepared(memory_meta(lambda: 1_700_000_000_000))
    else:
        with closing(MetaStore(request.getfixturevalue("meta_url"))) as store:
            yield prepared(store)


def prepared(meta: Any) -> Any:
    for shard_id in (1, 2):
        meta.shards.add(shard_id, f"mysql://h/s{shard_id}", "")
    add_namespace(meta, "jobs")
    return meta


def add_namespace(meta: Any, name: str) -> None:
    if isinstance(meta, MetaStore):
        meta.namespaces.insert(name, NamespaceSettings(), 0)
    else:
        meta.namespaces._insert(Namespace(len(meta.namespaces.read().namespaces) + 1, name, NamespaceSettings(), 0))


def namespace(meta: Any, name: str = "jobs") -> Namespace:
    return next(one for one in meta.namespaces.read().namespaces if one.name == name)


def job_id(number: int) -> str:
    return f"bulk-{number:020x}"


def make(meta: Any, work: BulkWork = DELETE, number: int = 1, name: str = "jobs") -> JobKey:
    job: Job = meta.bulk.create(namespace(meta, name), job_id(number), 0, "", work)
    assert job.bulk is not None
    return JobKey(namespace(meta, name).number, job.id)


def get(meta: Any, key: JobKey) -> Job:
    job: Job = meta.bulk.get(namespace(meta), key.id)
    return job


def running(meta: Any) -> dict[int, list[str]]:
    return {number: sorted(some) for number, some in meta.namespaces.read().bulk_running.items() if some}


def take(meta: Any, key: JobKey, shard_id: int, epoch: int = 3) -> BulkPart:
    part: BulkPart | None = meta.bulk.take(key, shard_id, epoch, BEGIN)
    assert part is not None
    return part


def keys(count: int) -> tuple[int, ...]:
    """The keys of items that match."""
    return tuple(11 + 3 * n for n in range(count))


def done(part: BulkPart, count: int) -> BulkPart:
    return replace(part, after_key=part.to_key, page_to=0, page_keys=(), done=part.done + count, is_done=True)


def test_a_job_has_a_part_for_each_shard_and_ends_with_the_last_one(meta: Any) -> None:
    key = make(meta)
    assert running(meta) == {key.namespace: [key.id]}
    view = meta.bulk.views([key], [2, 7])[key]
    assert (view.open_count, view.mine) == (2, frozenset([2]))
    for shard_id, count in ((1, 3), (2, 4)):
        part = take(meta, key, shard_id)
        assert (part.as_of_ms, part.to_key, part.of_items) == BEGIN
        answer = meta.bulk.report(key, part, keys(count), 60)
        assert (answer.granted_count, answer.is_running) == (count, True)
        assert (answer.part.page_to, answer.part.page_keys, answer.part.matched) == (60, keys(count), count)
        assert meta.bulk.report(key, done(answer.part, count)).part is not None
    job = get(meta, key)
    assert (job.state, job.items_count) == (JobState.SUCCEEDED, 7)
    assert job.bulk is not None
    assert (job.bulk.matched, job.bulk.done, job.bulk.shards_done, job.bulk.of_items) == (7, 7, 2, 60)
    assert running(meta) == {}
    assert meta.bulk.views([key], [1, 2]) == {}
    assert meta.bulk.take(key, 1, 9, BEGIN) is None


def test_a_later_owner_continues_with_the_page_in_work_and_an_earlier_one_writes_nothing(meta: Any) -> None:
    key = make(meta)
    first = meta.bulk.report(key, replace(take(meta, key, 1, 3), after_key=10), keys(5), 40).part
    second = take(meta, key, 1, 4)
    assert (second.after_key, second.page_to, second.page_keys, second.matched) == (10, 40, keys(5), 5)
    assert meta.bulk.take(key, 1, 3, BEGIN) is None, "the owner of an earlier epoch"
    assert meta.bulk.report(key, done(first, 5)).part is None
    assert meta.bulk.report(key, second).part is not None
    assert get(meta, key).bulk.done == 0  # type: ignore[union-attr]


def test_a_late_write_of_the_same_owner_undoes_nothing(meta: Any) -> None:
    key = make(meta)
    part = take(meta, key, 1)
    again = take(meta, key, 1)
    assert meta.bulk.report(key, replace(again, after_key=20, done=2)).part is not None
    assert meta.bulk.report(key, replace(part, after_key=10, done=1)).part is None
    assert get(meta, key).bulk.done == 2  # type: ignore[union-attr]


def test_all_shards_together_take_up_no_more_than_the_most_items(meta: Any) -> None:
    key = make(meta, replace(DELETE, items_max=10))
    one, two = (take(meta, key, shard_id) for shard_id in (1, 2))
    first = meta.bulk.report(key, one, keys(7), 50)
    assert (first.granted_count, first.part.page_to) == (7, 50)
    answer = meta.bulk.report(key, two, keys(7), 50)
    assert (answer.granted_count, answer.is_running, answer.part.page_keys) == (3, True, keys(3))
    assert answer.part.page_to == keys(3)[-1], "the others are behind the page"
    second = meta.bulk.report(key, replace(answer.part, done=3, page_to=0, page_keys=()), keys(4), 50)
    assert (second.granted_count, second.is_running) == (0, True), "a page is in work elsewhere"
    ended = meta.bulk.report(key, replace(first.part, done=7, page_to=0, page_keys=()), keys(9), 90)
    assert (ended.granted_count, ended.is_running) == (0, False)
    job = get(meta, key)
    assert (job.state, job.bulk.matched) == (JobState.PAUSED, 10)  # type: ignore[union-attr]
    assert "items_max, which is 10" in job.bulk.error  # type: ignore[union-attr]
    assert running(meta) == {}
    with pytest.raises(InvalidArgumentError, match="items_max"):
        meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.RUNNING))
    assert job.items_count == 10


def test_the_pages_in_work_of_a_job_that_has_stopped_are_still_counted(meta: Any) -> None:
    for number, state in enumerate((JobState.PAUSED, JobState.CANCELLED)):
        key = make(meta, DELETE, number)
        first = meta.bulk.report(key, take(meta, key, 1), keys(7), 50).part
        meta.bulk.update(namespace(meta), key.id, JobChanges(state=state))
        assert running(meta) == {key.namespace: [key.id]}
        view = meta.bulk.views([key], [1, 2])[key]
        assert (view.is_running, view.mine) == (False, frozenset([1]))
        assert meta.bulk.take(key, 2, 3, BEGIN) is None
        later = take(meta, key, 1, 4)
        assert later.page_keys == keys(7)
        assert meta.bulk.report(key, first).part is None
        counted = replace(later, done=5, matched=5, after_key=30, page_to=0, page_keys=())
        answer = meta.bulk.report(key, counted, keys(2), 90)
        assert (answer.is_running, answer.granted_count) == (False, 0)
        assert running(meta) == {}
        job = get(meta, key)
        assert (job.state, job.items_count, job.bulk.matched) == (state, 5, 5)  # type: ignore[union-attr]
        if state is JobState.PAUSED:
            meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.RUNNING))
            assert take(meta, key, 1, 4).after_key == 30
            meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.CANCELLED))


def test_a_job_is_resumed_while_its_pages_are_counted(meta: Any) -> None:
    key = make(meta)
    meta.bulk.report(key, take(meta, key, 1), keys(7), 50)
    for state in (JobState.PAUSED, JobState.RUNNING):
        meta.bulk.update(namespace(meta), key.id, JobChanges(state=state))
    assert meta.bulk.views([key], [1, 2])[key].mine == frozenset([1, 2])


def test_exactly_the_most_items_do_not_pause_a_job(meta: Any) -> None:
    key = make(meta, replace(DELETE, items_max=4))
    for shard_id, count in ((1, 4), (2, 0)):
        part = take(meta, key, shard_id)
        answer = meta.bulk.report(key, part, keys(count), 60)
        assert answer.is_running
        meta.bulk.report(key, done(answer.part, count))
    assert get(meta, key).state is JobState.SUCCEEDED


def test_a_paused_job_is_not_taken_and_a_resumed_one_continues(meta: Any) -> None:
    key = make(meta)
    part = take(meta, key, 1)
    meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.PAUSED))
    assert running(meta) == {}
    assert meta.bulk.take(key, 1, 3, BEGIN) is None
    answer = meta.bulk.report(key, replace(part, after_key=9), keys(5), 20)
    assert (answer.is_running, answer.granted_count, answer.part.page_keys) == (False, 0, ())
    job = meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.RUNNING, items_per_second_max=7))
    assert (job.state, job.items_per_second_max) == (JobState.RUNNING, 7)
    assert running(meta) == {key.namespace: [key.id]}
    assert take(meta, key, 1).after_key == 9


def test_a_paused_job_whose_parts_have_ended_ends_once_it_is_resumed(meta: Any) -> None:
    key = make(meta)
    pages = [meta.bulk.report(key, take(meta, key, shard_id), keys(2), 60).part for shard_id in (1, 2)]
    meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.PAUSED))
    for part in pages:
        assert not meta.bulk.report(key, done(part, 2)).is_running
    assert meta.bulk.views([key], [1, 2]) == {}
    assert get(meta, key).state is JobState.PAUSED
    meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.RUNNING))
    assert meta.bulk.views([key], [1, 2]) == {}
    assert (get(meta, key).state, running(meta)) == (JobState.SUCCEEDED, {})


def test_a_removed_shard_holds_up_no_job(meta: Any) -> None:
    key = make(meta)
    part = take(meta, key, 1)
    meta.shards.update(2, ShardUse.DRAINING, None, None)
    meta.shards.remove(2, 0)
    meta.bulk.report(key, done(part, 0))
    assert get(meta, key).state is JobState.SUCCEEDED


def test_a_job_ends_when_its_last_shard_is_removed(meta: Any) -> None:
    key = make(meta)
    meta.bulk.report(key, done(take(meta, key, 1), 3))
    assert meta.bulk.views([key], [1])[key].mine == frozenset()
    meta.shards.update(2, ShardUse.DRAINING, None, None)
    meta.shards.remove(2, 0)
    assert meta.bulk.views([key], [1]) == {}
    job = get(meta, key)
    assert (job.state, job.items_count) == (JobState.SUCCEEDED, 3)


def test_each_delayed_redrive_has_a_time_of_its_own(meta: Any) -> None:
    redrive = BulkWork(action=BulkAction.REDRIVE, deliver_after_ms=1 << 42)
    keys = [make(meta, redrive, number) for number in range(3)]
    assert [get(meta, key).bulk.work.deliver_after_ms - (1 << 42) for key in keys] == [0, 1, 2]  # type: ignore[union-attr]


def test_an_undo_has_the_keys_that_its_job_has_come_to_and_cancels_it(meta: Any) -> None:
    redrive = BulkWork(action=BulkAction.REDRIVE, deliver_after_ms=1 << 42)
    key = make(meta, redrive)
    meta.bulk.report(key, replace(take(meta, key, 1), after_key=30), keys(5), 44)
    undo = make(meta, BulkWork(action=BulkAction.UNDO, undoes=key.id), 2)
    assert get(meta, key).state is JobState.CANCELLED
    part = take(meta, undo, 1)
    assert (part.after_key, part.to_key) == (0, 44)
    assert meta.bulk.take(undo, 2, 3, BEGIN) is None, "the job had not begun there"
    assert meta.bulk.works([undo])[undo].filter == ItemFilter(deliver_after_ms=1 << 42)
    meta.bulk.report(undo, done(part, 5))
    assert get(meta, undo).state is JobState.SUCCEEDED
    with pytest.raises(NotFoundError):
        make(meta, BulkWork(action=BulkAction.UNDO, undoes=job_id(9)), 3)
    with pytest.raises(InvalidArgumentError, match="only a redrive"):
        make(meta, BulkWork(action=BulkAction.UNDO, undoes=undo.id), 4)


def test_the_undo_of_a_job_that_has_not_begun_ends_at_once(meta: Any) -> None:
    key = make(meta, BulkWork(action=BulkAction.REDRIVE, deliver_after_ms=1 << 42))
    undo = make(meta, BulkWork(action=BulkAction.UNDO, undoes=key.id), 2)
    assert get(meta, undo).state is JobState.SUCCEEDED
    assert running(meta) == {}


def test_the_cluster_has_a_bound_of_jobs_that_run(meta: Any) -> None:
    for number in range(RUNNING_MAX // 10):
        add_namespace(meta, f"n{number}")
    for number in range(RUNNING_MAX):
        make(meta, DELETE, number, f"n{number // 10}")
    with pytest.raises(OverloadedError, match="100 bulk jobs run in all"):
        make(meta, DELETE, RUNNING_MAX)
    with pytest.raises(OverloadedError, match="10 bulk jobs run in the namespace"):
        make(meta, DELETE, RUNNING_MAX, "n0")


def test_the_reason_of_a_wait_is_shown_until_the_part_is_taken_again(meta: Any) -> None:
    key = make(meta)
    part = take(meta, key, 1)
    meta.bulk.report(key, replace(part, error="the disk is full"))
    assert get(meta, key).bulk.error == "shard 1: the disk is full"  # type: ignore[union-attr]
    take(meta, key, 1)
    assert get(meta, key).bulk.error == ""  # type: ignore[union-attr]


def test_items_that_were_passed_over_are_kept_for_the_next_owner(meta: Any) -> None:
    key = make(meta)
    part = replace(take(meta, key, 1), after_key=40, later_keys=keys(3))
    assert meta.bulk.report(key, part).part is not None
    assert take(meta, key, 1, 4).later_keys == keys(3)
    meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.PAUSED))
    assert running(meta) == {}, "no page is in work"
    meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.RUNNING))
    later = take(meta, key, 1, 5)
    again = meta.bulk.report(key, later, keys(3)[:2], keys(3)[1]).part
    assert (again.later_keys, again.page_keys) == (keys(3)[2:], keys(3)[:2])
    assert take(meta, key, 1, 6).later_keys == keys(3)[2:]


def test_a_repeat_of_a_call_returns_the_job_that_was_made(meta: Any) -> None:
    redrive = BulkWork(action=BulkAction.REDRIVE, deliver_after_ms=1 << 42)
    for number, work in enumerate((DELETE, redrive, redrive)):
        key = make(meta, work, number)
        part = replace(take(meta, key, 1), after_key=30, matched=5, done=5)
        assert meta.bulk.report(key, part).part is not None
        job = meta.bulk.create(namespace(meta), key.id, 7, "again", work)
        assert (job.id, job.items_count, job.detail) == (key.id, 5, "")
        with pytest.raises(AlreadyExistsError, match="already"):
            make(meta, replace(work, items_max=3), number)
    undo = BulkWork(action=BulkAction.UNDO, undoes=job_id(1))
    assert make(meta, undo, 7) == make(meta, undo, 7)
    assert len(running(meta)[key.namespace]) == 3


def test_a_stopped_job_whose_page_nobody_counts_takes_no_place_of_others(meta: Any) -> None:
    for number in range(12):
        key = make(meta, DELETE, number)
        meta.bulk.report(key, take(meta, key, 1), keys(7), 50)
        meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.CANCELLED))
    assert len(running(meta)[key.namespace]) == 12
    for number in range(12, 22):
        make(meta, DELETE, number)
    with pytest.raises(OverloadedError, match="10 bulk jobs run in the namespace"):
        make(meta, DELETE, 22)


def test_hosts_look_for_the_pages_of_a_bounded_number_of_stopped_jobs(
    meta: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (meta_bulk, fake_bulk):
        monkeypatch.setattr(module, "STOPPED_MAX", 3)
    for number in range(6):
        key = make(meta, DELETE, number)
        meta.bulk.report(key, take(meta, key, 1), keys(7), 50)
        meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.PAUSED))
        assert len(running(meta)[key.namespace]) <= 4
    meta.bulk.update(namespace(meta), key.id, JobChanges(state=JobState.RUNNING))
    assert take(meta, key, 1, 9).page_keys == keys(7), "a page that was left is counted once the job is resumed"


def test_definitions_are_read_apart_from_views(meta: Any) -> None:
    key, other = make(meta), make(meta, BulkWork(items_max=4), 2)
    assert meta.bulk.works([key, other]) == {key: DELETE, other: BulkWork(items_max=4)}
    views = meta.bulk.views([key, other], [1])
    assert {view.created_at_ms for view in views.values()} == {get(meta, key).created_at_ms} | {
        get(meta, other).created_at_ms
    }


def test_a_job_that_an_earlier_version_has_ended_runs_no_more(meta: Any) -> None:
    """Its hosts know records alone."""
    key = make(meta)
    meta.jobs.update(namespace(meta), key.id, JobChanges(state=JobState.FAILED))
    assert meta.bulk.views([key], [1, 2]) == {}
    assert running(meta) == {}


def test_a_deleted_namespace_gets_no_job(meta: Any) -> None:
    known = namespace(meta)
    with pytest.raises(UnknownNamespaceError):
        meta.bulk.create(replace(known, number=known.number + 1), job_id(5), 0, "", DELETE)
    assert running(meta) == {}
