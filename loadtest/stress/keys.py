"""Ordering keys: latencies beside very many keys that wait, and beside one that is blocked; and one hot key's rate."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass
from random import Random
from statistics import median
from typing import Any

from foqs import AdminClient, AsyncClient
from foqs.client.queue_items import NewItem
from loadtest.stress.hosts import cluster
from loadtest.stress.paced import PATIENCE_S, Latencies, Paced, fill, from_topic
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError

P99_FACTOR_MAX = 1.2
HOT_A_SECOND_MIN = 2_000
_NAMESPACE = "tenant"
_KEYED, _HOT, _IN_RUNS, _PLAIN = "accounts", "hot", "hot-in-runs", "plain"
_BLOCKED = "blocked"
_PAYLOAD = b"x" * 100
_CALL_ITEMS = 500
_HOT_BATCH = 100
"""The items of one key in one call, where these are delivered together."""
_PARK_MS = 6 * 3_600_000
_LEASE_MS = 3_600_000
_PARKING = 4
"""Consumers that park keys."""


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 2
    keys: int = 200_000
    """Each with an item that waits for its delay, as after a failure."""
    blocked: int = 100_000
    """Items behind the one of a single key that a consumer holds."""
    items_per_s: float = 200.0
    stretch_s: float = 20.0
    rounds: int = 3
    hot: int = 5_000
    """Items of the hot key."""


def run(course: Course) -> Verdict:
    verdict = Verdict("keys")
    verdict.facts |= asdict(course)
    with cluster(course.hosts) as hosts:
        hosts.create([_NAMESPACE])
        with AdminClient(hosts.addresses[0]) as admin:
            admin.set_topic_policy(_NAMESPACE, _IN_RUNS, key_batch=_HOT_BATCH)
        asyncio.run(_run(hosts.addresses[0], course, verdict))
    return verdict


async def _run(address: str, course: Course, verdict: Verdict) -> None:
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient(address))
        rng = Random(1)
        new: dict[str, Callable[[bytes], NewItem]] = {
            "of no key": lambda payload: NewItem(_PLAIN, payload),
            "of new keys": lambda payload: _keyed(payload, rng.getrandbits(60)),
        }
        found: dict[str, list[Latencies]] = {}
        for _ in range(course.rounds):
            for kind, one in new.items():
                await _stretch(client, course, kind, one, found)
        parked_s = await _park(client, course)
        verdict.facts["keys parked a second"] = course.keys / max(parked_s, 1e-3)
        for _ in range(course.rounds):
            await _stretch(client, course, "beside all keys", new["of new keys"], found)
        await _block(client, course)
        for _ in range(course.rounds):
            await _stretch(client, course, "and a blocked one", new["of new keys"], found)
        rates = [await _hot(client, f"{_HOT}-{consumers}", course.hot, consumers) for consumers in (1, 4)]
        in_runs = await _hot(client, _IN_RUNS, course.hot * 4, 1, _HOT_BATCH)
    _judge(verdict, found)
    verdict.facts["items of a hot key a second, one by one, one consumer"] = rates[0]
    verdict.facts["items of a hot key a second, one by one, four consumers"] = rates[1]
    verdict.bounds.append(Bound("items of a hot key a second in runs", in_runs, HOT_A_SECOND_MIN, is_least=True))


def _judge(verdict: Verdict, found: dict[str, list[Latencies]]) -> None:
    p99s = {kind: median(one.ms(99) for one in latencies) for kind, latencies in found.items()}
    for kind, latencies in found.items():
        row: dict[str, Any] = {"items": kind, "p50 ms": median(one.ms(50) for one in latencies), "p99 ms": p99s[kind]}
        verdict.rows.append(row)
    beside_all, beside_blocked = p99s["beside all keys"], p99s["and a blocked one"]
    verdict.bounds += [
        Bound("p99 beside all keys, by that without them", beside_all / p99s["of new keys"], P99_FACTOR_MAX),
        Bound("p99 beside a blocked key, by that without it", beside_blocked / beside_all, P99_FACTOR_MAX),
    ]


async def _stretch(
    client: AsyncClient, course: Course, kind: str, new: Callable[[bytes], NewItem], found: dict[str, list[Latencies]]
) -> None:
    topic = new(b"").topic
    stretch = Paced(
        namespace=_NAMESPACE,
        items_per_s=course.items_per_s,
        seconds=course.stretch_s,
        new=new,
        take=from_topic(_NAMESPACE, topic),
        seed=len(found.get(kind, ())),
    )
    found.setdefault(kind, []).append(await stretch.run(client))


def _keyed(payload: bytes, key: int | str, topic: str = _KEYED) -> NewItem:
    return NewItem(topic, payload, ordering_key=f"key-{key}")


async def _park(client: AsyncClient, course: Course) -> float:
    """Let each key have an item that waits for a delay; how long that took."""
    began_s, parked = time.monotonic(), 0

    async def park() -> None:
        nonlocal parked
        while parked < course.keys:
            items = await client.dequeue(_NAMESPACE, _KEYED, 1_000, wait_ms=200)
            if items:
                await client.nack(_NAMESPACE, [item.receipt for item in items], delay_ms=_PARK_MS)
            parked += len(items)

    async with asyncio.timeout(PATIENCE_S * 20), asyncio.TaskGroup() as group:
        for _ in range(_PARKING):
            group.create_task(park())
        items = [_keyed(_PAYLOAD, number) for number in range(course.keys)]
        group.create_task(fill(client, _NAMESPACE, items, _CALL_ITEMS))
    return time.monotonic() - began_s


async def _block(client: AsyncClient, course: Course) -> None:
    """Hold the first item of a key that has more. Raises FaultError if two of them are delivered."""
    await fill(client, _NAMESPACE, [_keyed(_PAYLOAD, _BLOCKED)] * (course.blocked + 1), _CALL_ITEMS)
    async with asyncio.timeout(PATIENCE_S):
        while not (items := await client.dequeue(_NAMESPACE, _KEYED, 10, lease_ms=_LEASE_MS, wait_ms=1_000)):
            pass
    if len(items) > 1:
        raise FaultError(f"{len(items)} items of one key are out")


async def _hot(client: AsyncClient, topic: str, items_count: int, consumers: int, batch: int = 1) -> float:
    """Return the items of one key that are consumed in a second, in calls of up to `batch`."""
    done = 0
    await fill(client, _NAMESPACE, [_keyed(_PAYLOAD, "hot", topic)] * items_count, _CALL_ITEMS)
    began_s = time.monotonic()

    async def consume() -> None:
        nonlocal done
        while done < items_count:
            items = await client.dequeue(_NAMESPACE, topic, batch, wait_ms=500)
            if items:
                await client.ack(_NAMESPACE, [item.receipt for item in items])
                done += len(items)

    async with asyncio.timeout(PATIENCE_S * 20), asyncio.TaskGroup() as group:
        for _ in range(consumers):
            group.create_task(consume())
    return items_count / (time.monotonic() - began_s)
