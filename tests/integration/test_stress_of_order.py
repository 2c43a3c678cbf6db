"""The stress runs of groups, old backlogs, keys and limits in flight, in small: their rates are for a quiet machine."""

from __future__ import annotations

import pytest

from foqs.client.queue_items import Item
from loadtest.stress import groups, in_flight, keys, old_backlog
from loadtest.stress.paced import Latencies
from loadtest.stress.verdict import Verdict

pytestmark = [pytest.mark.database, pytest.mark.slow]


def found_of(verdict: Verdict) -> dict[str, float]:
    return {bound.what: bound.found for bound in verdict.bounds}


def test_each_group_gets_each_item_and_a_group_without_readers_has_a_backlog() -> None:
    verdict = groups.run(groups.Course(rounds=1, items=3_000, backlog=5_000, items_per_s=100, stretch_s=2))
    found = found_of(verdict)
    assert found["items that a group did not get, or got twice"] == 0
    assert 0 < found["p99 of a group beside one that nobody reads, by that without"] < float("inf")
    assert [row["items"] for row in verdict.rows] == ["plain", "shared", "calm", "crowded"]


def test_each_item_of_an_old_backlog_comes_once_and_has_its_cost() -> None:
    verdict = old_backlog.run(old_backlog.Course(rounds=1, items=5_000, rest_s=1))
    assert found_of(verdict)["items that were missing, or came twice"] == 0
    assert [row["items"] for row in verdict.rows] == ["fresh", "old"]
    assert all(row["host us an item"] > 0 for row in verdict.rows)


def test_keys_are_delivered_beside_keys_that_wait_and_one_that_is_blocked() -> None:
    course = keys.Course(keys=2_000, blocked=20, items_per_s=100, stretch_s=2, rounds=1, hot=200)
    verdict = keys.run(course)
    assert [row["items"] for row in verdict.rows] == [
        "of no key", "of new keys", "beside all keys", "and a blocked one",
    ]  # fmt: skip
    assert all(0 < row["p99 ms"] < float("inf") for row in verdict.rows)
    assert found_of(verdict)["items of a hot key a second in runs"] > 0


def test_topics_never_have_more_items_in_flight_than_their_limit() -> None:
    verdict = in_flight.run(in_flight.Course(topics=40, items=50, rounds=1))
    rows = {row["topics"]: row for row in verdict.rows}
    assert 1 < rows["limited-"]["most out"] <= 4
    assert rows["free-"]["most out"] > 1
    assert all(row["consumed a second"] > 0 for row in verdict.rows)


def test_latencies_without_an_item_are_infinite() -> None:
    latencies = Latencies(due_count=2)
    latencies.note(Item("1", "1:1", "t", 0, b"0", b"", 0, 0, 0, 1, None))
    assert latencies.ms(50) == float("inf")
    latencies.note(Item("2", "2:1", "t", 0, b"0", b"", 0, 0, 0, 1, None))
    assert 0 < latencies.ms(50) < float("inf")
