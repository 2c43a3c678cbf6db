"""The contract of bulk jobs finds the defects that are planted into them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest

from foqs.host.verbs import bulk_walker
from foqs.host.verbs.bulk_acts import BulkActs, StepOutcome
from foqs.host.verbs.bulk_walker import BulkWalker
from foqs.host.verbs.copy_pace import CopyPace
from foqs.host.verbs.exports import Exports
from foqs.model import bulk_work
from foqs.model.bulk_work import BulkWork
from foqs.model.calls import ItemState
from foqs.model.item_filter import ItemFilter
from foqs.shard.state.ops.change import Changes
from foqs.testing import fake_bulk
from foqs.testing.fake_bulk import FakeBulk
from tests.contract import test_bulk as bulk
from tests.contract.queue_world import World

_KEEP, _WAIT = BulkWalker._keep, Changes._change
_ACT, _MATCHING, _UPDATE = BulkActs.change, Exports.rows_matching, FakeBulk.update


async def loses_the_count_of_a_step(self: BulkActs, *arguments: Any) -> StepOutcome:
    outcome = await _ACT(self, *arguments)
    return outcome._replace(done=max(0, outcome.done - 1))


async def passes_over_an_item(self: Exports, *arguments: Any) -> Any:
    found = await _MATCHING(self, *arguments)
    return found._replace(rows=found.rows[1:])


async def skips_items_behind_a_page(self: BulkWalker, turn: Any, mine: Any, *arguments: Any, **more: Any) -> bool:
    mine.part = replace(mine.part, after_key=mine.part.after_key + 5)
    return await _KEEP(self, turn, mine, *arguments, **more)


def grants_all(work: BulkWork, parts: Any, wanted_count: int) -> int:
    return wanted_count


def ignores_a_new_state(self: FakeBulk, namespace: Any, job_id: str, changes: Any) -> Any:
    job = _UPDATE(self, namespace, job_id, replace(changes, state=None))
    return job if changes.state is None else replace(job, state=changes.state)


async def redrives_those_that_died_since(
    self: BulkWalker, turn: Any, mine: Any, after_key: int, to_key: int, keys: Any = ()
) -> Any:
    return await self._exports.rows_matching(mine.shard, turn.namespace, turn.work, after_key, to_key, 1_000)


async def buries_all_that_waits_until_then(self: BulkWalker, *arguments: Any) -> Any:
    return await redrives_those_that_died_since(self, *arguments)


def shares_times(wanted_ms: int, used: Any) -> int:
    return wanted_ms


def undoes_at_any_time(job_id: str, undone: BulkWork, now_ms: int) -> BulkWork:
    return _UNDOING(job_id, undone, 0)


def forgets_the_reason(self: Changes, change: Any) -> None:
    if change.rewrite is not None and change.rewrite.lane == 0:
        change.rewrite.death_reason = b""
    _WAIT(self, change)


def has_leased_items_too(self: BulkWork) -> frozenset[ItemState]:
    return frozenset(self.filter.states or ItemState)


def has_any_error(self: ItemFilter, row: Any, state: ItemState) -> bool:
    return True


def has_no_rate(self: CopyPace, count: int, now_s: float) -> None:
    return None


_UNDOING = bulk_work.undoing
CASES: list[tuple[Any, str, Any, Callable[[World], None]]] = [
    (BulkActs, "change", loses_the_count_of_a_step, bulk.test_a_delete_deletes_what_matches_and_nothing_else),
    (Exports, "rows_matching", passes_over_an_item, bulk.test_dead_letters_are_redriven_by_the_text_of_their_errors),
    (BulkWalker, "_keep", skips_items_behind_a_page, bulk.test_counts_of_many_pages_are_exact),
    (fake_bulk, "granted", grants_all, bulk.test_a_job_stops_at_its_most_items_and_is_not_resumed),
    (FakeBulk, "update", ignores_a_new_state, bulk.test_a_job_keeps_its_rate_pauses_and_is_resumed),
    (FakeBulk, "update", ignores_a_new_state, bulk.test_a_cancelled_job_stops_for_good_and_its_counts_are_exact),
    (BulkWalker, "_read", redrives_those_that_died_since,
     bulk.test_items_that_die_behind_the_beginning_are_not_redriven),
    (BulkWalker, "_read", buries_all_that_waits_until_then,
     bulk.test_a_delayed_redrive_can_be_undone_until_its_items_are_delivered),
    (fake_bulk, "undoing", undoes_at_any_time,
     bulk.test_a_delayed_redrive_can_be_undone_until_its_items_are_delivered),
    (fake_bulk, "free_time", shares_times, bulk.test_an_undo_takes_back_its_own_job_alone_and_cancels_it),
    (Changes, "_change", forgets_the_reason, bulk.test_a_delayed_redrive_can_be_undone_until_its_items_are_delivered),
    (BulkWork, "states", property(has_leased_items_too),
     bulk.test_a_count_of_all_counts_items_in_each_state_but_under_lease),
    (ItemFilter, "_has_error", has_any_error, bulk.test_counts_of_filters_are_those_of_all_items_one_by_one),
    (CopyPace, "charge", has_no_rate, bulk.test_a_job_keeps_its_rate_pauses_and_is_resumed),
]  # fmt: skip


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("place", "name", "defect", "check"), CASES, ids=[f"{case[1]}-{n}" for n, case in enumerate(CASES)]
)
def test_a_defect_is_found(memory: World, place: Any, name: str, defect: Any, check: Callable[[World], None]) -> None:
    with patch.object(place, name, defect), pytest.raises((AssertionError, pytest.fail.Exception)):
        check(memory)


def test_pages_are_smaller_than_what_the_tests_store() -> None:
    assert bulk_walker.PAGE_ITEMS_MAX < bulk.MANY_ITEMS
