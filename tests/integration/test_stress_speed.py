"""The stress runs in small whose checks are of speed or race with the clock: only bounds that any machine holds."""

from __future__ import annotations

import pytest

from loadtest.stress import bulk, isolation, lease_ends, long_life, loop_holds, overload, starvation

pytestmark = [pytest.mark.database, pytest.mark.alone]


def test_an_overload_is_offered_in_full_and_every_call_is_accounted_for() -> None:
    verdict = overload.run(overload.Course(peak_s=2, before_s=2, overload_s=2, after_s=2))
    stretches = {row["stretch"]: row for row in verdict.rows}
    peak = stretches["fewer consumers"]["enqueued a second"]
    assert peak > 0
    assert stretches["overload"]["offered a second"] > 2 * peak
    assert stretches["before"]["acked a second"] > 0
    assert verdict.facts["memory of the host, MiB, at the begin"] > 1


def test_items_of_low_priority_come_in_a_topic_that_ages_and_hardly_in_a_strict_one() -> None:
    verdict = starvation.run(starvation.Course(overload_s=8, urgent_items_per_s=90, aging_ms=100))
    aging, strict = verdict.rows
    assert strict["low ones taken"] < aging["low ones taken"] <= aging["low ones enqueued"]
    assert 0 < aging["taken"] < aging["enqueued"]
    assert verdict.bounds[1].holds


def test_what_is_over_a_quota_is_refused_and_nothing_of_the_other_tenant() -> None:
    course = isolation.Course(rounds=1, stretch_s=4, calm_items_per_s=100, quota_items_per_s=20, excess_factor=25)
    verdict = isolation.run(course)
    alone, within, burst, over = verdict.rows
    assert alone["others offered a second"] == 0
    assert burst["seconds"] >= 1
    assert within["others refused"] == burst["others refused"] == "none"
    assert over["others refused"].startswith("RATE_LIMITED")
    assert over["others offered a second"] == pytest.approx(500, rel=0.4)
    assert all(row["enqueue p99 ms"] > 0 and row["dequeue p99 ms"] > 0 for row in (alone, within, over))
    assert not verdict.bounds[-1].found


def test_a_bulk_load_goes_on_beside_interactive_calls_and_refuses_none_of_them() -> None:
    verdict = bulk.run(bulk.Course(rounds=1, stretch_s=2))
    rows = {row["interactive calls"]: row for row in verdict.rows}
    assert rows["at rest"]["load, items a second"] == 0
    assert rows["beside a bulk load"]["load, items a second"] > 0
    assert rows["beside a bulk load"]["enqueue p99 ms"] < rows["beside the same load without bulk"]["enqueue p99 ms"]
    assert all(rows["beside a bulk load"][f"{verb} p99 ms"] > 0 for verb in ("enqueue", "dequeue", "ack"))
    assert verdict.bounds[-1].holds


def test_every_verb_is_timed_by_how_long_it_holds_the_event_loop() -> None:
    course = loop_holds.Course(topics_count=1_000, namespaces_count=100, leases_count=2_000, calls=2, rest_s=1)
    verdict = loop_holds.run(course)
    assert verdict.facts["open leases"] == 2_000
    assert {row["of"] for row in verdict.rows} > {"getActiveTopics", "peekItems", "listNamespaces", "server hangs"}
    assert all(0 < row["longest hold ms"] < 1_000 for row in verdict.rows)


def test_leases_that_end_while_the_host_is_stopped_are_all_over_after_it_went_on() -> None:
    verdict = lease_ends.run(lease_ends.Course(rounds=1, leases=5_000, lease_s=5.0))
    (row,) = verdict.rows
    assert 0 < row["ready again ms"] < 30_000
    assert row["longest enqueue ms"] > 0
    assert 0 < row["event loop late by ms, at most"] < float("inf")


def test_rows_counts_and_checker_agree_after_a_short_life() -> None:
    said: list[str] = []
    verdict = long_life.run(long_life.Course(seconds=6, part_s=1, items_per_s=100), said.append)
    assert len(said) == len(verdict.rows) == 6
    assert [row["purge"] for row in verdict.rows] == ["", "", "blocked", "blocked", "", ""]
    assert sum(row["enqueue calls"] > 0 for row in verdict.rows) >= 3
    assert verdict.facts["checked: items"] > 100
    assert all(bound.holds for bound in verdict.bounds[-3:]), verdict.facts["found"]
