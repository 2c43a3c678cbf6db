"""Histories of lanes and of limits of items in flight, made by hand: right ones, and those that break a promise."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from foqs.model.calls import ItemState
from foqs.model.limits import NEVER_MS
from tests.histories.checker import Report, check
from tests.histories.group_views import consumer_of, view_of
from tests.histories.history import Call, Outcome, Put, Settled, Taken, Verb
from tests.histories.lane_checks import Bounds
from tests.histories.lives import Stored

LEASE_MS = 1_000
DUE_MS = 12
BY_KEY = Bounds(lambda put: put.ordering_key)
OK, FAIL, INFO = Outcome.OK, Outcome.FAIL, Outcome.INFO


class Lane:
    """The calls of a lane by their times: each takes two milliseconds. Item n of the lane has the id 0-n."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def put(self, at_ms: int, *numbers: int, outcome: Outcome = OK, client: str = "p", **more: object) -> Lane:
        puts = [Put(str(number), "t", ordering_key="k")._replace(**more) for number in numbers]
        ids = [f"0-{number:x}" for number in numbers] if outcome is OK else ()
        return self._add(client, Verb.ENQUEUE, puts, at_ms, outcome, ids=ids)

    def take(self, at_ms: int, number: int, delivery: int = 1, attempt: int = 1, topic: str = "t") -> Lane:
        taken = Taken(f"0-{number:x}:{delivery:x}", str(number), topic, 0, DUE_MS, at_ms + LEASE_MS, attempt, "", "k")
        return self._add("c", Verb.DEQUEUE, [topic], at_ms, taken=[taken])

    def end(
        self, at_ms: int, number: int, delivery: int = 1, outcome: Outcome = OK, verb: Verb = Verb.ACK, **more: int
    ) -> Lane:
        return self._add("c", verb, [Settled(f"0-{number:x}:{delivery:x}", **more)], at_ms, outcome)  # type: ignore[arg-type]

    def done(self, at_ms: int, *numbers: int) -> Lane:
        """Each delivered and acked, one after the other."""
        for at, number in enumerate(numbers):
            self.take(at_ms + 20 * at, number).end(at_ms + 20 * at + 10, number)
        return self

    def check(self, bounds: Bounds = BY_KEY) -> Report:
        # What is not delivered is no concern of these checks.
        report = check(self.calls, (), one_host=False, bounds=bounds, disturbed=[(0, NEVER_MS)], drained=False)
        report.violations = [one for one in report.violations if one.promise in ("O1", "in flight")]
        return report

    def _add(
        self, client: str, verb: Verb, asked: list[object], at_ms: int, outcome: Outcome = OK, **more: object
    ) -> Lane:
        number = len(self.calls) + 1
        self.calls.append(Call(client, number, verb, asked, at_ms, at_ms + 2, outcome, **more))  # type: ignore[arg-type]
        return self


IN_ORDER: dict[str, Callable[[Lane], Lane]] = {
    "one after the other": lambda lane: lane.put(10, 1, 2, 3).done(20, 1, 2, 3),
    "again after a nack, before the next one": lambda lane: (
        lane.put(10, 1, 2).take(20, 1).end(30, 1, verb=Verb.NACK).take(40, 1, 2).end(50, 1, 2).done(60, 2)
    ),
    "the next one while the ack has no answer yet": lambda lane: lane.put(10, 1, 2).take(20, 1).end(30, 1).take(31, 2),
    "the next one after an ack of unknown outcome": lambda lane: (
        lane.put(10, 1, 2).take(20, 1).end(30, 1, outcome=INFO).done(40, 2)
    ),
    "the next one after a dead letter": lambda lane: (
        lane.put(10, 1, 2).take(20, 1).end(30, 1, verb=Verb.NACK, dead_letter=True).done(40, 2)
    ),
    "one that is delivered at most once and was never seen": lambda lane: (
        lane.put(10, 1, at_most_once=True).put(14, 2).done(20, 2)
    ),
    "one that expired": lambda lane: lane.put(10, 1, ttl_ms=100).put(14, 2).done(200, 2),
    "one of unknown outcome that was stored late": lambda lane: lane.put(10, 1, outcome=INFO).put(20, 2).done(30, 2, 1),
    "one with a dedup id that was stored late": lambda lane: lane.put(10, 1, dedup_id="d").put(14, 2).done(30, 2, 1),
    "two producers": lambda lane: lane.put(10, 1).put(14, 2, client="q").done(30, 2, 1),
    "a more urgent one": lambda lane: lane.put(10, 1).put(14, 2, priority=-1).done(30, 2, 1),
    "one whose attempts may be used up": lambda lane: lane.put(10, 1, 2).take(20, 1, 15, attempt=15).done(2_000, 2),
}
OUT_OF_TURN: dict[str, Callable[[Lane], Lane]] = {
    "the second one first": lambda lane: lane.put(10, 1, 2).done(20, 2, 1),
    "the second call's first": lambda lane: lane.put(10, 1).put(14, 2).done(20, 2, 1),
    "the next one after a nack": lambda lane: (
        lane.put(10, 1, 2).take(20, 1).end(30, 1, verb=Verb.NACK).done(40, 2).done(60, 1)
    ),
    "the next one after a lease": lambda lane: lane.put(10, 1, 2).take(20, 1).done(2_000, 2),
    "the next one although an ack was refused": lambda lane: (
        lane.put(10, 1, 2).take(20, 1).end(1_100, 1, outcome=FAIL).done(1_200, 2)
    ),
    "an earlier one again": lambda lane: (
        lane.put(10, 1, 2).take(20, 1).end(30, 1, outcome=INFO).done(40, 2).take(80, 1, 2)
    ),
    "two at once": lambda lane: lane.put(10, 1, outcome=INFO).put(14, 2).take(20, 1).take(30, 2),
    "two at once although the first one was extended": lambda lane: (
        lane.put(10, 1, outcome=INFO).put(14, 2).take(20, 1).end(30, 1, verb=Verb.EXTEND, lease_ms=5_000).take(900, 2)
    ),
}


