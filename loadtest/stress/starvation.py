"""Nine urgent items for each other one, and urgent ones alone enough for all consumers: how long the others wait.

In a topic that ages the wait of each has a bound: the time in which urgent items still overtake it, and the time in
which the consumers work off what stood before it by then. A strict topic under the same load shows what that is worth.
"""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate

from foqs import AsyncAdminClient, AsyncClient, NewItem
from loadtest.stress.stand import Stand
from loadtest.stress.verdict import Bound, Verdict

_NAMESPACE = "tenant"
_URGENT_PER_LOW = 9
_TICK_S = 0.05
_CALL_ITEMS_MAX = 500


@dataclass(frozen=True, slots=True)
class Course:
    """`urgent_items_per_s` is also what the consumers take, so that all else is too much."""

    overload_s: float = 300.0
    urgent_items_per_s: float = 900.0
    low_priority: int = 10
    aging_ms: int = 1_000
    slack_s: float = 1.0
    """For calls, ticks and the batches in which items are taken."""

    @property
    def gap_s(self) -> float:
        """The time after its enqueue in which urgent items still overtake one of low priority."""
        return self.low_priority * self.aging_ms / 1_000


@dataclass(slots=True)
class _Load:
    """What went in and what came out, in seconds since the begin."""

    enqueued: list[tuple[float, int]] = field(default_factory=list)
    """The time and the number of items of each enqueue."""
    taken: list[tuple[float, int]] = field(default_factory=list)
    low_waits: list[tuple[float, float]] = field(default_factory=list)
    """The time of the enqueue and the wait of each item of low priority that came."""
    low_count: int = 0

    @property
    def low_came_share(self) -> float:
        return len(self.low_waits) / max(1, self.low_count)


def run(course: Course) -> Verdict:
    """The topic that ages first, then the strict one."""
    verdict = Verdict("starvation")
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE)
        loads = {aging_ms: asyncio.run(_load(stand.port, course, aging_ms)) for aging_ms in (course.aging_ms, 0)}
    aging, strict = loads[course.aging_ms], loads[0]
    for name, load in (("aging", aging), ("strict", strict)):
        waits = sorted(wait for _, wait in load.low_waits)
        verdict.rows.append(
            {
                "topic": name,
                "enqueued": sum(count for _, count in load.enqueued),
                "taken": sum(count for _, count in load.taken),
                "low ones enqueued": load.low_count,
                "low ones taken": len(waits),
                "low p50 s": _percentile(waits, 50),
                "low p99 s": _percentile(waits, 99),
            }
        )
    over = sorted(wait - bound for wait, bound in _against_bounds(aging, course))
    verdict.bounds = [
        Bound("low ones of the topic that ages, beyond their bounds, p99 s", _percentile(over, 99), course.slack_s),
        Bound("low ones of the topic that ages that came", len(aging.low_waits), 1, is_least=True),
        Bound(
            "low ones of the strict topic that came, as a part", len(strict.low_waits) / max(1, strict.low_count), 0.5
        ),
    ]
    verdict.facts = {"urgent items a second, and taken": course.urgent_items_per_s, "gap s": course.gap_s}
    return verdict


def _against_bounds(load: _Load, course: Course) -> Iterator[tuple[float, float]]:
    """Yield the wait of each item of low priority, and its bound: the time after which all that came before its virtual
    deadline is taken, at the pace of the consumers.
    """
    times = [at_s for at_s, _ in load.enqueued]
    sums = [0, *accumulate([count for _, count in load.enqueued])]
    for at_s, wait_s in load.low_waits:
        before = sums[bisect_right(times, at_s + course.gap_s)]
        yield wait_s, max(course.gap_s, before / course.urgent_items_per_s - at_s)


async def _load(port: int, course: Course, aging_ms: int) -> _Load:
    load, topic, address = _Load(), f"aging-{aging_ms}", f"127.0.0.1:{port}"
    async with AsyncAdminClient(address) as admin:
        await admin.set_topic_policy(_NAMESPACE, topic, aging_ms_per_priority=aging_ms)
        await asyncio.sleep(2.0)  # Within this time all hosts follow.
    begun_s = time.monotonic()
    async with AsyncClient(address) as producer, AsyncClient(address) as consumer:
        await asyncio.gather(
            _produce(producer, topic, load, course, begun_s), _consume(consumer, topic, load, course, begun_s)
        )
    return load


async def _produce(client: AsyncClient, topic: str, load: _Load, course: Course, begun_s: float) -> None:
    """In an open loop: ten items for each nine that are taken."""
    items_per_s = course.urgent_items_per_s * (_URGENT_PER_LOW + 1) / _URGENT_PER_LOW
    sent_count = 0
    while (now_s := time.monotonic() - begun_s) < course.overload_s:
        due_count = min(_CALL_ITEMS_MAX, int(now_s * items_per_s) - sent_count)
        items = [_item(topic, number, now_s, course) for number in range(sent_count, sent_count + due_count)]
        if items:
            await client.enqueue_many(_NAMESPACE, items)
            load.enqueued.append((now_s, due_count))
            load.low_count += sum(1 for item in items if item.priority)
            sent_count += due_count
        await asyncio.sleep(_TICK_S)


def _item(topic: str, number: int, now_s: float, course: Course) -> NewItem:
    is_low = number % (_URGENT_PER_LOW + 1) == 0
    return NewItem(topic, repr(now_s).encode(), priority=course.low_priority if is_low else 0)


async def _consume(client: AsyncClient, topic: str, load: _Load, course: Course, begun_s: float) -> None:
    """As many a second as urgent ones come."""
    taken_count = 0
    while (now_s := time.monotonic() - begun_s) < course.overload_s:
        due_count = min(_CALL_ITEMS_MAX, int(now_s * course.urgent_items_per_s) - taken_count)
        items = await client.dequeue(_NAMESPACE, topic, count=due_count) if due_count > 0 else []
        if items:
            came_s = time.monotonic() - begun_s
            load.taken.append((came_s, len(items)))
            since = [(float(item.payload), item.priority) for item in items]
            load.low_waits += [(at_s, came_s - at_s) for at_s, priority in since if priority]
            await client.ack(_NAMESPACE, items)
            taken_count += len(items)
        await asyncio.sleep(_TICK_S)


def _percentile(ordered: list[float], percentile: float) -> float:
    return ordered[min(len(ordered) - 1, int(len(ordered) * percentile / 100))] if ordered else 0.0
