"""The parts of bulk jobs that this host does, as it knows them and as it has reported them to the meta database."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from foqs.host.registry.meta_calls import MetaCalls
from foqs.model.bulk_work import BulkPart, BulkWork, PartAnswer, PartBeginning, progress
from foqs.model.errors import FoqsError, UnavailableError
from foqs.shard.state.engine import ShardState
from foqs.storage.meta.meta_bulk import BulkView
from foqs.storage.meta.meta_jobs import JobKey
from foqs.storage.meta.meta_store import MetaStore

CALLS_MAX = 2
"""Calls of bulk jobs on the meta database at a time; further ones wait in this host, however many shards it has."""

T = TypeVar("T")


@dataclass(slots=True)
class HeldPart:
    """The part of one shard as this host does it. It ends with the shard's state."""

    shard: ShardState
    part: BulkPart
    """Items of `page_keys` were possibly changed or not: they are in doubt."""
    reported: BulkPart
    """The part as the last report left it that was certainly written."""
    reported_s: float
    is_unsure: bool = False
    """True after a report that was possibly written, and possibly not."""
    later_s: float = 0.0
    """The time from which items that were passed over are tried again."""
    next_s: float = 0.0
    """The time from which a page is wanted again of which no item was granted."""
    refusals_count: int = 0

    @property
    def is_ahead_of_report(self) -> bool:
        """True if the meta database does not know all of it."""
        return self.is_unsure or progress(self.part) != progress(self.reported)


class BulkParts:
    """Reads the jobs that run, and takes and reports parts. No report of one part waits behind more than two calls."""

    def __init__(self, calls: MetaCalls, now_s: Callable[[], float]) -> None:
        """`calls` has threads of its own, for no admin call is to be refused because of a job. `now_s` is monotonic."""
        self._calls = calls
        self._now_s = now_s
        self._turns = asyncio.Semaphore(CALLS_MAX)
        self._works: dict[JobKey, tuple[int, BulkWork]] = {}
        """The definitions of jobs with their times of creation, each of which is read once."""

    async def views(self, keys: Sequence[JobKey], shard_ids: Collection[int]) -> dict[JobKey, BulkView]:
        """Return the jobs among these that have work on shards of this host."""
        views = await self._run(lambda meta: meta.bulk.views(keys, shard_ids))
        views = {key: view for key, view in views.items() if view.mine}
        known = {key: one for key, one in self._works.items() if key in views and one[0] == views[key].created_at_ms}
        if missing := [key for key in views if key not in known]:
            found = await self._run(lambda meta: meta.bulk.works(missing))
            known |= {key: (views[key].created_at_ms, work) for key, work in found.items()}
        self._works = known
        return {key: view for key, view in views.items() if key in known}

    def work_of(self, key: JobKey) -> BulkWork:
        """Return the definition of a job of the last views."""
        return self._works[key][1]

    async def take(self, key: JobKey, shard: ShardState, beginning: PartBeginning) -> HeldPart | None:
        """Begin a part, or continue behind the last owner of the shard; None if it has none to do."""
        part = await self._take(key, shard, beginning)
        if part is None:
            return None
        if part.page_to > part.after_key:
            # Its owner has not reported how many items it looked at.
            part = replace(part, examined=part.examined + len(part.page_keys))
        return HeldPart(shard, part, part, self._now_s())

    async def report(self, key: JobKey, mine: HeldPart, keys: Sequence[int] = (), page_to: int = 0) -> PartAnswer:
        """Report a part, and take up a page. Raises UnavailableError if it is not known to be written."""
        answer = await self.send(key, mine, keys, page_to)
        if answer.part is None:
            raise UnavailableError(f"the part of shard {mine.shard.shard_id} was written by another", nothing_done=True)
        return answer

    async def send(self, key: JobKey, mine: HeldPart, keys: Sequence[int] = (), page_to: int = 0) -> PartAnswer:
        """Report a part. The answer has none if it was written otherwise meanwhile, as by a report in doubt."""
        part, was_unsure = mine.part, mine.is_unsure
        mine.is_unsure = True
        try:
            answer = await self._run(lambda meta: meta.bulk.report(key, part, keys, page_to))
        except FoqsError as error:
            mine.is_unsure = was_unsure or not error.nothing_done
            raise
        if answer.part is not None:
            mine.part = mine.reported = answer.part
            mine.reported_s, mine.is_unsure = self._now_s(), False
        return answer

    async def settle(self, key: JobKey, mine: HeldPart, beginning: PartBeginning) -> bool:
        """End the doubt about a report. Returns False if this host has no part in the job any more.

        Nothing was changed since it was sent. So the part continues as this host knows it, and a page that was taken up
        is wanted once more.
        """
        if (await self.send(key, mine)).part is not None:
            return True
        found = await self._take(key, mine.shard, beginning)
        if found is None:
            return False
        mine.part = replace(mine.part, epoch=found.epoch, version=found.version)
        mine.reported, mine.reported_s, mine.is_unsure = found, self._now_s(), False
        return True

    async def _take(self, key: JobKey, shard: ShardState, beginning: PartBeginning) -> BulkPart | None:
        shard_id, epoch = shard.shard_id, shard.epoch
        return await self._run(lambda meta: meta.bulk.take(key, shard_id, epoch, beginning))

    async def _run(self, work: Callable[[MetaStore], T]) -> T:
        async with self._turns:
            return await self._calls.run(work)
