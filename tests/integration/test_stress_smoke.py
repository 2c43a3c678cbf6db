"""The stress runs in small, so that they cannot rot: what they count adds up; their bounds are for a quiet machine."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest
from rich.console import Console

from loadtest.stress import (
    caps,
    caps_of_hosts,
    dedup,
    dedup_window,
    export,
    fairness,
    reading,
    redrives,
    shares,
    sick_shard,
)
from loadtest.stress.record import Record, merged
from loadtest.stress.verdict import Bound, Verdict


@pytest.mark.database
@pytest.mark.slow
def test_an_export_has_every_item_once_and_refuses_no_delivery_beside_it() -> None:
    verdict = export.run(export.Course(items=3_000, rounds=1, stretch_s=4))
    rows = {row["deliveries"]: row for row in verdict.rows}
    assert set(rows) == {"at rest", "beside an export"}
    assert all(row[f"{verb} p99 ms"] > 0 for row in rows.values() for verb in ("dequeue", "ack", "enqueue"))
    assert verdict.facts["whole exports"] >= 1
    assert all(bound.holds for bound in verdict.bounds[-3:])


@pytest.mark.database
@pytest.mark.slow
def test_a_redrive_over_two_kills_is_exact() -> None:
    verdict = redrives.run(redrives.Course(items=12_000, rounds=1, stretch_s=3, redrives_per_s=200))
    assert {row["others"] for row in verdict.rows} == {"at rest", "beside a redrive"}
    assert (verdict.facts["kills"], verdict.facts["redriven"]) == (2, 6_000)
    assert all(bound.holds for bound in verdict.bounds[-4:])


@pytest.mark.database
@pytest.mark.slow
def test_every_verb_that_reads_is_answered_next_to_enqueues_that_all_are() -> None:
    verdict = reading.run(reading.Course(stretch_s=0.5, topics_count=2_000, namespaces_count=200, callers=2))
    at_rest, *verbs, scrapes, again = verdict.rows
    assert {row["next to"] for row in verbs} > {
        "getActiveTopics",
        "peekItems",
        "listNamespaces",
        "purgeDeadLetters",
        "getJob",
    }
    assert [row for row in verbs if not row["its calls answered"] or row["its calls refused"]] == []
    assert all(row["enqueue p99 ms"] > 0 for row in (at_rest, *verbs, scrapes, again))
    assert all(bound.holds for bound in verdict.bounds[-2:])


@pytest.mark.database
@pytest.mark.slow
def test_a_breaker_opens_and_closes_and_is_timed() -> None:
    course = sick_shard.Course(before_s=2, sick_s=5, after_s=5, items_per_s=500)
    verdict = sick_shard.run(course, ("frozen",))
    (row,) = verdict.rows
    assert 0 < row["opens ms"] < course.sick_s * 1_000
    assert row["closes ms"] < float("inf")
    assert row["enqueue p99 ms before"] > 0
    assert row["dequeue p99 ms, breaker open"] > 0


@pytest.mark.database
@pytest.mark.slow
def test_enqueues_with_dedup_ids_through_a_kill_make_one_item_each() -> None:
    verdict = dedup.run(dedup.Course(ids=6_000, kills=1))
    assert verdict.rows[-1]["items"] == 6_000
    assert verdict.facts["items called duplicates"] > 0
    assert all(bound.holds for bound in verdict.bounds[:7]), [bound.what for bound in verdict.broken]


@pytest.mark.database
@pytest.mark.slow
def test_a_new_owner_knows_a_window_full_of_dedup_ids_and_takes_no_new_one_for_a_known_one() -> None:
    verdict = dedup_window.run(dedup_window.Course(ids=20_000, new_ids=1_000))
    found = {bound.what: bound.found for bound in verdict.bounds}
    assert found["ids that the new owner does not know"] == 0
    assert found["known ids that were not answered with their item"] == 0
    assert found["new ids that made no item"] == 0
    assert 0 <= found["owned to the first enqueue with an id of the full window, s"] < 60
    assert all(row["written B an id"] > 16 for row in verdict.rows), "a digest has as many bytes"


@pytest.mark.database
@pytest.mark.slow
def test_a_customer_with_many_items_delays_others_by_its_share_of_one_topic() -> None:
    verdict = fairness.run(fairness.Course(large_items=5_000, customers=20, items_each=20, consumers=2, batch=10))
    (row,) = verdict.rows
    assert row["longest wait"] <= row["deliveries"] < 2 * row["share of a customer"]
    assert all(bound.holds for bound in verdict.bounds[-1:])


@pytest.mark.parametrize(
    ("ids", "seconds"), [(1_000, 1.5), (1_000_000, 1.5), (5_500_000, 3.25), (10_000_000, 5.0), (19_000_000, 8.5)]
)
def test_a_larger_window_may_take_longer_to_be_taken_over(ids: int, seconds: float) -> None:
    assert dedup_window.first_s_max(ids) == pytest.approx(seconds)


def test_a_balance_tells_what_was_lost_doubled_and_answered_wrongly() -> None:
    balance = dedup.Balance(4)
    for number, answered in [(0, "0-1"), (1, "0-2"), (1, "0-9"), (2, "0-3")]:
        balance.note_answer(number, answered)
    for number, delivered in [(0, "0-1"), (0, "0-1"), (1, "0-2"), (2, "0-4"), (2, "0-5")]:
        balance.note_item(number, delivered)
    assert [bound.found for bound in balance.bounds()] == [1, 1, 1, 1, 1, 0]


# ---- what they are made of ----


def test_a_record_gives_any_stretch_of_all_its_processes() -> None:
    records = [Record(), Record()]
    for number, record in enumerate(records):
        for tenth in range(20):
            found = record.at(tenth * 100_000_000)
            found.due_count += 1
            found.latencies_us.append(1_000 * (tenth + 1) + number)
    second = merged(records).between(1.0, 2.0)
    assert second.due_count == 20
    assert second.latency_ms(0) == 11.0
    assert second.latency_ms(100) == pytest.approx(20.001)


def test_a_bound_that_does_not_hold_fails_the_run_after_all_was_written(tmp_path: Path) -> None:
    verdict = Verdict("some run", rows=[{"part": 1, "ms": 2.0}])
    verdict.bounds = [Bound("fast", 2.0, 1.0), Bound("many", 2, 1, is_least=True), Bound("ends", float("inf"), 1.0)]
    path = tmp_path / "new" / "figures.json"
    with pytest.raises(click.ClickException, match="2 of 3"):
        verdict.publish(Console(), path)
    found = json.loads(path.read_text())
    assert [bound["holds"] for bound in found["bounds"]] == [False, True, False]
    assert found["bounds"][2]["found"] is None


@pytest.mark.interpreted
@pytest.mark.slow
def test_caps_hold_for_each_topic_and_what_they_cost_is_counted() -> None:
    verdict = caps.run(caps.Course(topics=60, items_per_s=100, seconds=20, parked=500, rounds=1))
    (row,) = verdict.rows
    assert row["topics off"] == 0
    assert row["capped us an item"] > 0
    assert row["uncapped us an item"] > 0
    assert row["parked ms a second"] > 0


@pytest.mark.database
@pytest.mark.slow
def test_topics_of_two_hosts_get_their_shares_beside_one_with_very_many_items() -> None:
    course = shares.Course(crowd=20_000, topics=2, seconds=2, warm_s=1, window_s=1)
    verdict = shares.run(course)
    assert [row["share due"] for row in verdict.rows] == pytest.approx([1 / 7, 2 / 7, 4 / 7])
    assert [row["share of the whole time"] for row in verdict.rows] == pytest.approx([1 / 7, 2 / 7, 4 / 7], abs=0.05)
    assert 0 < verdict.facts["left of the crowd"] < 20_000


@pytest.mark.database
@pytest.mark.alone
def test_caps_over_hosts_hold_for_each_topic_and_what_they_cost_each_host_is_counted() -> None:
    course = caps_of_hosts.Course(topics=40, items_per_s=40, seconds=4, parked=300, rest_s=1, rests=2, joined_s=2)
    verdict = caps_of_hosts.run(course)
    assert verdict.facts["delivered a second"] == pytest.approx(40, rel=0.5)
    assert verdict.facts["delivered before all wait"] >= 300
    assert all(row["longest hold of any host ms"] > 0 for row in verdict.rows)
    faster = [bound.found for bound in verdict.bounds if "faster" in bound.what or "twice" in bound.what]
    assert faster == [0, 0]
