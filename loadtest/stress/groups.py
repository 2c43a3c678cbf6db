"""Consumer groups: what a copy costs next to a plain item, and what a group that nobody reads costs the others."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import repeat
from statistics import median
from typing import Any

from foqs import AdminClient, AsyncClient
from foqs.client.queue_items import NewItem
from loadtest.bench.usage import usage
from loadtest.stress.paced import PATIENCE_S, Latencies, Paced, fill, from_topic
from loadtest.stress.stand import Stand
from loadtest.stress.verdict import Bound, Verdict

COST_FACTOR_MAX = 1.0
P99_FACTOR_MAX = 1.2
_NAMESPACE = "tenant"
_PLAIN, _SHARED = "plain", "shared"
_CALM, _CROWDED = "calm", "crowded"
_READ, _UNREAD = "read", "unread"
_PAYLOAD = b"x" * 200
_CALL_ITEMS = 100
_CONSUMERS = 6
"""Of all groups, and as many of the plain topic."""
_SETTLE_S = 0.5


@dataclass(frozen=True, slots=True)
class Course:
    rounds: int = 5
    items: int = 60_000
    """That are consumed in each stretch: copies, or plain items."""
    groups: int = 3
    """With that of the topic itself."""
    backlog: int = 1_000_000
    """Of the group that nobody reads."""
    items_per_s: float = 200.0
    stretch_s: float = 20.0


def run(course: Course) -> Verdict:
    verdict = Verdict("groups")
    verdict.facts |= asdict(course)
    with Stand() as stand:
        stand.make_namespace(_NAMESPACE)
        with AdminClient(stand.host.address) as admin:
            for number in range(1, course.groups):
                admin.create_group(_NAMESPACE, _SHARED, f"group-{number}")
            for topic, group in ((_CALM, _READ), (_CROWDED, _UNREAD)):
                admin.create_group(_NAMESPACE, topic, group)
                admin.delete_group(_NAMESPACE, topic, "")
            asyncio.run(_costs(stand, course, verdict))
            asyncio.run(_store(stand, course))
            admin.create_group(_NAMESPACE, _CROWDED, _READ)
        asyncio.run(_beside_unread(stand, course, verdict))
    return verdict


# ---- the cost of a copy ----


async def _costs(stand: Stand, course: Course, verdict: Verdict) -> None:
    """Whole lives of as many copies as plain items, by turns."""
    by_kind: dict[str, list[dict[str, float]]] = {_PLAIN: [], _SHARED: []}
    missed = 0
    async with AsyncClient(stand.host.address) as client:
        for _ in range(course.rounds):
            for topic, groups in ((_PLAIN, ("",)), (_SHARED, ("", *_groups(course)))):
                before, began_s = usage(stand.host.pid), time.monotonic()
                missed += await _whole_life(client, topic, groups, course.items // len(groups))
                seconds, cost = time.monotonic() - began_s, usage(stand.host.pid).since(before)
                copies = course.items // len(groups) * len(groups)
                by_kind[topic].append({"a second": copies / seconds, "host us": cost.cpu_s * 1e6 / copies})
                await asyncio.sleep(_SETTLE_S)
    for topic, found in by_kind.items():
        verdict.rows.append(
            {
                "items": topic,
                "consumed a second": median(one["a second"] for one in found),
                "host us each": median(one["host us"] for one in found),
                "p50 ms": "",
                "p99 ms": "",
            }
        )
    ratios = [
        shared["host us"] / max(plain["host us"], 1e-9)
        for plain, shared in zip(by_kind[_PLAIN], by_kind[_SHARED], strict=True)
    ]
    verdict.bounds += [
        Bound("items that a group did not get, or got twice", missed, 0),
        Bound("CPU of the host for a copy, by that for a plain item", median(ratios), COST_FACTOR_MAX),
    ]


def _groups(course: Course) -> list[str]:
    return [f"group-{number}" for number in range(1, course.groups)]


async def _whole_life(client: AsyncClient, topic: str, groups: Sequence[str], count: int) -> int:
    """Enqueue, and consume in every group; how many deliveries were missing or too many."""
    seen = {group: Counter[bytes]() for group in groups}
    numbers = [b"%d" % number + _PAYLOAD for number in range(count)]

    async def consume(group: str) -> None:
        while seen[group].total() < count:
            items = await client.dequeue(_NAMESPACE, topic, _CALL_ITEMS, group=group or None, wait_ms=200)
            seen[group].update(item.payload for item in items)
            if items:
                await client.ack(_NAMESPACE, [item.receipt for item in items])

    async with asyncio.timeout(PATIENCE_S * 3), asyncio.TaskGroup() as group:
        for name in groups:
            for _ in range(max(1, _CONSUMERS // len(groups))):
                group.create_task(consume(name))
        group.create_task(fill(client, _NAMESPACE, [NewItem(topic, number) for number in numbers], _CALL_ITEMS))
    return sum(sum(abs(found[number] - 1) for number in numbers) for found in seen.values())


# ---- a group that nobody reads ----


async def _store(stand: Stand, course: Course) -> None:
    async with AsyncClient(stand.host.address) as client:
        await fill(client, _NAMESPACE, repeat(NewItem(_CROWDED, _PAYLOAD), course.backlog), 1_000)


async def _beside_unread(stand: Stand, course: Course, verdict: Verdict) -> None:
    """Latencies of a group beside the backlog of another one, and of a topic without such a group, by turns."""
    found: dict[str, list[Latencies]] = {_CALM: [], _CROWDED: []}
    async with AsyncClient(stand.host.address) as client:
        for number in range(course.rounds):
            for topic in found:
                stretch = Paced(
                    namespace=_NAMESPACE,
                    items_per_s=course.items_per_s,
                    seconds=course.stretch_s,
                    new=partial(NewItem, topic),
                    take=from_topic(_NAMESPACE, topic, _READ),
                    seed=number,
                )
                found[topic].append(await stretch.run(client))
    for topic, latencies in found.items():
        row: dict[str, Any] = dict.fromkeys(verdict.rows[0], "")
        row |= {"items": topic, "p50 ms": median(one.ms(50) for one in latencies)}
        verdict.rows.append(row | {"p99 ms": median(one.ms(99) for one in latencies)})
    ratios = [
        crowded.ms(99) / max(calm.ms(99), 1e-3) for calm, crowded in zip(found[_CALM], found[_CROWDED], strict=True)
    ]
    verdict.bounds.append(
        Bound("p99 of a group beside one that nobody reads, by that without", median(ratios), P99_FACTOR_MAX)
    )
