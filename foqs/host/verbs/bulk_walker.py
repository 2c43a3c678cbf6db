"""The work of bulk jobs on the shards of this host: page after page, beside all other work, with pauses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.bulk_acts import BulkActs, StepOutcome
from foqs.host.verbs.copy_pace import CopyPace
from foqs.host.verbs.exports import Exports
from foqs.model import limits
from foqs.model.bulk_work import BulkAction, BulkPart, BulkWork, PartAnswer, PartBeginning
from foqs.model.calls import ItemState
from foqs.model.errors import FoqsError, UnavailableError
from foqs.model.namespace import Namespace
from foqs.shard.mysql_server import CommitScheduler
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.storage.meta.meta_bulk import BulkView
from foqs.storage.meta.meta_jobs import JobKey

ROUND_PAUSE_MS = 500
"""The pause between two looks at the jobs that run, after which a pause or a cancel holds."""
TURN_MS = 1 * limits.SECOND_MS
"""The time after which another job of a shard has its turn."""
PAGE_ITEMS_MAX = 1_000
"""The most items that match of one page, which one report takes up."""
STEP_ITEMS_MAX = 50
"""The most items of one step, for whose transactions interactive calls can have to wait."""
STEP_PAUSE_RATIO = 1.0
"""The pause after a step, as a multiple of its time, in which no shard of the server has another one."""
REPORT_MS = 2 * limits.SECOND_MS
"""The longest time between two reports of a part, unless it has come to items that match."""
REDRIVES_PER_SECOND_DEFAULT: Final = 500
"""The rate of a redrive without one of its own, in the cluster: consumers have to take the items."""
CHANGES_PER_SECOND_DEFAULT: Final = 2_000
"""The rate of other changes without one of their own, on each shard."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Work:
    """The part of one shard as this host does it. It ends with the shard's state, and with any failure."""

    shard: ShardState
    part: BulkPart
    reported_s: float


