"""The outcome of each item of a step of a bulk job, by the errors of its changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.host.verbs import bulk_acts
from foqs.host.verbs.bulk_acts import BulkActs
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


async def change(script: dict[int, list[FoqsError | None]], work: BulkWork = DELETE) -> tuple[Any, ScriptedInspection]:
    shard, shards, inspection = Mock(shard_id=3), Mock(), ScriptedInspection(script)
    shards.serving.return_value = (Mock(), shard)

    @asynccontextmanager
    async def turn(shard_ids: Any, slot: Any) -> AsyncIterator[dict[int, FoqsError]]:
        assert slot is None
        yield {}

    acts = BulkActs(Mock(), shards, cast(Any, inspection), cast(Any, Mock(turn=turn)))
    return await acts.change(Mock(), shard, work, rows(5)), inspection


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk_acts, "SETTLED_PAUSE_MS", 0)


def test_items_are_done_skipped_or_failed() -> None:
    outcome, inspection = asyncio.run(
        change({1: [NotFoundError("gone")], 2: [InvalidArgumentError("once")], 3: [InternalError("broken")]})
    )
    assert outcome == (2, 2, 1)
    assert inspection.asked == [[1, 2, 3, 4, 5]]


def test_an_item_that_is_being_settled_is_tried_again_alone() -> None:
    outcome, inspection = asyncio.run(
        change({2: [SETTLED, SETTLED, NotFoundError("acked")], 4: [OverloadedError("full", nothing_done=True)]})
    )
    assert outcome == (4, 1, 0)
    assert inspection.asked == [[1, 2, 3, 4, 5], [2, 4], [2]]


def test_a_change_whose_outcome_is_unknown_ends_the_step() -> None:
    with pytest.raises(UnavailableError, match="lost"):
        asyncio.run(change({1: [NotFoundError("gone")], 5: [UnavailableError("lost", nothing_done=False)]}))


def test_an_item_that_stays_unavailable_ends_the_step_with_its_own_error() -> None:
    script: dict[int, list[FoqsError | None]] = {1: [SETTLED] * 99, 2: [SETTLED, NotFoundError("gone")]}
    with pytest.raises(UnavailableError, match="being settled"):
        asyncio.run(change(script))
    assert len(script[1]) == 99 - bulk_acts.SETTLED_TRIES
