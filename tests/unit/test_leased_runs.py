"""A new owner gets past what is under lease without reading it, and past nothing else."""

from __future__ import annotations

import pytest

from foqs.model import order
from foqs.shard.writer import leased_runs
from foqs.shard.writer.leased_runs import skip_leased
from tests.support.shards import NAMESPACE, Shards


class Rows:
    """The topic's rows as its shard's server counts them."""

    def __init__(self, shards: Shards) -> None:
        rows = shards.tables[0].items.values()
        self.sort_keys = sorted(order.sort_key(row.urgency, row.due_at, row.key, 0) for row in rows)
        self.asked_count = 0

    def sort_key_after(self, lane: int, edge: int, count: int) -> int | None:
        self.asked_count += 1
        behind = [sort_key for sort_key in self.sort_keys if sort_key > edge]
        return behind[count - 1] if len(behind) >= count else None


def left(count: int, leased: list[int]) -> Shards:
    """A shard with a topic of which the rows with these numbers, in order, are under lease."""
    shards = Shards(1)
    items = shards.enqueue(0, "a", count=count)
    shards.run(0)
    assert not shards.states[0].index.leases
    for number in leased:
        shards.states[0].index.leases[items[number].key] = items[number]
        items[number].topic.count_leased(1)
    return shards


@pytest.mark.parametrize("run", [0, 1, 5, 63, 64, 65, 99, 100])
def test_the_edge_comes_to_stand_before_the_first_row_that_is_not_leased(
    monkeypatch: pytest.MonkeyPatch, run: int
) -> None:
    monkeypatch.setattr(leased_runs, "LEASED_RUN_MIN", 1)
    shards = left(100, [*range(run), *range(run + 1, 100, 2)])
    index, rows = shards.states[0].index, Rows(shards)
    window = index.topic(NAMESPACE, "a").window
    window.edge, window.sort_keys = order.FIRST, []
    skip_leased(index, rows.sort_key_after)
    passed = [sort_key for sort_key in rows.sort_keys if sort_key <= window.edge]
    assert len(passed) <= run
    assert run - len(passed) <= 2
    assert rows.asked_count <= 8


def test_few_leases_are_not_worth_a_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leased_runs, "LEASED_RUN_MIN", 11)
    shards = left(100, list(range(10)))
    rows = Rows(shards)
    skip_leased(shards.states[0].index, rows.sort_key_after)
    assert not rows.asked_count
