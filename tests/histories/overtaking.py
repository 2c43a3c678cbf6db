"""Promise P6 across answers: what is ready is not overtaken by what is less urgent.

Certain only is what the record leaves no doubt about: the more urgent item was ready before the call began, and who
got it asked for it after the call had ended. So it stood there, free, all the while. Delayed items become claimable
when the sweep has found them, which no client sees: they are left out, as are those that were delivered before.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tests.histories.history import Call, Outcome
from tests.histories.lives import Life, order_key, overlaps, returned_at_ms
from tests.histories.report import Report

Key = tuple[int, int, int, int]


class _Free(NamedTuple):
    """An item from when it was certainly ready until somebody asked who got it. The least `key` comes first."""

    key: Key
    ready_ms: int
    taken_ms: int
    uid: str


class _Answer(NamedTuple):
    invoked_ms: int
    returned_ms: int
    last: Key
    """The least urgent of what it brought of the topic."""
    call: Call


def check_overtaking(
    lives: Iterable[Life], tolerance_ms: int, disturbed: Sequence[tuple[int, int]], report: Report
) -> None:
    """Each answer of quiet times against all items that stood free while it was given, in O(n log n)."""
    free: dict[str, list[_Free]] = defaultdict(list)
    answers: dict[str, dict[int, _Answer]] = defaultdict(dict)
    for life in lives:
        if life.put is None:
            continue
        topic = life.put.topic
        for delivery in life.deliveries:
            call, key = delivery.call, order_key(delivery.taken)
            before = answers[topic].get(id(call))
            if before is None or before.last < key:
                answers[topic][id(call)] = _Answer(call.invoked_at_ms, returned_at_ms(call), key, call)
        found = _free(life, tolerance_ms)
        if found is not None:
            free[topic].append(found)
    for topic, by_call in answers.items():
        quiet = [a for a in by_call.values() if not overlaps(disturbed, a.invoked_ms, a.returned_ms)]
        _sweep(topic, sorted(free[topic], key=lambda item: item.ready_ms), sorted(quiet, key=_begin), report)


def _begin(answer: _Answer) -> int:
    return answer.invoked_ms


def _free(life: Life, tolerance_ms: int) -> _Free | None:
    """Until its first delivery; None when something else may have happened to it before, or its TTL may have ended."""
    first, put = life.deliveries[0] if life.deliveries else None, life.put
    assert put is not None
    if first is None or first.number != 1 or life.outcome is not Outcome.OK:
        return None
    if put.ttl_ms is not None or put.delay_ms is not None or put.deliver_after_ms is not None:
        return None
    ready_ms = life.ready_from_ms()[1] + tolerance_ms
    taken_ms = first.call.invoked_at_ms
    return _Free(order_key(first.taken), ready_ms, taken_ms, life.uid) if ready_ms < taken_ms else None


def _sweep(topic: str, free: list[_Free], answers: list[_Answer], report: Report) -> None:
    """In order of the answers' begin, with the items that are ready by then in a heap."""
    heap: list[_Free] = []
    next_free = 0
    for answer in answers:
        while next_free < len(free) and free[next_free].ready_ms < answer.invoked_ms:
            heapq.heappush(heap, free[next_free])
            next_free += 1
        in_doubt = []
        while heap and heap[0].key < answer.last:
            item = heapq.heappop(heap)
            if item.taken_ms <= answer.invoked_ms:
                continue  # It is gone for all answers to come.
            in_doubt.append(item)
            if item.taken_ms > answer.returned_ms:
                what = f"stood ready from {item.ready_ms} to {item.taken_ms}, more urgent than what"
                report.add("P6", item.uid, f"{what} {answer.call.client} was given at {answer.returned_ms} of {topic}")
                break
        for item in in_doubt:
            heapq.heappush(heap, item)
        report.counts["answers compared with what stood ready"] += 1
