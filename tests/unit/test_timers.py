"""Delayed items, and the checkpoint before which none is due."""

from __future__ import annotations

import pytest

from foqs.model import limits
from foqs.shard.port import TIMER_LANE, ItemRow
from foqs.shard.state.events import Completion, LookUp
from tests.support.shards import Shards


def test_the_checkpoint_stays_before_delayed_rows_whose_deletion_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TRANSACTION_CHANGES_MAX", 1)
    shards = Shards(1)
    keys = [item.key for item in shards.enqueue(0, "a", delay_ms=1_000, count=3)]
    shards.run(0)
    rows = shards.states[0]

    def delete(found: dict[int, ItemRow]) -> None:
        for row in found.values():
            rows.delete(row, Completion(lambda _: None), 0)

    rows.look_up(LookUp(keys, delete, pytest.fail))
    shards.begin(0)
    shards.end(0)
    shards.clock_ms += 2_000
    table = shards.tables[0]
    for left_count in (2, 1, 0):
        shards.begin(0)
        shards.end(0)
        left = [row for row in table.items.values() if row.lane == TIMER_LANE]
        assert len(left) == left_count
        assert all(row.due_at >= table.writer.delay_checkpoint for row in left)
    shards.enqueue(0, "a")
    shards.run(0)
    assert table.writer.delay_checkpoint == shards.clock_ms