@pytest.mark.parametrize("name", IN_ORDER)
def test_what_a_lane_allows_is_no_violation(name: str) -> None:
    report = IN_ORDER[name](Lane()).check()
    assert not report.violations, str(report)
    assert report.counts["lanes"] == 1


@pytest.mark.parametrize("name", OUT_OF_TURN)
def test_an_item_out_of_turn_is_found(name: str) -> None:
    assert OUT_OF_TURN[name](Lane()).check().promises_broken == {"O1"}


@pytest.mark.parametrize("name", OUT_OF_TURN)
def test_items_without_a_lane_have_no_turn(name: str) -> None:
    assert not OUT_OF_TURN[name](Lane()).check(Bounds()).violations


@pytest.mark.parametrize(("in_flight_max", "is_broken"), [(1, True), (2, True), (3, False)])
def test_more_items_under_lease_than_the_limit_are_found(in_flight_max: int, is_broken: bool) -> None:
    lane = Lane().put(10, 1, 2, 3, 4).take(20, 1).take(30, 2).take(40, 3).end(50, 2).take(60, 4)
    report = lane.check(Bounds(in_flight_max={"t": in_flight_max}))
    assert report.promises_broken == ({"in flight"} if is_broken else set())
    assert report.counts["in flight: 3 under lease at once"] == 2


def test_clocks_that_differ_move_the_end_of_a_lease_and_not_the_ack() -> None:
    """An ack ends a lease no sooner than it is asked for, whatever the clock of the server says."""
    lane = Lane().put(10, 1, 2).take(20, 1).take(40, 2).end(50, 1)
    for late_ms, is_broken in ((0, True), (LEASE_MS - 40, True), (LEASE_MS, False)):
        report = check(lane.calls, (), one_host=False, bounds=BY_KEY, late_ms=late_ms, drained=False)
        assert ("O1" in {one.promise for one in report.violations if "under lease" in one.what}) is is_broken


def test_leases_that_have_ended_are_not_in_flight() -> None:
    lane = Lane().put(10, 1, 2, 3).take(20, 1).take(30, 2).take(1_040, 3)
    assert not lane.check(Bounds(in_flight_max={"t": 2})).violations


def test_each_group_is_a_history_of_its_own() -> None:
    """The id of an enqueued item names its first copy, 0-1, and another one behind it."""
    lane = Lane().put(10, 1).take(20, 1).end(30, 1)
    lane.calls[0] = replace(lane.calls[0], ids=["0-1+1"])
    for call in lane.calls[1:]:
        call.client = consumer_of("c", "")
    copy = Taken("0-2:1", "1", "t", 0, DUE_MS, 20 + LEASE_MS, 1, "", "k")
    lane.calls.append(Call(consumer_of("d", "audit"), 9, Verb.DEQUEUE, ["t"], 20, 22, OK, taken=[copy]))
    rows = [Stored("0-2", "1", ItemState.LEASED, "audit")]
    for group in ("", "audit"):
        mine = [row for row in rows if row.group == group]
        report = check(view_of(group, lane.calls, mine), mine, drained=False)
        assert not report.violations, str(report)
        assert report.counts["deliveries"] == 1
    lost = check(view_of("audit", lane.calls, ()), (), drained=False)
    assert lost.promises_broken == {"P2"}
    doubled = check(view_of("audit", lane.calls, rows), [*rows, Stored("0-3", "1", ItemState.READY, "audit")])
    assert "P1" in doubled.promises_broken
