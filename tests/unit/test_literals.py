"""Conditions that name keys."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from foqs.storage.shard import script
from foqs.storage.shard.script import key_conditions

RUNS = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 40)), max_size=60).map(
    lambda runs: [key for start, length in runs for key in range(start, start + length)]
)


def named(condition: str) -> list[int]:
    """What the condition is true of, as the server reads it."""
    keys = []
    for part in condition.split(" OR "):
        if between := re.fullmatch(r"n BETWEEN (\d+) AND (\d+)", part):
            keys += range(int(between[1]), int(between[2]) + 1)
        else:
            listed = re.fullmatch(r"n IN \((\d+(?:,\d+)*)\)", part)
            assert listed, part
            keys += map(int, listed[1].split(","))
    return keys


@given(RUNS)
def test_conditions_name_each_key_once_and_no_other(keys: list[int]) -> None:
    parts = [(named(condition), count) for condition, count in key_conditions("n", keys)]
    assert all(len(found) == count <= script.STATEMENT_IDS_MAX for found, count in parts)
    assert sorted(key for found, _ in parts for key in found) == sorted(set(keys))


def test_keys_in_a_row_are_a_range_and_others_a_list() -> None:
    assert [*key_conditions("n", [3, 1, 2, *range(4, 10)])] == [("n BETWEEN 1 AND 9", 9)]
    assert [*key_conditions("n", [5, 3, 5])] == [("n IN (3,5)", 2)]
    assert [*key_conditions("n", [*range(20), 25, *range(30, 40)])] == [
        ("n BETWEEN 0 AND 19 OR n BETWEEN 30 AND 39 OR n IN (25)", 31)
    ]
    assert [*key_conditions("n", [])] == []
