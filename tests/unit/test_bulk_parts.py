"""The parts of bulk jobs and their reports: few at a time, and exact also if an answer gets lost."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from typing import Any, cast
from unittest.mock import Mock, patch

from hypothesis import given
from hypothesis import strategies as st

from foqs.host.registry.meta_calls import MetaCalls
from foqs.host.verbs import bulk_parts
from foqs.host.verbs.bulk_parts import BulkParts, HeldPart
from foqs.model.bulk_work import (
    BulkAction,
    BulkPart,
    BulkWork,
    PartAnswer,
    PartBeginning,
    behind_page,
    given_back,
    is_repeat,
    with_page,
    without,
)
from foqs.model.errors import UnavailableError
from foqs.model.item_filter import ItemFilter
from foqs.model.jobs import JobChanges, JobState
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.storage.meta.meta_bulk import BulkView
from foqs.storage.meta.meta_jobs import JobKey
from foqs.testing.fake_meta import memory_meta
from tests.sim.lost_reports import LossyBulk

KEY = JobKey(1, "bulk-" + "0" * 20)
PART = BulkPart(shard_id=3, epoch=4, version=7, as_of_ms=5, to_key=100, after_key=20, examined=9, matched=4, done=4)
WAITERS = 60
UNANSWERED = UnavailableError("the meta database has not answered")


class SlowBulk:
    """Counts the reports that run at a time."""

    def __init__(self) -> None:
        self.running_count = self.most_count = self.reports_count = 0
        self._lock = threading.Lock()
        self._turned = threading.Event()

    def report(self, key: JobKey, part: BulkPart, keys: Any, page_to: int) -> PartAnswer:
        with self._lock:
            self.running_count += 1
            self.reports_count += 1
            self.most_count = max(self.most_count, self.running_count)
        self._turned.wait(0.001)  # Nobody sets it.
        with self._lock:
            self.running_count -= 1
        return PartAnswer(replace(part, version=part.version + 1), is_running=True)


def held() -> HeldPart:
    return HeldPart(Mock(shard_id=3, epoch=4), PART, PART, 0.0)


async def test_reports_of_many_shards_wait_for_each_other_and_none_is_refused() -> None:
    bulk = SlowBulk()
    calls = MetaCalls(cast(Any, Mock(bulk=bulk)), "bulk-call")
    parts = BulkParts(calls, lambda: 0.0)
    answers = await asyncio.gather(*[parts.report(KEY, held()) for _ in range(WAITERS)])
    assert all(answer.is_running for answer in answers)
    assert (bulk.reports_count, bulk.most_count) == (WAITERS, bulk_parts.CALLS_MAX)
    await calls.stop()


class OnceReadWorks:
    """Has one job, whose definition is read."""

    def __init__(self) -> None:
        self.created_at_ms = 5
        self.reads_count = 0

    def views(self, keys: Any, shard_ids: Any) -> dict[JobKey, BulkView]:
        return {KEY: BulkView(self.created_at_ms, 0, 1, frozenset([3]))}

    def works(self, keys: Any) -> dict[JobKey, BulkWork]:
        self.reads_count += 1
        return {KEY: BulkWork(items_max=self.created_at_ms)}


async def test_a_definition_is_read_once_until_another_job_has_its_id() -> None:
    bulk = OnceReadWorks()
    calls = MetaCalls(cast(Any, Mock(bulk=bulk)), "bulk-call")
    parts = BulkParts(calls, lambda: 0.0)
    for created_at_ms, reads_count in ((5, 1), (5, 1), (6, 2), (6, 2)):
        bulk.created_at_ms = created_at_ms
        assert await parts.views([KEY], [3]) == bulk.views([], [])
        assert parts.work_of(KEY) == BulkWork(items_max=created_at_ms)
        assert bulk.reads_count == reads_count
    await calls.stop()


KEYS = st.lists(st.integers(21, 60), unique=True, max_size=6).map(sorted)
BEGIN = PartBeginning(5, 100, 30)


async def _report_in_doubt(keys: list[int], items_max: int, *, is_written: bool, is_stopped: bool) -> None:
    meta: Any = memory_meta(lambda: 1_700_000_000_000)
    meta.shards.add(3, "mysql://h/s3", "")
    meta.namespaces._insert(Namespace(1, "jobs", NamespaceSettings(), 0))
    namespace = meta.namespaces.read().namespaces[0]
    work = BulkWork(action=BulkAction.DELETE, items_max=items_max)
    key = JobKey(namespace.number, meta.bulk.create(namespace, KEY.id, 0, "", work).id)
    losing = [False]
    calls = MetaCalls(cast(Any, Mock(bulk=LossyBulk(meta.bulk, lambda: losing[0]))), "bulk-call")
    parts = BulkParts(calls, lambda: 0.0)
    mine = await parts.take(key, cast(Any, Mock(shard_id=3, epoch=4)), BEGIN)
    assert mine is not None
    known = mine.part = replace(mine.part, after_key=20, examined=12, matched=6, done=5, skipped=1, later_keys=(7, 9))
    losing[0] = is_written
    with patch.object(meta.bulk, "report", meta.bulk.report if is_written else Mock(side_effect=UNANSWERED)):
        try:
            await parts.report(key, mine, keys, 60)
        except UnavailableError:
            assert mine.is_unsure
            assert mine.is_ahead_of_report
    losing[0] = False
    if is_stopped:
        meta.bulk.update(namespace, key.id, JobChanges(state=JobState.CANCELLED))
    if await parts.settle(key, mine, BEGIN):
        assert replace(mine.part, version=0) == replace(known, version=0)
        await parts.report(key, mine)
    state = meta.bulk.get(namespace, key.id).bulk
    assert (state.examined, state.matched, state.done, state.skipped) == (12, 6, 5, 1)
    await calls.stop()


@given(KEYS, st.integers(6, 13), st.booleans(), st.booleans())
def test_a_report_without_an_answer_changes_no_count(
    keys: list[int], items_max: int, is_written: bool, is_stopped: bool
) -> None:
    """Whether it was written or not, the part continues where its owner knew it to be."""
    asyncio.run(_report_in_doubt(keys, items_max, is_written=is_written, is_stopped=is_stopped))


def test_items_that_are_given_back_are_not_taken_up_and_come_again() -> None:
    page = with_page(PART, [31, 32, 33, 34], 60, 3)
    assert (page.page_to, page.page_keys, page.matched) == (33, (31, 32, 33), 7)
    part = given_back(page, [32, 33])
    assert (part.page_keys, part.later_keys, part.matched) == ((31,), (32, 33), 5)
    part = behind_page(part)
    assert (part.after_key, part.page_to) == (33, 31), "31 is in doubt"
    again = with_page(replace(part, page_to=0, page_keys=()), [32, 33], 33, 1)
    assert (again.page_keys, again.later_keys, again.page_to) == ((32,), (33,), 32)
    done = behind_page(replace(again, page_keys=()))
    assert (done.after_key, done.page_to) == (33, 0)
    assert without([1, 2, 3], [2]) == (1, 3)


def test_a_repeat_is_known_by_what_was_asked() -> None:
    asked = BulkWork(filter=ItemFilter(topics=("t",)), action=BulkAction.REDRIVE, deliver_after_ms=1_000)
    assert is_repeat(replace(asked, deliver_after_ms=1_003), asked)
    undo = BulkWork(action=BulkAction.UNDO, undoes=KEY.id)
    assert is_repeat(replace(undo, filter=ItemFilter(deliver_after_ms=7)), undo)
    for other in (
        replace(asked, deliver_after_ms=999),
        replace(asked, deliver_after_ms=9_999),
        replace(asked, items_max=1),
        replace(asked, action=BulkAction.DELETE, deliver_after_ms=0),
        replace(asked, filter=ItemFilter()),
        replace(undo, undoes="bulk-" + "1" * 20),
    ):
        assert not is_repeat(other, undo if other.undoes else asked)
