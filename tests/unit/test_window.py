"""The window against a plain sorted list of the whole lane."""

from __future__ import annotations

import random

import pytest

from foqs.model import limits, order
from foqs.model.topic import OLDEST_URGENCIES_MAX, ReadyWindow
from foqs.model.window_budget import WindowBudget


@pytest.mark.parametrize("seed", range(30))
def test_taking_from_a_window_with_refills_gives_the_order_of_the_whole_lane(seed: int, monkeypatch) -> None:
    """Oracle: a sorted list holds every row; the window may only ever hold its most urgent part."""
    monkeypatch.setattr(limits, "WINDOW_ITEMS_MAX", 20)
    chance = random.Random(seed)
    lane: list[int] = []
    window = ReadyWindow(WindowBudget(), complete=True)
    key = 0
    for _ in range(400):
        if chance.random() < 0.6:
            key += 1
            sort_key = order.sort_key(chance.randrange(-5, 5), chance.randrange(100), key, 1)
            lane.append(sort_key)
            window.add(sort_key)
        elif lane:
            if not window.sort_keys or (window.wants_refill and chance.random() < 0.5):
                rows = sorted(sort_key for sort_key in lane if sort_key > window.edge)[:10]
                window.extend(rows, rows[-1] if len(rows) == 10 else order.LAST)
            assert window.head <= min(lane)
            if window.sort_keys:
                assert window.take(1) == [min(lane)]
                lane.remove(min(lane))
        assert len(window) <= 20
        assert window.sort_keys == sorted(sort_key for sort_key in lane if sort_key <= window.edge)


@pytest.mark.parametrize("seed", range(20))
def test_the_oldest_of_a_window_is_the_oldest_of_its_most_urgent_urgencies(seed: int) -> None:
    chance = random.Random(seed)
    parts = [(chance.randrange(-8, 8), chance.randrange(100), key, 1) for key in range(chance.randrange(30))]
    window = ReadyWindow(WindowBudget(), complete=True)
    window.add_all([order.sort_key(*part) for part in parts])
    looked_at = sorted({part[0] for part in parts})[:OLDEST_URGENCIES_MAX]
    assert window.oldest_due_at() == min([part[1] for part in parts if part[0] in looked_at], default=None)


def test_a_place_keeps_its_parts_and_sorts_by_urgency_then_time_then_key() -> None:
    chance = random.Random(1)
    parts = [
        (chance.randrange(-(1 << 31), 1 << 31), chance.randrange(1 << 48), chance.randrange(1, 1 << 64), 65535)
        for _ in range(1_000)
    ]
    sort_keys = [order.sort_key(*part) for part in parts]
    assert sorted(sort_keys) == [order.sort_key(*part) for part in sorted(parts)]
    assert [(order.urgency_of(p), order.due_at_of(p), order.key_of(p)) for p in sort_keys] == [p[:3] for p in parts]
    assert all(order.FIRST < sort_key < order.LAST for sort_key in sort_keys)


@pytest.mark.parametrize("is_complete", [True, False])
@pytest.mark.parametrize("count", [1, 3, 40])
def test_many_sort_keys_are_added_as_one_after_the_other_are(
    is_complete: bool, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(count)
    monkeypatch.setattr(limits, "WINDOW_ITEMS_MAX", 100)
    budget = WindowBudget()
    one, many = ReadyWindow(budget, complete=is_complete), ReadyWindow(budget, complete=is_complete)
    if not is_complete:
        for window in (one, many):
            window.extend([], 1_500)
    unused = chance.sample(range(2_000), 30 * count)
    for step in range(30):
        added = unused[step * count : (step + 1) * count]
        for sort_key in added:
            one.add(sort_key)
        many.add_all(added)
        # A trim comes sooner where they come one by one; up to the nearer edge both are the same.
        edge = min(one.edge, many.edge)
        assert [key for key in many.sort_keys if key <= edge] == [key for key in one.sort_keys if key <= edge]
        assert len(many) <= budget.items_max


def test_windows_with_few_items_take_no_room_from_one_with_many() -> None:
    """As those of 25,000 ordering keys with an item each."""
    budget = WindowBudget()
    budget.share(25_001)
    for _ in range(25_000):
        ReadyWindow(budget, complete=True).add(order.sort_key(0, 1, 1, 1))
    long = ReadyWindow(budget, complete=True)
    long.add_all([order.sort_key(0, 1, key, 1) for key in range(1, 20_000)])
    assert len(long) == limits.WINDOW_ITEMS_MAX * 3 // 4


@pytest.mark.parametrize("count", [1, 50, 2_000])
def test_long_windows_share_the_room_of_a_shard_and_late_ones_get_a_part_beyond_it(count: int) -> None:
    budget = WindowBudget()
    budget.share(count)
    windows = [ReadyWindow(budget, complete=False) for _ in range(count)]
    for _ in range(200):
        for window in windows:
            if window.wants_refill:
                edge = window.edge + budget.refill_items
                window.extend(range(window.edge + 1, edge + 1), edge)
            window.take(len(window) // 10)
    assert budget.items_count == sum(map(len, windows))
    assert max(map(len, windows)) <= limits.WINDOW_ITEMS_MAX
    assert min(map(len, windows)) >= min(limits.WINDOW_ITEMS_MAX, limits.WINDOWS_OF_SHARD_ITEMS_MAX // 2 // count) // 5
    for window in windows:
        window.add_all(list(range(-2_000, 0)))
        assert budget.items_count <= limits.WINDOWS_OF_SHARD_ITEMS_MAX * 3 // 2 + 4_000


def test_what_windows_lose_is_room_again() -> None:
    budget = WindowBudget()
    window = ReadyWindow(budget, complete=False)
    window.extend([order.sort_key(0, 1, key, 1) for key in range(1, 101)], order.sort_key(0, 1, 100, 1))
    assert budget.items_count == 100
    window.take(40)
    assert window.remove(order.sort_key(0, 1, 41, 1))
    assert not window.remove(order.sort_key(0, 1, 41, 1))
    assert budget.items_count == len(window) == 59
