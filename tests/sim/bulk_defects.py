"""Defects of bulk jobs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from foqs.host.verbs.bulk_acts import BulkActs, StepOutcome
from foqs.host.verbs.bulk_parts import BulkParts
from foqs.host.verbs.bulk_walker import BulkWalker
from foqs.host.verbs.exports import Exports
from foqs.model.bulk_work import BulkPart, BulkWork, parts_to_undo, taken, with_page
from foqs.testing import fake_bulk
from foqs.testing.fake_bulk import FakeBulk
from tests.sim.bulk_runs import run_bulk
from tests.sim.planting import in_place_of, runs_with

runs_with(__name__, run_bulk)

_change, _keep, _rows_matching = BulkActs.change, BulkWalker._keep, Exports.rows_matching
_with_page, _taken, _parts_to_undo = with_page, taken, parts_to_undo
_recount, _stop = BulkWalker._recount, FakeBulk._stop


@in_place_of(BulkActs, "change")
async def loses_a_count(self: BulkActs, *arguments: Any) -> StepOutcome:
    outcome = await _change(self, *arguments)
    return outcome._replace(done=max(0, outcome.done - 1))


@in_place_of(BulkWalker, "_keep")
async def skips_items_behind_a_page(self: BulkWalker, turn: Any, mine: Any, *arguments: Any, **more: Any) -> bool:
    mine.part = replace(mine.part, after_key=mine.part.after_key + 3)
    return await _keep(self, turn, mine, *arguments, **more)


@in_place_of(fake_bulk, "granted")
def grants_all(work: BulkWork, parts: Any, wanted_count: int) -> int:
    return wanted_count


@in_place_of(fake_bulk, "with_page")
def takes_up_a_page_to_its_end(part: BulkPart, keys: Sequence[int], page_to: int, granted_count: int) -> BulkPart:
    made = _with_page(part, keys, page_to, granted_count)
    return replace(made, page_to=page_to) if made.page_keys else made


@in_place_of(fake_bulk, "with_page")
def forgets_the_page_in_work(part: BulkPart, keys: Sequence[int], page_to: int, granted_count: int) -> BulkPart:
    return replace(part, matched=part.matched + granted_count)


@in_place_of(fake_bulk, "taken")
def begins_a_part_anew(part: BulkPart, epoch: int, beginning: Any) -> BulkPart | None:
    made = _taken(part, epoch, beginning)
    if made is None or part.epoch in (0, epoch):
        return made
    return replace(made, matched=0, done=0, after_key=0, page_to=0, page_keys=())


@in_place_of(BulkWalker, "_recount")
async def counts_no_items_of_a_dead_host(self: BulkWalker, turn: Any, mine: Any) -> None:
    done = mine.part.done
    await _recount(self, turn, mine)
    mine.part = replace(mine.part, done=done)
    await self._parts.report(turn.key, mine)


@in_place_of(BulkWalker, "_let_go")
async def forgets_the_part_of_a_job_that_has_stopped(self: BulkWalker, key: Any, shard: Any) -> None:
    self._held.pop((key, shard.shard_id), None)


@in_place_of(BulkParts, "settle")
async def takes_an_unanswered_page_for_changed(self: BulkParts, key: Any, mine: Any, beginning: Any) -> bool:
    part = await self._take(key, mine.shard, beginning)
    if part is None:
        return False
    mine.part = mine.reported = part
    mine.is_unsure = False
    return True


@in_place_of(FakeBulk, "_stop")
def leaves_pages_of_stopped_jobs_uncounted(self: FakeBulk, key: Any) -> None:
    self._jobs.stop_bulk(key)


@in_place_of(BulkWalker, "_runs")
def follows_no_pause(self: BulkWalker, key: Any, shard: Any) -> bool:
    """Hosts do the pages that they have, and more than these is not granted."""
    return True


@in_place_of(Exports, "rows_matching")
async def matches_any_error(self: Exports, shard: Any, namespace: Any, work: BulkWork, *arguments: Any) -> Any:
    chosen = replace(work.filter, error_contains="")
    return await _rows_matching(self, shard, namespace, replace(work, filter=chosen), *arguments)


@in_place_of(fake_bulk, "parts_to_undo")
def undoes_what_was_reported_alone(parts: Any) -> list[BulkPart]:
    known = [replace(part, after_key=part.after_key // 2, page_to=0) for part in parts.values()]
    return _parts_to_undo({part.shard_id: part for part in known})
