"""The work of bulk jobs on the shards of this host: page after page, beside all other work, with pauses."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import structlog

from foqs.background.outage_log import OutageLog
from foqs.background.service import Service
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.bulk_acts import BulkActs, StepOutcome
from foqs.host.verbs.bulk_parts import BulkParts, HeldPart
from foqs.host.verbs.copy_pace import CopyPace
from foqs.host.verbs.exports import Exports, MatchingRows
from foqs.host.verbs.page_reads import lost
from foqs.model import limits
from foqs.model.bulk_work import BulkAction, BulkWork, PartBeginning, behind_page, given_back, without
from foqs.model.calls import ItemState
from foqs.model.errors import FoqsError
from foqs.model.namespace import Namespace
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
LEAVE_MS = 1 * limits.SECOND_MS
"""The time that the hand-over of a shard waits for the end of a step."""
LATER_ITEMS_MAX = 1_000
"""Items that a part passes over before it continues."""
LATER_MS = 2 * limits.SECOND_MS
"""The pause between two tries of items that were passed over."""
REFUSED_MS = 1 * limits.SECOND_MS
"""The pause after a page of which no item was granted. It doubles with each further one."""
REFUSED_FACTOR_MAX = 16
REPORT_MS = 2 * limits.SECOND_MS
"""The longest time between two reports of a part, unless it has come to items that match."""
REDRIVES_PER_SECOND_DEFAULT: Final = 500
"""The rate of a redrive without one of its own, in the cluster: consumers have to take the items."""
CHANGES_PER_SECOND_DEFAULT: Final = 2_000
"""The rate of other changes without one of their own, on each shard."""

_log = structlog.get_logger(__name__)


class _Turn(NamedTuple):
    """A job as one turn of it on a shard knows it."""

    key: JobKey
    work: BulkWork
    namespace: Namespace
    pace: CopyPace


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
        self._parts = BulkParts(namespaces.bulk_calls, now_s)
        self._views: dict[JobKey, BulkView] = {}
        """The jobs that run and have parts on shards of this host."""
        self._held: dict[tuple[JobKey, int], HeldPart] = {}
        self._paces: dict[JobKey, CopyPace] = {}
        self._turning: dict[int, asyncio.Task[None]] = {}
        """The shards on which parts are being done."""
        self._leaving: set[ShardState] = set()
        """The shards that this host is about to hand over."""

    async def _start(self) -> None:
        outage = OutageLog(self._now_s, "bulk_jobs_wait", "bulk_jobs_go_on")
        self._tasks.repeat(lambda: asyncio.sleep(ROUND_PAUSE_MS / 1000), self._round, outage=outage)

    async def _round(self) -> None:
        """Look at the jobs that run, and begin the work on each shard that has some."""
        keys = [JobKey(number, job_id) for number, some in self._namespaces.bulk_running.items() for job_id in some]
        if not keys and not self._views and not self._held:
            return
        owned = {shard.shard_id: shard for _, shard in self._shards.owned()}
        healthy = [shard_id for shard_id in owned if self._is_healthy(shard_id)]
        self._views = await self._parts.views(keys, healthy) if keys and healthy else {}
        # The states of lost shards are freed.
        self._leaving &= {*owned.values()}
        self._held = {at: one for at, one in self._held.items() if owned.get(at[1]) is one.shard}
        self._paces = {key: pace for key, pace in self._paces.items() if key in self._views}
        for key, view in self._views.items():
            self._set_pace(key, view)
        held = {shard_id for _, shard_id in self._held}
        for shard_id in healthy:
            has_work = shard_id in held or any(shard_id in view.mine for view in self._views.values())
            if has_work and shard_id not in self._turning and owned[shard_id] not in self._leaving:
                walk = self._walk(owned[shard_id])
                self._turning[shard_id] = self._tasks.spawn(walk, f"bulk jobs of shard {shard_id}")

    async def leave(self, shard_id: int) -> None:
        """Do nothing more on a shard that is about to be handed over, and report its parts, if that takes no longer
        than LEAVE_MS. So the next owner has no page in doubt.
        """
        for shard in [one for _, one in self._shards.owned() if one.shard_id == shard_id]:
            self._leaving.add(shard)
            if (walk := self._turning.get(shard_id)) is not None:
                await asyncio.wait([walk], timeout=LEAVE_MS / 1000)

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
        rate = view.items_per_second_max or _default_rate(self._parts.work_of(key), view.open_count)
        pace.set_share(rate, len(view.mine), view.open_count, self._now_s())

    async def _walk(self, shard: ShardState) -> None:
        """Give each job turns on a shard until no one can continue."""
        try:
            goes_on = True
            while goes_on:
                await self._let_go_all(shard)
                goes_on = False
                for key in list(self._views):
                    if self._has_work(key, shard):
                        goes_on |= await self._turn(key, shard)
            await self._let_go_all(shard)
        finally:
            self._turning.pop(shard.shard_id, None)

    async def _let_go_all(self, shard: ShardState) -> None:
        """Let go of the parts without work for this host."""
        for key in [key for key, shard_id in self._held if shard_id == shard.shard_id]:
            if not self._has_work(key, shard):
                await self._let_go(key, shard)

    def _has_work(self, key: JobKey, shard: ShardState) -> bool:
        return key in self._views and shard.shard_id in self._views[key].mine and shard not in self._leaving

    def _runs(self, key: JobKey, shard: ShardState) -> bool:
        """True if the job runs, as far as this host knows; one that has stopped has only pages to be counted."""
        return key in self._views and self._views[key].is_running and shard not in self._leaving

    async def _turn(self, key: JobKey, shard: ShardState) -> bool:
        """Do a turn of one job on one shard. Returns True if another one can follow at once."""
        namespace = self._namespaces.view.by_number.get(key.namespace)
        if namespace is None:
            return False
        turn = _Turn(key, self._parts.work_of(key), namespace, self._pace_of(key))
        at = (key, shard.shard_id)
        try:
            mine = self._held.get(at)
            if mine is None or mine.shard is not shard:
                mine = await self._take(turn, shard)
                if mine is None:
                    return False
                self._held[at] = mine
            elif mine.is_unsure and not await self._parts.settle(key, mine, self._beginning(turn, shard)):
                self._held.pop(at, None)
                return False
            if mine.part.page_to:
                await self._recount(turn, mine)
            if not self._runs(key, shard):
                await self._let_go(key, shard)
                return False
            return await self._pages(turn, mine)
        except FoqsError as error:
            _log.info("bulk_part_waits", job=key.id, shard=shard.shard_id, error=error.message)
            await self._report_error(key, self._held.get(at), error)
            return False

    async def _let_go(self, key: JobKey, shard: ShardState) -> None:
        """Report the part of a job that does not run, and forget it."""
        at = (key, shard.shard_id)
        mine = self._held.get(at)
        if mine is not None and mine.shard is shard and mine.is_ahead_of_report:
            try:
                await self._parts.send(key, mine)
            except FoqsError as error:
                _log.info("bulk_part_not_reported", job=key.id, shard=shard.shard_id, error=error.message)
                return  # It is tried again at the next look.
        self._held.pop(at, None)

    async def _report_error(self, key: JobKey, mine: HeldPart | None, error: FoqsError) -> None:
        """Report the part as it is, and why it waits."""
        if mine is None or mine.is_unsure or (mine.part.error == error.message and not mine.is_ahead_of_report):
            return
        mine.part = replace(mine.part, error=error.message)
        try:
            await self._parts.report(key, mine)
        except FoqsError as another:
            _log.debug("bulk_error_not_reported", job=key.id, error=another.message)

    def _beginning(self, turn: _Turn, shard: ShardState) -> PartBeginning:
        """Return the facts with which a part begins now. Raises UnavailableError without the shard."""
        writer, now = self._shards.serving(shard.shard_id)
        if now is not shard:
            raise lost(shard.shard_id)
        count = _count_of(shard, turn.namespace.number, turn.work)
        return PartBeginning(writer.now_ms(), shard.index.last_key, count)

    async def _take(self, turn: _Turn, shard: ShardState) -> HeldPart | None:
        """Begin a part, or continue behind the last owner of the shard."""
        return await self._parts.take(turn.key, shard, self._beginning(turn, shard))

    # ---- pages ----

    async def _pages(self, turn: _Turn, mine: HeldPart) -> bool:
        until_s = self._now_s() + TURN_MS / 1000
        while self._runs(turn.key, mine.shard) and turn.pace.is_free(self._now_s()):
            if not await self._page(turn, mine):
                return False
            if mine.part.is_done:
                self._held.pop((turn.key, mine.shard.shard_id), None)
                self._note_done(turn.key, mine.shard.shard_id)
                return True
            if self._now_s() >= until_s:
                return True
        return False

    def _note_done(self, key: JobKey, shard_id: int) -> None:
        """Leave out the part until the next look."""
        view = self._views.get(key)
        if view is not None:
            self._views[key] = view._replace(mine=view.mine - {shard_id})

    async def _page(self, turn: _Turn, mine: HeldPart) -> bool:
        """Do the next page, and return True if the job continues at once."""
        now_s, part = self._now_s(), mine.part
        if now_s < mine.next_s:
            return False
        if part.later_keys and now_s >= mine.later_s:
            mine.later_s = now_s + LATER_MS / 1000
            return await self._page_of_later(turn, mine)
        if part.later_keys and (part.after_key >= part.to_key or len(part.later_keys) >= LATER_ITEMS_MAX):
            await self._keep(turn, mine)
            return False
        found = await self._read(turn, mine, part.after_key, part.to_key)
        if turn.work.action is BulkAction.COUNT or not found.rows:
            matched, examined = part.matched + len(found.rows), part.examined + len(found.examined_keys)
            mine.part = replace(part, matched=matched, examined=examined, after_key=found.up_to)
            return await self._keep(turn, mine)
        return await self._take_up(turn, mine, found)

    async def _page_of_later(self, turn: _Turn, mine: HeldPart) -> bool:
        """Come again to items that were passed over."""
        keys = mine.part.later_keys[:PAGE_ITEMS_MAX]
        found = await self._read(turn, mine, keys[0] - 1, keys[-1], keys)
        gone = {key for key in keys if key <= found.up_to} - {row.key for row in found.rows}
        mine.part = replace(mine.part, later_keys=without(mine.part.later_keys, gone))
        if not found.rows:
            return await self._keep(turn, mine)
        return await self._take_up(turn, mine, found._replace(examined_keys=[]))

    async def _take_up(self, turn: _Turn, mine: HeldPart, found: MatchingRows) -> bool:
        """Report a page, change the items of it that are granted, and return True if the job continues at once."""
        rows = found.rows
        wanted_count = min(len(rows), self._page_items_max(turn, mine))
        end = found.up_to if wanted_count == len(rows) else rows[wanted_count - 1].key
        answer = await self._parts.report(turn.key, mine, [row.key for row in rows[:wanted_count]], end)
        if not answer.granted_count:
            # Others have items in work that are possibly given back.
            mine.next_s = self._now_s() + REFUSED_MS * min(2**mine.refusals_count, REFUSED_FACTOR_MAX) / 1000
            mine.refusals_count += 1
            return False
        mine.refusals_count = 0
        examined = bisect_right(found.examined_keys, mine.part.page_to)
        mine.part = replace(mine.part, examined=mine.part.examined + examined)
        error = await self._change(turn, mine, rows[: answer.granted_count])
        return await self._keep(turn, mine, error, is_stopped=not answer.is_running)

    def _page_items_max(self, turn: _Turn, mine: HeldPart) -> int:
        """Return the most items of a page: one step's beside other jobs of the shard, which would wait for its rate."""
        shard_id = mine.shard.shard_id
        is_alone = sum([shard_id in view.mine for view in self._views.values()]) <= 1
        if is_alone or not turn.pace.items_per_second:
            return turn.pace.items_within(REPORT_MS, PAGE_ITEMS_MAX)
        return turn.pace.step_items_max(STEP_ITEMS_MAX)

    async def _read(
        self, turn: _Turn, mine: HeldPart, after_key: int, to_key: int, keys: Sequence[int] = ()
    ) -> MatchingRows:
        """Return the next items that match, of `keys` if given."""
        part, work = mine.part, turn.work
        if after_key >= to_key:
            return MatchingRows([], [], to_key)
        found = await self._exports.rows_matching(
            mine.shard, turn.namespace, work, after_key, to_key, PAGE_ITEMS_MAX, keys
        )
        rows = found.rows
        if work.action is BulkAction.REDRIVE:
            # One that has died since the beginning has possibly been redriven by this job before.
            rows = [row for row in rows if row.due_at <= part.as_of_ms]
        elif work.action is BulkAction.UNDO:
            rows = [row for row in rows if row.death_reason]  # Others that wait for the same time never died.
        return found._replace(rows=rows)

    async def _change(self, turn: _Turn, mine: HeldPart, rows: Sequence[ItemRow]) -> FoqsError | None:
        """Change the items of the page in work in steps, until the job stops or the shard cannot continue.

        The others are given back. Returns the last error of those.
        """
        first, error, is_stuck = 0, None, False
        while first < len(rows) and self._runs(turn.key, mine.shard) and not is_stuck:
            some = rows[first : first + turn.pace.step_items_max(STEP_ITEMS_MAX)]
            outcome = await self._acts.change(turn.namespace, mine.shard, turn.work, some)
            self._count(mine, [row.key for row in some], outcome)
            first += len(some)
            error, is_stuck = outcome.error or error, outcome.is_stuck
            turn.pace.charge(len(some) - len(outcome.later), self._now_s())
            if first < len(rows):
                await self._until_free(turn, mine)
        untried = [row.key for row in rows[first:]]
        mine.part = behind_page(given_back(mine.part, untried))
        if is_stuck:
            mine.next_s = self._now_s() + ROUND_PAUSE_MS / 1000
        return error

    def _count(self, mine: HeldPart, keys: Sequence[int], outcome: StepOutcome) -> None:
        """Count the outcome of a step. Items in doubt stay in work."""
        part = given_back(mine.part, outcome.later)
        open_keys = frozenset(keys) - frozenset(outcome.doubtful)
        mine.part = replace(
            part,
            page_keys=without(part.page_keys, open_keys),
            done=part.done + outcome.done,
            skipped=part.skipped + outcome.skipped,
            failed=part.failed + outcome.failed,
        )

    async def _until_free(self, turn: _Turn, mine: HeldPart) -> None:
        """Wait for the rate of a job, while it runs, for about the time of a page."""
        for _ in range(REPORT_MS // ROUND_PAUSE_MS):
            wait_s = turn.pace.wait_s(self._now_s())
            if wait_s <= 0 or not self._runs(turn.key, mine.shard):
                return
            await asyncio.sleep(min(wait_s, ROUND_PAUSE_MS / 1000))

    async def _recount(self, turn: _Turn, mine: HeldPart) -> None:
        """Count the items in doubt that do not match any more as done, and change the others.

        They were in work when the owner lost the shard, or when the outcome of a step got lost. If the job has stopped
        since, the others are given back.
        """
        part = mine.part
        rows: list[ItemRow] = []
        after_key, end = min(part.page_keys, default=1) - 1, max(part.page_keys, default=0)
        while after_key < end:
            found = await self._read(turn, mine, after_key, end, part.page_keys)
            rows += found.rows
            after_key = found.up_to
        gone_count = len(part.page_keys) - len(rows)
        mine.part = replace(
            part,
            page_keys=tuple([row.key for row in rows]),
            done=part.done + gone_count,
            is_recounted=part.is_recounted or gone_count > 0,
        )
        await self._keep(turn, mine, await self._change(turn, mine, rows), is_stopped=True)

    async def _keep(
        self, turn: _Turn, mine: HeldPart, error: FoqsError | None = None, *, is_stopped: bool = False
    ) -> bool:
        """Keep the part behind a page, and report it at the end, in time, and when the job stops or some items wait.

        Returns True if the job continues at once.
        """
        part = mine.part
        is_done = part.after_key >= part.to_key and not part.later_keys and not part.page_keys
        text = part.error if part.later_keys and error is None else ""
        if error is not None and (part.later_keys or part.page_keys):
            text = f"{len(part.later_keys) + len(part.page_keys)} items wait: {error.message}"
        is_due = mine.is_ahead_of_report and self._now_s() - mine.reported_s >= REPORT_MS / 1000
        mine.part = part = replace(part, is_done=is_done, error=text)
        has_changed = error is not None or text != mine.reported.error
        if is_done or is_due or is_stopped or has_changed or not self._runs(turn.key, mine.shard):
            await self._parts.report(turn.key, mine)
        if is_done:
            _log.info("bulk_part_done", job=turn.key.id, shard=part.shard_id, matched=part.matched, done=part.done)
        return self._runs(turn.key, mine.shard) and not is_stopped and not part.page_keys


def _default_rate(work: BulkWork, open_count: int) -> int:
    """Return the rate of a job without one of its own, on all shards together; 0 for none."""
    if work.action is BulkAction.COUNT:
        return 0
    if work.action is BulkAction.REDRIVE:
        return REDRIVES_PER_SECOND_DEFAULT
    return CHANGES_PER_SECOND_DEFAULT * max(1, open_count)


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
