"""Places of items that age, and what follows from them: promise P16 against all pairs of items."""

from __future__ import annotations

import random

import pytest

from foqs.model import order
from foqs.model.aging import AGING_MS_MAX, FIRST_DAY_MS, PLACE_UNIT_MS, aging_place, priority_at
from foqs.model.errors import InvalidArgumentError
from foqs.model.namespace import SettingsTable
from foqs.model.policy import FIELDS, OwnPolicy, TopicPolicy, check_aging
from foqs.model.topic import OLDEST_ITEMS_MAX, ReadyWindow
from foqs.model.topic_name import hidden, ordered
from foqs.model.window_budget import WindowBudget

I32 = 1 << 31
NOW_MS = 1_790_000_000_000


def test_an_item_is_overtaken_only_by_those_that_came_soon_enough_after_it() -> None:
    """P16, over pairs: what stands before an item was due less than (p - q) * tau + 0.1 s after it."""
    chance = random.Random(7)
    for tau_ms in (1, 99, 100, 1_000, 60_000):
        items = [(NOW_MS + chance.randrange(10 * tau_ms + 500), chance.randrange(-5, 6)) for _ in range(60)]
        for due_ms, priority in items:
            for other_due_ms, other_priority in items:
                if aging_place(other_due_ms, other_priority, tau_ms) < aging_place(due_ms, priority, tau_ms):
                    assert other_due_ms < due_ms + (priority - other_priority) * tau_ms + PLACE_UNIT_MS


def test_the_order_of_two_items_is_the_same_at_any_time_of_waiting() -> None:
    assert aging_place(NOW_MS, 10, 1_000) == aging_place(NOW_MS + 10_000, 0, 1_000)
    assert aging_place(NOW_MS, 10, 1_000) < aging_place(NOW_MS + 10_100, 0, 1_000)
    assert aging_place(NOW_MS, 10, 1_000) > aging_place(NOW_MS + 9_900, 0, 1_000)


def test_places_out_of_reach_are_the_first_and_the_last_one() -> None:
    assert aging_place(NOW_MS, I32 - 1, AGING_MS_MAX) == I32 - 1
    assert aging_place(NOW_MS, -I32, AGING_MS_MAX) == -I32
    assert aging_place(0, 0, 1) == -I32
    assert aging_place(FIRST_DAY_MS, 0, 1) == 0


def test_the_priority_comes_back_from_place_and_due_time() -> None:
    chance = random.Random(8)
    for _ in range(1_000):
        tau_ms = chance.randrange(PLACE_UNIT_MS + 1, 100_000)
        due_ms, priority = NOW_MS + chance.randrange(10**9), chance.randrange(-900, 900)
        assert priority_at(aging_place(due_ms, priority, tau_ms), due_ms, tau_ms) == priority
    assert priority_at(I32 - 1, 0, 1) == I32 - 1
    assert priority_at(-I32, 1 << 47, 1) == -I32


def test_a_policy_that_ages_has_no_other_order() -> None:
    check_aging(TopicPolicy(aging_ms_per_priority=5), "t")
    check_aging(TopicPolicy(serial=True, key_buckets=4), "t")
    for other, named in (({"serial": True}, "serial"), ({"key_buckets": 4}, "key_buckets 4")):
        with pytest.raises(InvalidArgumentError, match=f"aging_ms_per_priority 5 is not possible with {named}"):
            check_aging(TopicPolicy(aging_ms_per_priority=5, **other), "t")  # type: ignore[arg-type]


def test_a_serial_topic_below_a_prefix_that_ages_keeps_its_order() -> None:
    settings = SettingsTable()
    assert not settings.ages(1)
    own_zero = OwnPolicy(explicit=1 << FIELDS.index("aging_ms_per_priority"))
    settings.replace_policies(
        {1: {"p/serial": OwnPolicy(serial=True), "p/strict": own_zero, "q": OwnPolicy(weight=2)}},
        {1: {"p/": OwnPolicy(aging_ms_per_priority=7)}},
    )
    assert settings.ages(1)
    assert not settings.ages(2)
    found = {name: settings.aging_ms(1, name) for name in ("p/a", "p/serial", "p/strict", "q", ordered("p/a", "k"))}
    assert found == {"p/a": 7, "p/serial": 0, "p/strict": 0, "q": 0, ordered("p/a", "k"): 0}
    assert settings.aging_ms(1, hidden("p/serial", "g")) == 0, "its groups are serial, too"


def test_the_oldest_item_of_a_topic_that_ages_is_found_near_its_head() -> None:
    window = ReadyWindow(WindowBudget(), complete=True)
    dues = [NOW_MS + number * 1_000 for number in range(400)]
    chance = random.Random(9)
    keys = [
        order.sort_key(aging_place(due, chance.choice([0, 0, 0, 50]), 1_000), due, at, 3) for at, due in enumerate(dues)
    ]
    window.add_all(keys)
    while window.sort_keys:
        oldest = min(map(order.due_at_of, window.sort_keys[:OLDEST_ITEMS_MAX]))
        assert window.oldest_due_at() == oldest == min(map(order.due_at_of, window.sort_keys))
        window.take(7)