class BulkWalker(Service):
    """Does the parts of bulk jobs on the shards of this host, one job at a time on each shard.

    A page is reported before its items are changed. So the next owner of the shard knows which items were in work:
    those that do not match any more count as done.
    """

    def __init__(
        self, namespaces: Namespaces, shards: Shards, exports: Exports, acts: BulkActs, now_s: Callable[[], float]
    ) -> None:
        """`now_s` is monotonic."""
        super().__init__("bulk-walker")
        self._namespaces = namespaces
        self._shards = shards
        self._exports = exports
        self._acts = acts
        self._now_s = now_s
        self._views: dict[JobKey, BulkView] = {}
        """The jobs that run and have parts on shards of this host."""
        self._works: dict[tuple[JobKey, int], _Work] = {}
        self._paces: dict[JobKey, CopyPace] = {}
        self._locks: dict[CommitScheduler, asyncio.Lock] = {}
        """The turns of steps, by server."""
        self._turning: set[int] = set()
        """The shards on which a part is being done."""

    async def _start(self) -> None:
        outage = OutageLog(self._now_s, "bulk_jobs_wait", "bulk_jobs_go_on")
        self._tasks.repeat(lambda: asyncio.sleep(ROUND_PAUSE_MS / 1000), self._round, outage=outage)

    async def _round(self) -> None:
        """Look at the jobs that run, and begin the work on each shard that has some."""
        keys = [JobKey(number, job_id) for number, some in self._namespaces.bulk_running.items() for job_id in some]
        if not keys and not self._views:
            return
        owned = {shard.shard_id: shard for _, shard in self._shards.owned() if self._is_healthy(shard.shard_id)}
        if not keys or not owned:
            self._views = {}
        else:
            views = await self._namespaces.calls.run(lambda meta: meta.bulk.views(keys, list(owned)))
            self._views = {key: view for key, view in views.items() if view.mine}
        # The states of lost shards are freed.
        kept = [(at, one) for at, one in self._works.items() if at[0] in self._views and owned.get(at[1]) is one.shard]
        self._works = dict(kept)
        self._paces = {key: pace for key, pace in self._paces.items() if key in self._views}
        for key, view in self._views.items():
            self._set_pace(key, view)
        for shard_id, shard in owned.items():
            if shard_id not in self._turning and any(shard_id in view.mine for view in self._views.values()):
                self._turning.add(shard_id)
                self._tasks.spawn(self._walk(shard), f"bulk jobs of shard {shard_id}")

    def _is_healthy(self, shard_id: int) -> bool:
        try:
            self._shards.check_healthy(shard_id)
        except FoqsError:
            return False
        return True

    def _pace_of(self, key: JobKey) -> CopyPace:
        return self._paces.setdefault(key, CopyPace())

    def _set_pace(self, key: JobKey, view: BulkView) -> None:
        pace = self._pace_of(key)
        rate = view.items_per_second_max or _default_rate(view)
        pace.set_share(rate, len(view.mine), view.open_count, self._now_s())

    async def _walk(self, shard: ShardState) -> None:
        """Give each job turns on a shard until no one can continue."""
        try:
            goes_on = True
            while goes_on:
                goes_on = False
                for key, view in list(self._views.items()):
                    if shard.shard_id in view.mine and key in self._views:
                        goes_on |= await self._turn(key, view, shard)
        finally:
            self._turning.discard(shard.shard_id)

    def _runs(self, key: JobKey) -> bool:
        """True if the job runs, as far as this host knows; one that has stopped has only pages to be counted."""
        return key in self._views and self._views[key].is_running

    async def _turn(self, key: JobKey, view: BulkView, shard: ShardState) -> bool:
        """Do a turn of one job on one shard. Returns True if another one can follow at once."""
        namespace = self._namespaces.view.by_number.get(key.namespace)
        if namespace is None:
            return False
        at = (key, shard.shard_id)
        try:
            work = self._works.get(at)
            if work is None or work.shard is not shard:
                taken = await self._take(key, view.work, namespace, shard)
                if taken is None:
                    return False
                work = self._works[at] = taken
                if work.part.page_to:
                    await self._recount(key, view.work, namespace, work, self._pace_of(key))
            if not self._runs(key):
                self._works.pop(at, None)
                return False
            return await self._pages(key, view.work, namespace, work, self._pace_of(key))
        except FoqsError as error:
            # It is taken anew: how far the last page was done is unknown.
            failed = self._works.pop(at, None)
            _log.info("bulk_part_waits", job=key.id, shard=shard.shard_id, error=error.message)
            if failed is not None:
                await self._report_error(key, failed.part, error)
            return False

    async def _report_error(self, key: JobKey, part: BulkPart, error: FoqsError) -> None:
        """Let the job show why a part waits. The part is otherwise as it was reported last."""
        try:
            await self._namespaces.calls.run(lambda meta: meta.bulk.note(key, part.shard_id, part.epoch, error.message))
        except FoqsError as another:
            _log.debug("bulk_error_not_noted", job=key.id, error=another.message)

    async def _take(self, key: JobKey, work: BulkWork, namespace: Namespace, shard: ShardState) -> _Work | None:
        """Begin a part, or continue behind the last owner of the shard."""
        writer, now = self._shards.serving(shard.shard_id)
        if now is not shard:
            return None
        count = _count_of(shard, namespace.number, work)
        beginning = PartBeginning(writer.now_ms(), shard.index.last_key, count)
        shard_id, epoch = shard.shard_id, shard.epoch
        part = await self._namespaces.calls.run(lambda meta: meta.bulk.take(key, shard_id, epoch, beginning))
        return None if part is None else _Work(shard, part, self._now_s())

    # ---- pages ----

    async def _pages(self, key: JobKey, work: BulkWork, namespace: Namespace, mine: _Work, pace: CopyPace) -> bool:
        until_s = self._now_s() + TURN_MS / 1000
        while self._runs(key) and pace.is_free(self._now_s()):
            if not await self._page(key, work, namespace, mine, pace):
                return False
            if mine.part.is_done:
                self._works.pop((key, mine.shard.shard_id), None)
                self._note_done(key, mine.shard.shard_id)
                return True
            if self._now_s() >= until_s:
                return True
        return False

    def _note_done(self, key: JobKey, shard_id: int) -> None:
        """Leave out the part until the next look."""
        view = self._views.get(key)
        if view is not None:
            self._views[key] = view._replace(mine=view.mine - {shard_id})

    async def _page(self, key: JobKey, work: BulkWork, namespace: Namespace, mine: _Work, pace: CopyPace) -> bool:
        """Do the next page, and return True if the job continues."""
        rows, examined_count, up_to = await self._read(work, namespace, mine, mine.part.to_key)
        if work.action is BulkAction.COUNT or not rows:
            part = mine.part
            matched, examined = part.matched + len(rows), part.examined + examined_count
            return await self._keep(key, mine, replace(part, matched=matched, examined=examined, after_key=up_to))
        wanted_count = min(len(rows), pace.items_within(REPORT_MS, PAGE_ITEMS_MAX))
        end = up_to if wanted_count == len(rows) else rows[wanted_count - 1].key
        answer = await self._report(key, mine, mine.part, [row.key for row in rows[:wanted_count]], end)
        if not answer.granted_count:
            return False
        page_to, is_whole = mine.part.page_to, mine.part.page_to == up_to
        rows = rows[: answer.granted_count]
        part = await self._change(key, work, namespace, mine, rows, page_to, pace)
        if is_whole and part.after_key == page_to:
            part = replace(part, examined=part.examined + examined_count - len(rows))
        return await self._keep(key, mine, part, is_stopped=not answer.is_running)

    async def _report(
        self, key: JobKey, mine: _Work, part: BulkPart, keys: Sequence[int] = (), page_to: int = 0
    ) -> PartAnswer:
        """Report a part, which is known from then on, and take up a page. Raises UnavailableError if others have it."""
        answer = await self._namespaces.calls.run(lambda meta: meta.bulk.report(key, part, keys, page_to))
        if answer.part is None:
            raise UnavailableError(f"the part of shard {part.shard_id} was taken by another", nothing_done=True)
        mine.part, mine.reported_s = answer.part, self._now_s()
        return answer

    async def _read(
        self, work: BulkWork, namespace: Namespace, mine: _Work, to_key: int, keys: Sequence[int] = ()
    ) -> tuple[list[ItemRow], int, int]:
        """Return the next items that match, of `keys` if given, the number of those that were looked at, and the key up
        to which they are complete.
        """
        part = mine.part
        if part.after_key >= to_key:
            return [], 0, to_key
        found = await self._exports.rows_matching(
            mine.shard, namespace, work, part.after_key, to_key, PAGE_ITEMS_MAX, keys
        )
        rows = found.rows
        if work.action is BulkAction.REDRIVE:
            # One that has died since the beginning has possibly been redriven by this job before.
            rows = [row for row in rows if row.due_at <= part.as_of_ms]
        elif work.action is BulkAction.UNDO:
            rows = [row for row in rows if row.death_reason]  # Others that wait for the same time never died.
        return rows, found.examined_count, found.up_to

    async def _change(
        self,
        key: JobKey,
        work: BulkWork,
        namespace: Namespace,
        mine: _Work,
        rows: list[ItemRow],
        up_to: int,
        pace: CopyPace,
    ) -> BulkPart:
        """Change the items of a page in steps, until the job stops, and return the part behind them."""
        part, first = mine.part, 0
        while first < len(rows):
            if not self._runs(key):
                break
            some = rows[first : first + pace.step_items_max(STEP_ITEMS_MAX)]
            outcome = await self._step(namespace, mine.shard, work, some)
            part = replace(
                part,
                done=part.done + outcome.done,
                skipped=part.skipped + outcome.skipped,
                failed=part.failed + outcome.failed,
            )
            first += len(some)
            pace.charge(len(some), self._now_s())
            if first < len(rows):
                await self._until_free(key, pace)
        left_count = len(rows) - first
        end = rows[first].key - 1 if left_count else up_to
        matched, examined = part.matched - left_count, part.examined + first
        return replace(part, matched=matched, examined=examined, after_key=end, page_to=0, page_keys=())

    async def _step(self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: list[ItemRow]) -> StepOutcome:
        """Change some items, one step of a server at a time, with a pause behind it. So others wait for one at most."""
        writer, _ = self._shards.serving(shard.shard_id)
        async with self._locks.setdefault(writer.scheduler, asyncio.Lock()):
            began_s = self._now_s()
            outcome = await self._acts.change(namespace, shard, work, rows)
            await asyncio.sleep(STEP_PAUSE_RATIO * (self._now_s() - began_s))
            return outcome

    async def _until_free(self, key: JobKey, pace: CopyPace) -> None:
        """Wait for the rate of a job, while it runs, for about the time of a page."""
        for _ in range(REPORT_MS // ROUND_PAUSE_MS):
            wait_s = pace.wait_s(self._now_s())
            if wait_s <= 0 or not self._runs(key):
                return
            await asyncio.sleep(min(wait_s, ROUND_PAUSE_MS / 1000))

    async def _recount(self, key: JobKey, work: BulkWork, namespace: Namespace, mine: _Work, pace: CopyPace) -> None:
        """Do the rest of a page that was in work when its owner lost the shard, or failed.

        If the job has stopped since, the rest is only counted, as items that are not taken up.
        """
        part = mine.part
        rows: list[ItemRow] = []
        reading = replace(mine)
        while reading.part.after_key < part.page_to:
            some, _, up_to = await self._read(work, namespace, reading, part.page_to, part.page_keys)
            rows += some
            reading.part = replace(reading.part, after_key=up_to)
        gone_count = len(part.page_keys) - len(rows)
        mine.part = replace(part, done=part.done + gone_count, examined=part.examined + gone_count, is_recounted=True)
        part = await self._change(key, work, namespace, mine, rows, part.page_to, pace)
        await self._keep(key, mine, part, is_stopped=True)

    async def _keep(self, key: JobKey, mine: _Work, part: BulkPart, *, is_stopped: bool = False) -> bool:
        """Keep the part behind a page, and report it at the end, in time, and when the job stops."""
        part = replace(part, is_done=part.after_key >= part.to_key)
        is_due = self._now_s() - mine.reported_s >= REPORT_MS / 1000
        if part.is_done or is_due or is_stopped or not self._runs(key):
            await self._report(key, mine, part)
        else:
            mine.part = part
        if part.is_done:
            _log.info("bulk_part_done", job=key.id, shard=part.shard_id, matched=part.matched, done=part.done)
        return self._runs(key) and not is_stopped


def _default_rate(view: BulkView) -> int:
    """Return the rate of a job without one of its own, on all shards together; 0 for none."""
    if view.work.action is BulkAction.COUNT:
        return 0
    if view.work.action is BulkAction.REDRIVE:
        return REDRIVES_PER_SECOND_DEFAULT
    return CHANGES_PER_SECOND_DEFAULT * max(1, view.open_count)


def _count_of(shard: ShardState, number: int, work: BulkWork) -> int:
    """Return about the number of items of the wanted topics and states; 0 while the shard counts them."""
    index, chosen = shard.index, work.filter
    if not index.counted:
        return 0
    topics = [index.topics.get((number, name)) for name in chosen.topics]
    counts = [topic for topic in topics if topic is not None] if chosen.topics else [index.namespaces.get(number)]
    total = 0
    for one in counts:
        if one is not None:
            total += one.dead * (ItemState.DEAD in work.states) + one.delayed * (ItemState.DELAYED in work.states)
            total += one.ready * (ItemState.READY in work.states) + one.leased * (ItemState.LEASED in work.states)
    return max(0, total)
