"""The changes that bulk jobs make to items of one shard: a step of a few hundred, with the outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from foqs.host.registry.kept_gates import SlotGates
from foqs.host.registry.namespaces import Namespaces
from foqs.host.shards.shards import Shards
from foqs.host.verbs.inspection import Act, Inspection
from foqs.host.verbs.page_reads import lost
from foqs.model.bulk_work import BulkAction, BulkWork
from foqs.model.calls import PositionErrors
from foqs.model.errors import FoqsError, InvalidArgumentError, NotFoundError
from foqs.model.namespace import Namespace
from foqs.model.serial import slot_of_serial
from foqs.shard.mysql_server import CommitScheduler
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion

SETTLED_TRIES = 4
"""Tries of a change whose item is being settled by another call, before it is left for later."""
SETTLED_PAUSE_MS = 50
STEP_PAUSE_RATIO = 1.0
"""The pause after a step, as a multiple of its time, in which no shard of the server has another one."""
CLOSED_S = 20.0
"""The time, in seconds, for which the turn of a slot of serial topics that was refused is not asked for again, as
each wait for one can take kept_gates.TURN_MS_MAX."""


class StepOutcome(NamedTuple):
    """The numbers of items by outcome, and the keys of those without one."""

    done: int = 0
    skipped: int = 0
    failed: int = 0
    later: Sequence[int] = ()
    """Items that were not changed, and possibly can be later."""
    doubtful: Sequence[int] = ()
    """Items of which it is unknown if they were changed."""
    error: FoqsError | None = None
    """Why some have no outcome."""
    is_stuck: bool = False
    """True if other items of the shard would fare alike now."""


class BulkActs:
    """Does the action of a bulk job on items that its filter has matched, one step of a server at a time."""

    def __init__(
        self,
        namespaces: Namespaces,
        shards: Shards,
        inspection: Inspection,
        gates: SlotGates,
        now_s: Callable[[], float],
    ) -> None:
        """`now_s` is monotonic."""
        self._namespaces = namespaces
        self._shards = shards
        self._inspection = inspection
        self._gates = gates
        self._now_s = now_s
        self._locks: dict[CommitScheduler, asyncio.Lock] = {}
        """The turns of steps, by server."""
        self._closed: dict[tuple[int, int], tuple[float, FoqsError]] = {}
        """The shards and slots whose turn was refused, with the time from which they are asked again."""

    async def change(
        self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]
    ) -> StepOutcome:
        """Change the items of these rows, and return when all is durable. It raises no FoqsError.

        An item that has changed since its row was read, and matches no more, is skipped. One whose change is refused
        for good has failed.
        """
        outcome = StepOutcome()
        for slot, some in self._by_slot(namespace, shard, work, rows).items():
            keys = [row.key for row in some]
            if slot is not None and (closed := self._refusal(shard.shard_id, slot)) is not None:
                outcome = outcome._replace(later=[*outcome.later, *keys], error=closed)
                continue
            async with self._gates.turn([shard.shard_id], slot) as not_now:
                if slot is not None and not_now:
                    error = not_now[shard.shard_id]
                    self._closed[shard.shard_id, slot] = (self._now_s() + CLOSED_S, error)
                    outcome = outcome._replace(later=[*outcome.later, *keys], error=error)
                    continue
                outcome = _together(outcome, await self._in_turn(namespace, shard, work, some))
        return outcome

    def _refusal(self, shard_id: int, slot: int) -> FoqsError | None:
        """Return the error with which the turn of a slot was refused a moment ago."""
        now_s = self._now_s()
        self._closed = {at: one for at, one in self._closed.items() if one[0] > now_s}
        found = self._closed.get((shard_id, slot))
        return None if found is None else found[1]

    async def _in_turn(
        self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]
    ) -> StepOutcome:
        """Change items, one step of a server at a time, with a pause behind it. So others wait for one at most."""
        try:
            writer, _ = self._shards.serving(shard.shard_id)
        except FoqsError as error:
            return StepOutcome(later=[row.key for row in rows], error=error.with_traceback(None), is_stuck=True)
        async with self._locks.setdefault(writer.scheduler, asyncio.Lock()):
            began_s = self._now_s()
            outcome = await self._change(namespace, shard, work, rows)
            await asyncio.sleep(STEP_PAUSE_RATIO * (self._now_s() - began_s))
            return outcome

    def _by_slot(
        self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]
    ) -> Mapping[int | None, list[ItemRow]]:
        """Divide rows by the slots of serial topics, whose shards deliver in turns; None for all other rows."""
        if work.action is not BulkAction.REDRIVE:
            return {None: list(rows)}
        slots: dict[int, int | None] = {}
        found: dict[int | None, list[ItemRow]] = {}
        for row in rows:
            if row.topic not in slots:
                topic = shard.index.by_number.get(row.topic)
                name = "" if topic is None else topic.name
                slots[row.topic] = slot_of_serial(self._namespaces.settings, namespace.number, name) if name else None
            found.setdefault(slots[row.topic], []).append(row)
        return found

    async def _change(
        self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]
    ) -> StepOutcome:
        skipped = failed = 0
        doubtful: list[int] = []
        left, last = list(rows), None
        for tries in range(SETTLED_TRIES):
            if tries:
                await asyncio.sleep(SETTLED_PAUSE_MS / 1000)
            try:
                errors = await self._try(namespace, shard, work, left)
            except FoqsError as failure:
                errors = dict.fromkeys(range(len(left)), failure.with_traceback(None))
            again: list[ItemRow] = []
            for position, error in errors.items():
                if not error.retryable:
                    is_skipped = isinstance(error, NotFoundError | InvalidArgumentError)
                    skipped, failed = skipped + is_skipped, failed + (not is_skipped)
                    continue
                last = error
                if error.nothing_done:
                    again.append(left[position])
                else:
                    doubtful.append(left[position].key)
            left = again
            if not left or doubtful:
                break
        later = [row.key for row in left]
        done = len(rows) - skipped - failed - len(later) - len(doubtful)
        is_stuck = bool(doubtful) or len(later) == len(rows)
        return StepOutcome(done, skipped, failed, later, doubtful, last, is_stuck)

    async def _try(
        self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]
    ) -> PositionErrors:
        _, now = self._shards.serving(shard.shard_id)
        if now is not shard:
            raise lost(shard.shard_id)
        seen = {row.key: row for row in rows}
        act = self._act(namespace, work)

        def act_if_unchanged(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            state, before = shard.state_of(row), seen[row.key]
            if state not in work.states or not work.filter.has_numbers(row, state):
                raise NotFoundError("the item does not match any more")
            if work.filter.has_text_conditions and row.deliveries != before.deliveries:
                raise NotFoundError("the item was delivered since, and has perhaps other texts")
            if (row.lane < 0 or before.lane < 0) and (row.lane, row.due_at) != (before.lane, before.due_at):
                raise NotFoundError("the item has died another time")
            act(shard, row, completion, position)

        return await self._inspection.on_rows(namespace, shard.shard_id, list(seen), act_if_unchanged)

    def _act(self, namespace: Namespace, work: BulkWork) -> Act:
        writers, ttl_ms_max = self._shards.writers, namespace.settings.ttl_ms_max

        def redrive(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            now_ms = writers[shard.shard_id].now_ms()
            until_ms = work.deliver_after_ms
            shard.redrive(row, now_ms, ttl_ms_max, completion, position, deliver_after_ms=until_ms)

        def bury(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
            until_ms = work.filter.deliver_after_ms
            assert until_ms is not None, "an UNDO has the time of its redrive"
            shard.bury(row, until_ms, writers[shard.shard_id].now_ms(), completion, position)

        if work.action is BulkAction.REDRIVE:
            return redrive
        return bury if work.action is BulkAction.UNDO else _delete


def _together(one: StepOutcome, other: StepOutcome) -> StepOutcome:
    return StepOutcome(
        one.done + other.done,
        one.skipped + other.skipped,
        one.failed + other.failed,
        [*one.later, *other.later],
        [*one.doubtful, *other.doubtful],
        other.error or one.error,
        one.is_stuck or other.is_stuck,
    )


def _delete(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
    shard.delete(row, completion, position)
