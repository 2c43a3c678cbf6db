"""What the whole life of an item costs that lay in a backlog for some seconds, next to one that did not."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median

from foqs import AsyncClient
from foqs.client.queue_items import NewItem
from loadtest.bench.usage import usages
from loadtest.stress.paced import PATIENCE_S, fill
from loadtest.stress.stand import Stand
from loadtest.stress.verdict import Bound, Verdict

FACTORS_MAX = {"mysql": 1.2, "host": 1.1}
_FRESH, _OLD = "fresh", "old"
_NAMESPACE = "tenant"
_TOPICS = [f"topic-{number}" for number in range(10)]
"""Each with so few items that its window has all of them."""
_PAYLOAD = b"x" * 200
_CALL_ITEMS = 100
_CONSUMERS_OF_TOPIC = 2
_SETTLE_S = 2.0
"""In which the server purges most of what was deleted."""


@dataclass(frozen=True, slots=True)
class Course:
    rounds: int = 3
    items: int = 40_000
    rest_s: float = 12.0
    """So long lies the backlog. It is past the age from which items are given rows."""


def run(course: Course) -> Verdict:
    verdict = Verdict("old backlog")
    verdict.facts |= asdict(course)
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE)
        asyncio.run(_costs(stand, course, verdict))
    return verdict


async def _costs(stand: Stand, course: Course, verdict: Verdict) -> None:
    """Whole lives of fresh and of old items by turns; what an idle stand uses meanwhile is taken off."""
    found: dict[str, list[dict[str, float]]] = {_FRESH: [], _OLD: []}
    lost = 0
    async with AsyncClient(stand.host.address) as client:

        async def live(rest_s: float) -> None:
            nonlocal lost
            items = [NewItem(_TOPICS[number % len(_TOPICS)], _PAYLOAD, number % 10) for number in range(course.items)]
            await fill(client, _NAMESPACE, items, _CALL_ITEMS)
            await asyncio.sleep(rest_s)
            lost += abs(course.items - await _drain(client, course.items))
            await asyncio.sleep(_SETTLE_S)

        await live(0)  # A host that has just been started is slow.
        for _ in range(course.rounds):
            idle_s, idle = await _used(stand, partial(asyncio.sleep, course.rest_s))
            for kind, rest_s in ((_FRESH, 0.0), (_OLD, course.rest_s)):
                seconds, used = await _used(stand, partial(live, rest_s))
                found[kind].append(
                    {name: (cpu_s - idle[name] / idle_s * seconds) * 1e6 / course.items for name, cpu_s in used.items()}
                )
    for kind, each in found.items():
        medians = {f"{name} us an item": round(median(one[name] for one in each), 2) for name in FACTORS_MAX}
        verdict.rows.append({"items": kind} | medians)
    verdict.bounds.append(Bound("items that were missing, or came twice", lost, 0))
    for name, limit in FACTORS_MAX.items():
        ratios = [old[name] / max(fresh[name], 1e-9) for fresh, old in zip(found[_FRESH], found[_OLD], strict=True)]
        verdict.facts[f"{name}, by round"] = ", ".join(f"{ratio:.2f}" for ratio in ratios)
        verdict.bounds.append(Bound(f"CPU of {name} for an old item, by that for a fresh one", median(ratios), limit))


async def _used(stand: Stand, work: Callable[[], Awaitable[None]]) -> tuple[float, dict[str, float]]:
    """How many seconds the work took, and the CPU seconds that the servers used in them."""
    pids = {"mysql": stand.mysql_pid, "host": stand.host.pid}
    before, began_s = usages(pids), time.monotonic()
    await work()
    seconds = time.monotonic() - began_s
    return seconds, {name: now.since(before[name]).cpu_s for name, now in usages(pids).items()}


async def _drain(client: AsyncClient, count: int) -> int:
    """Consume until `count` items or more are acked; returns how many there were."""
    acked_count = 0

    async def consume(topic: str) -> None:
        nonlocal acked_count
        while acked_count < count:
            items = await client.dequeue(_NAMESPACE, topic, _CALL_ITEMS, wait_ms=50)
            if items:
                await client.ack(_NAMESPACE, [item.receipt for item in items])
                acked_count += len(items)

    async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
        for topic in _TOPICS * _CONSUMERS_OF_TOPIC:
            group.create_task(consume(topic))
    return acked_count
