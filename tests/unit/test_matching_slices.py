"""Rows are compared with the filter of a bulk job in short slices, and lose their contents."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count, pairwise
from typing import Any, cast
from unittest.mock import Mock

import pytest

from foqs.host.verbs import page_reads
from foqs.host.verbs.exports import _matching
from foqs.host.verbs.page_reads import SLICE_MS_MAX, Slices
from foqs.model.bulk_work import BulkAction, BulkWork
from foqs.model.calls import NO_CONTENT, ItemContent, ItemState
from foqs.model.failures import entry
from foqs.model.item_filter import CONTENT_BYTES_MAX, ItemFilter
from foqs.shard.port import ItemRow

STEPS = 40


async def test_a_slice_ends_with_the_first_step_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each step takes a third of a slice, and others have the loop between two slices."""
    ticks = count()
    monkeypatch.setattr(page_reads, "perf_counter", lambda: next(ticks) * SLICE_MS_MAX / 3_000)
    slices, done, seen = Slices(asyncio.get_running_loop()), [0], list[int]()

    def steps() -> Iterator[int | None]:
        for number in range(STEPS):
            done[0] = number + 1
            yield number if number % 2 else None

    async def watch() -> None:
        while done[0] < STEPS:
            seen.append(done[0])
            await asyncio.sleep(0)

    watching = asyncio.create_task(watch())
    assert await slices.drawn(steps()) == list(range(1, STEPS, 2))
    await watching
    assert max(later - before for before, later in pairwise(seen)) <= 4


def row(key: int, content: ItemContent) -> ItemRow:
    return ItemRow(key, -1, 0, 5, 1, 0, 0, 0, 0, 0, 0, 2, b"bad card", None, content, entry(1, 1, "bad card"))


def test_rows_that_match_have_no_contents() -> None:
    """Those of a page are kept until all its items are changed."""
    shard = cast(Any, Mock(state_of=lambda row: ItemState.DEAD))
    rows = [row(key, ItemContent(b"pay%d" % (key % 2), b"meta")) for key in range(1, 7)]
    chosen = ItemFilter(payload_contains=b"y1", metadata_contains=b"eta", error_contains="card")
    found = list(_matching(shard, BulkWork(filter=chosen, action=BulkAction.REDRIVE), rows))
    kept = [one for one in found if one is not None]
    assert [one.key for one in kept] == [1, 3, 5]
    assert [(one.content, one.errors) for one in kept] == [(NO_CONTENT, b"")] * 3
    assert {(one.due_at, one.death_reason) for one in kept} == {(5, b"bad card")}


def test_a_long_search_is_many_steps() -> None:
    shard = cast(Any, Mock(state_of=lambda row: ItemState.READY))
    content = ItemContent(b"a" * 200_000, b"")
    wanted = b"a" * (CONTENT_BYTES_MAX - 2) + b"ba"
    steps = list(_matching(shard, BulkWork(filter=ItemFilter(payload_contains=wanted)), [row(1, content)]))
    assert len(steps) > 300
    assert steps == [None] * len(steps)
