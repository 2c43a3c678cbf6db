"""The changes that bulk jobs make to items of one shard: a step of a few hundred, with the outcome of each."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
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
from foqs.shard.port import ItemRow
from foqs.shard.state.engine import ShardState
from foqs.shard.state.events import Completion

SETTLED_TRIES = 20
"""Tries of a change whose item is being settled by another call."""
SETTLED_PAUSE_MS = 50


class StepOutcome(NamedTuple):
    done: int
    skipped: int
    failed: int


class BulkActs:
    """Does the action of a bulk job on items that its filter has matched."""

    def __init__(self, namespaces: Namespaces, shards: Shards, inspection: Inspection, gates: SlotGates) -> None:
        self._namespaces = namespaces
        self._shards = shards
        self._inspection = inspection
        self._gates = gates

    async def change(
        self, namespace: Namespace, shard: ShardState, work: BulkWork, rows: Sequence[ItemRow]
    ) -> StepOutcome:
        """Change the items of these rows, and return when all is durable.

        An item that has changed since its row was read, and matches no more, is skipped. One whose change is refused
        for good has failed. Raises UnavailableError or OverloadedError if some could not be changed now; it is unknown
        then if others were.
        """
        skipped = failed = 0
        for slot, some in self._by_slot(namespace, shard, work, rows).items():
            async with self._gates.turn([shard.shard_id], slot) as not_now:
                if not_now:
                    raise next(iter(not_now.values()))
                errors = await self._change(namespace, shard, work, some)
            skipped_count = sum([isinstance(error, NotFoundError | InvalidArgumentError) for error in errors])
            skipped += skipped_count
            failed += len(errors) - skipped_count
        return StepOutcome(len(rows) - skipped - failed, skipped, failed)

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
    ) -> list[FoqsError]:
        """Change items, and return the errors of those that cannot be changed."""
        refused: list[FoqsError] = []
        left, not_now = list(rows), None
        for _ in range(SETTLED_TRIES):
            errors = await self._try(namespace, shard, work, left)
            again: list[ItemRow] = []
            for position, error in errors.items():
                if not error.retryable:
                    refused.append(error)
                    continue
                if not error.nothing_done:
                    raise error
                not_now = error
                again.append(left[position])
            if not again:
                return refused
            left = again
            await asyncio.sleep(SETTLED_PAUSE_MS / 1000)
        assert not_now is not None, "it has been tried"
        raise not_now

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


def _delete(shard: ShardState, row: ItemRow, completion: Completion, position: int) -> None:
    shard.delete(row, completion, position)
