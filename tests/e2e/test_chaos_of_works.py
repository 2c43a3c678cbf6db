"""Chaos over two hosts in small, of the kinds of work that promise more than every item does."""

from __future__ import annotations

import pytest

from loadtest.chaos import cluster_run
from loadtest.chaos.cluster_room import ClusterRoom, Layout
from loadtest.chaos.run import Course
from loadtest.chaos.works import GROUPS, WORKS
from tests.support import impatient_foqs

pytestmark = [pytest.mark.database, pytest.mark.slow]


def course_of(name: str, chaos_ms: int) -> Course:
    course, work = Course(), WORKS[name]
    with ClusterRoom(Layout(2, 1), impatient_foqs.COMMAND) as room:
        cluster_run.prepare(room, work)
        settle_ms = impatient_foqs.CLAIM_MS_MAX + 4_000
        cluster_run.run_round(room, f"{name}-1", chaos_ms, 1_000, course, settle_ms, work)
    assert not course.tally.violation_count, course.tally.examples
    assert course.faults.total() >= 2
    return course


def test_serial_topics_and_keys_keep_their_order_while_hosts_and_servers_fail_and_slots_move() -> None:
    counts = course_of("order", 20_000).tally.counts
    assert counts["items in order"] > 1_000
    assert counts["lanes"] > 50
    assert counts["O1: 1 under lease at once"] > 500


def test_each_group_gets_each_item_while_hosts_are_killed() -> None:
    counts = course_of("groups", 10_000).tally.counts
    assert counts["items"] > len(GROUPS) * 300
    assert counts["items"] % len(GROUPS) == 0


def test_hosts_that_fail_never_have_more_items_in_flight_than_the_limit() -> None:
    counts = course_of("in-flight", 10_000).tally.counts
    assert counts["in flight: 4 under lease at once"] > 0
