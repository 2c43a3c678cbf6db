"""The checks of lanes and of limits of items in flight.

A lane is a serial topic or an ordering key: its items come one at a time and in the order of their enqueues. As in all
checks of a history a finding is certain: a delivery is under lease from its answer until the earliest time when its
lease can have ended, and an item is there until the earliest time when it can be gone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from foqs.model.limits import NEVER_MS
from tests.histories.clocks import Clocks
from tests.histories.history import Call, Outcome, Put, Verb
from tests.histories.lives import Delivery, Life, Lives
from tests.histories.report import Report

ORDER = "O1"
IN_FLIGHT = "in flight"
_ATTEMPTS_SURE = 14
"""With more attempts an item can be a dead letter of which no consumer knows."""


class Bounds(NamedTuple):
    """What holds beyond the promises of every item.

    lane_of: the lane of an item, or "". Its items have one producer, or no order is known between those of several.
    in_flight_max: by topic.
    """

    lane_of: Callable[[Put], str] = lambda put: ""
    in_flight_max: Mapping[str, int] = {}


UNBOUND = Bounds()


def check_bounds(calls: Iterable[Call], lives: Lives, bounds: Bounds, clocks: Clocks, report: Report) -> None:
    """Check the lanes and the limits of one history; what is found goes into the report."""
    by_lane: dict[str, list[Life]] = defaultdict(list)
    by_topic: dict[str, list[Life]] = defaultdict(list)
    for life in lives.by_uid.values():
        if life.put is None:
            continue
        if lane := bounds.lane_of(life.put):
            by_lane[lane].append(life)
        if life.put.topic in bounds.in_flight_max:
            by_topic[life.put.topic].append(life)
    for lane, members in by_lane.items():
        _check_live(ORDER, lane, members, 1, clocks, report)
    for topic, members in by_topic.items():
        _check_live(IN_FLIGHT, topic, members, bounds.in_flight_max[topic], clocks, report)
    for (lane, _, _), sequence in _sequences(calls, lives, bounds).items():
        _check_order(lane, sequence, clocks, report)
    if by_lane:
        report.counts["lanes"] += len(by_lane)


def _check_live(promise: str, what: str, members: Iterable[Life], most: int, clocks: Clocks, report: Report) -> None:
    """Find a moment at which more deliveries are under lease."""
    changes: list[tuple[int, int, str]] = []
    for life in members:
        for delivery in life.deliveries:
            start_ms, end_ms = delivery.returned_at_ms, _leased_until_ms(life, delivery, clocks)
            if start_ms < end_ms:
                changes += [(start_ms, 1, delivery.taken.receipt), (end_ms, -1, delivery.taken.receipt)]
    live: set[str] = set()
    for at_ms, change, receipt in sorted(changes):
        if change < 0:
            live.discard(receipt)
            continue
        live.add(receipt)
        report.counts[f"{promise}: {len(live)} under lease at once"] += 1
        if len(live) > most:
            report.add(
                promise, what, f"has {len(live)} items under lease at {at_ms}, and {most} at most: {sorted(live)}"
            )


def _leased_until_ms(life: Life, delivery: Delivery, clocks: Clocks) -> int:
    """The earliest time when the lease can have ended."""
    slack_ms = clocks.lease_ms + clocks.late_ms
    until_ms = delivery.taken.lease_expires_at_ms - slack_ms
    for end in life.ends:
        if end.number in (0, delivery.number) and end.outcome is not Outcome.FAIL:
            left_ms = end.settled.lease_ms - slack_ms if end.call.verb is Verb.EXTEND else 0
            until_ms = min(until_ms, end.call.invoked_at_ms + left_ms)
    return until_ms


def _sequences(calls: Iterable[Call], lives: Lives, bounds: Bounds) -> dict[tuple[str, str, int], list[Life]]:
    """The stored items by lane, producer and priority, in the order of their enqueues."""
    found: dict[tuple[str, str, int], list[Life]] = defaultdict(list)
    for call in sorted([call for call in calls if call.verb is Verb.ENQUEUE], key=lambda call: call.number):
        for put in call.asked:
            lane = bounds.lane_of(put)
            # One of unknown outcome can be stored after those that follow it, and so can one with a dedup id.
            if lane and not put.dedup_id and lives.by_uid[put.uid].outcome is Outcome.OK:
                found[lane, call.client, put.priority].append(lives.by_uid[put.uid])
    return found


def _check_order(lane: str, sequence: Sequence[Life], clocks: Clocks, report: Report) -> None:
    """An item is delivered once all earlier ones are gone, and none of those is delivered again then."""
    report.counts["items in order"] += len(sequence)
    first_ms = [min((d.returned_at_ms for d in life.deliveries), default=NEVER_MS) for life in sequence]
    gone_ms = list(accumulate([_gone_from_ms(life, clocks) for life in sequence], max))
    for earlier_gone_ms, at_ms, life in zip(gone_ms, first_ms[1:], sequence[1:], strict=False):
        if at_ms < earlier_gone_ms:
            report.add(ORDER, lane, f"{life.uid} was delivered at {at_ms}, when an earlier item was not done")
    later_ms = list(accumulate(reversed(first_ms), min))[::-1]
    for life, at_ms in zip(sequence, later_ms[1:], strict=False):
        again_ms = max((d.call.invoked_at_ms for d in life.deliveries), default=0)
        if again_ms > at_ms:
            report.add(
                ORDER, lane, f"{life.uid} was asked for and delivered at {again_ms}, after a later item at {at_ms}"
            )


def _gone_from_ms(life: Life, clocks: Clocks) -> int:
    """The earliest time when the item can be gone or dead."""
    assert life.put is not None
    if life.put.at_most_once:
        return 0  # A delivery that nobody saw ends it.
    gone_ms = life.expires_ms()[0] - clocks.tolerance_ms - clocks.late_ms
    for end in life.ends:
        is_end = end.call.verb is Verb.ACK or (end.call.verb is Verb.NACK and end.settled.dead_letter)
        if is_end and end.outcome is not Outcome.FAIL:
            gone_ms = min(gone_ms, end.call.invoked_at_ms)
    for delivery in life.deliveries:
        if delivery.taken.attempt > _ATTEMPTS_SURE:
            gone_ms = min(gone_ms, delivery.call.invoked_at_ms)
    return gone_ms
