"""The outcome of each item of a step of a bulk job, by the errors of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.host.verbs import bulk_acts
from foqs.host.verbs.bulk_acts import BulkActs, StepOutcome
from foqs.model.bulk_work import BulkAction, BulkWork
from foqs.model.calls import NO_CONTENT
from foqs.model.errors import (
    FoqsError,
    InternalError,
    InvalidArgumentError,
    NotFoundError,
    OverloadedError,
    UnavailableError,
)
from foqs.shard.port import ItemRow

DELETE = BulkWork(action=BulkAction.DELETE)
GATED = UnavailableError("the slot is behind a gate", nothing_done=True)
SETTLED = UnavailableError("it is being settled", nothing_done=True)


class ScriptedInspection:
    """Gives the errors of a script, by the key of the item, one after the other."""

    def __init__(self, script: dict[int, list[FoqsError | None]]) -> None:
        self.script = script
        self.asked: list[list[int]] = []

    async def on_rows(self, namespace: Any, shard_id: int, keys: Iterable[int], act: Any) -> dict[int, FoqsError]:
        self.asked.append(list(keys))
        given = {at: self.script[key].pop(0) for at, key in enumerate(keys) if self.script.get(key)}
        return {at: error for at, error in given.items() if error is not None}


def rows(count: int) -> list[ItemRow]:
    return [ItemRow(key, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, None, None, NO_CONTENT) for key in range(1, count + 1)]


class Gates:
    """Refuses the turns of some slots."""

    def __init__(self, refused: set[int]) -> None:
        self.refused = refused
        self.asked: list[int] = []

    @asynccontextmanager
    async def turn(self, shard_ids: list[int], slot: int | None) -> AsyncIterator[dict[int, FoqsError]]:
        if slot is not None:
            self.asked.append(slot)
        yield {shard_ids[0]: GATED} if slot in self.refused else {}


def acts_of(inspection: ScriptedInspection, gates: Gates, now_s: Any = lambda: 0.0) -> tuple[BulkActs, Any]:
    shard, shards = Mock(shard_id=3), Mock()
    shards.serving.return_value = (Mock(), shard)
    return BulkActs(Mock(), shards, cast(Any, inspection), cast(Any, gates), now_s), shard


async def change(
    script: dict[int, list[FoqsError | None]], work: BulkWork = DELETE
) -> tuple[StepOutcome, ScriptedInspection]:
    inspection = ScriptedInspection(script)
    acts, shard = acts_of(inspection, Gates(set()))
    return await acts.change(Mock(), shard, work, rows(5)), inspection


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_acts, "SETTLED_PAUSE_MS", 0)


def test_items_are_done_skipped_or_failed() -> None:
    outcome, inspection = asyncio.run(
        change({1: [NotFoundError("gone")], 2: [InvalidArgumentError("once")], 3: [InternalError("broken")]})
    )
    assert outcome == StepOutcome(2, 2, 1, [], [])
    assert inspection.asked == [[1, 2, 3, 4, 5]]


def test_an_item_that_is_being_settled_is_tried_again_alone() -> None:
    full = OverloadedError("full", nothing_done=True)
    outcome, inspection = asyncio.run(change({2: [SETTLED, SETTLED, NotFoundError("acked")], 4: [full]}))
    assert outcome[:5] == (4, 1, 0, [], [])
    assert inspection.asked == [[1, 2, 3, 4, 5], [2, 4], [2]]


def test_an_item_whose_outcome_is_unknown_is_in_doubt_and_the_others_are_counted() -> None:
    lost = UnavailableError("lost", nothing_done=False)
    outcome, _ = asyncio.run(change({1: [NotFoundError("gone")], 4: [SETTLED], 5: [lost]}))
    assert outcome == StepOutcome(2, 1, 0, [4], [5], lost, is_stuck=True)


def test_an_item_that_cannot_be_changed_now_is_left_for_later_alone() -> None:
    script: dict[int, list[FoqsError | None]] = {1: [SETTLED] * 99, 2: [SETTLED, NotFoundError("gone")]}
    outcome, _ = asyncio.run(change(script))
    assert outcome == StepOutcome(3, 1, 0, [1], [], SETTLED)
    assert len(script[1]) == 99 - bulk_acts.SETTLED_TRIES


def test_a_step_that_changes_nothing_is_stuck() -> None:
    outcome, _ = asyncio.run(change({key: [SETTLED] * 99 for key in range(1, 6)}))
    assert (outcome.later, outcome.is_stuck) == ([1, 2, 3, 4, 5], True)


def test_a_lost_shard_leaves_all_items_for_later() -> None:
    acts, shard = acts_of(ScriptedInspection({}), Gates(set()))
    acts._shards.serving.side_effect = UnavailableError("lost", nothing_done=True)  # type: ignore[attr-defined]
    outcome = asyncio.run(acts.change(Mock(), shard, DELETE, rows(2)))
    assert (outcome.done, outcome.later, outcome.is_stuck) == (0, [1, 2], True)


def test_items_of_a_slot_behind_a_gate_wait_and_the_others_are_redriven(monkeypatch: pytest.MonkeyPatch) -> None:
    """The turn of the slot is not asked for again until a while has passed."""
    gates, inspection, now = Gates({7}), ScriptedInspection({}), [100.0]
    acts, shard = acts_of(inspection, gates, lambda: now[0])
    made = rows(4)
    slots = {1: None, 2: 7, 3: 8, 4: 7}
    monkeypatch.setattr(
        acts, "_by_slot", lambda *_: {slot: [r for r in made if slots[r.key] == slot] for slot in (None, 7, 8)}
    )
    redrive = BulkWork(action=BulkAction.REDRIVE)
    for asked in ([7, 8], [7, 8, 8]):
        outcome = asyncio.run(acts.change(Mock(), shard, redrive, made))
        assert outcome == StepOutcome(2, 0, 0, [2, 4], [], GATED)
        assert gates.asked == asked
    assert inspection.asked == [[1], [3]] * 2
    now[0] += bulk_acts.CLOSED_S + 1
    gates.refused.clear()
    assert asyncio.run(acts.change(Mock(), shard, redrive, made)).done == 4
