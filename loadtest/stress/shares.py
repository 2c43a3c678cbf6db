"""A topic with a million items beside others: consumers of any topic get each by its weight, on all hosts together."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from itertools import cycle

from foqs import AdminClient, AsyncClient
from foqs.client.queue_items import NewItem
from loadtest.stress.hosts import cluster
from loadtest.stress.verdict import Bound, Verdict
from tests.support.faults import FaultError

OFF_SHARE_MAX = 0.05
_NAMESPACE = "crowded"
_CROWD = "crowd"
_WEIGHTS = (1, 2, 4)
_CONSUMERS = 4
"""On each host."""
_CALL_ITEMS = 100
_BATCH = 1_000
_FILLING = 8
"""Calls in flight while the crowd is enqueued."""
_STOCK_ITEMS = 20_000
"""Of each other topic, all the time: the fastest one uses up less while one call takes."""


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 2
    crowd: int = 1_000_000
    topics: int = 7
    """Beside it."""
    seconds: int = 60
    warm_s: int = 5
    window_s: int = 10

    @property
    def weights(self) -> dict[str, int]:
        names = [_CROWD, *[f"topic-{number}" for number in range(self.topics)]]
        return dict(zip(names, cycle(_WEIGHTS)))


@dataclass(slots=True)
class _Taken:
    """How many items of each topic consumers got, in each second of the run."""

    began_s: float = field(default_factory=time.monotonic)
    by_second: dict[int, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    total: Counter[str] = field(default_factory=Counter)

    def note(self, topics: Sequence[str]) -> None:
        counts = Counter(topics)
        self.by_second[int(time.monotonic() - self.began_s)] += counts
        self.total += counts

    def between(self, first: int, end: int) -> Counter[str]:
        return sum((self.by_second[second] for second in range(first, end)), Counter())


def run(course: Course) -> Verdict:
    if course.seconds < course.window_s:
        raise FaultError(f"seconds is {course.seconds}: it must be at least {course.window_s}, for one window")
    verdict = Verdict(f"shares of {course.topics + 1} topics over {course.hosts} hosts")
    verdict.facts |= asdict(course)
    with cluster(course.hosts) as hosts:
        hosts.create([_NAMESPACE])
        with AdminClient(hosts.addresses[0]) as admin:
            for topic, weight in course.weights.items():
                admin.set_topic_policy(_NAMESPACE, topic, weight=weight)
        taken, left = asyncio.run(_take(hosts.addresses, course))
    if left < 1:
        raise FaultError(f"the crowd was used up: {course.crowd} items are too few for {course.seconds} s")
    _judge(verdict, course, taken)
    verdict.facts["left of the crowd"] = left
    return verdict


async def _take(addresses: Sequence[str], course: Course) -> tuple[_Taken, int]:
    """What was taken from the begin of the consumers, and how much of the crowd was left."""
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(address)) for address in addresses]
        await _fill(clients, course.crowd)
        stocks: Counter[str] = Counter()
        for topic in course.weights:
            if topic != _CROWD:
                await _stock_up(clients, topic, stocks)
        taken = _Taken()
        work = [_consume(client, taken, stocks) for client in clients for _ in range(_CONSUMERS)]
        work += [_keep_stocked(clients, topic, stocks) for topic in stocks]
        tasks = [asyncio.create_task(one) for one in work]
        await asyncio.wait(tasks, timeout=course.warm_s + course.seconds + 1, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if not isinstance(result, asyncio.CancelledError):
                raise result if isinstance(result, BaseException) else FaultError("it never ends by itself")
    return taken, course.crowd - taken.total[_CROWD]


async def _fill(clients: Sequence[AsyncClient], count: int) -> None:
    """The crowd, on all hosts."""
    firsts = iter(range(0, count, _BATCH))

    async def fill(client: AsyncClient) -> None:
        for first in firsts:
            await _enqueue(client, _CROWD, min(_BATCH, count - first))

    await asyncio.gather(*[fill(clients[number % len(clients)]) for number in range(_FILLING)])


async def _keep_stocked(clients: Sequence[AsyncClient], topic: str, stocks: Counter[str]) -> None:
    while True:
        await _stock_up(clients, topic, stocks)
        await asyncio.sleep(0.02)


async def _stock_up(clients: Sequence[AsyncClient], topic: str, stocks: Counter[str]) -> None:
    """On all hosts alike."""
    while stocks[topic] < _STOCK_ITEMS:
        stocks[topic] += _BATCH * len(clients)
        await asyncio.gather(*[_enqueue(client, topic, _BATCH) for client in clients])


async def _enqueue(client: AsyncClient, topic: str, count: int) -> None:
    result = await client.enqueue_many(_NAMESPACE, [NewItem(topic, b"x" * 20)] * count)
    if result.errors:
        raise FaultError(f"an enqueue failed: {next(iter(result.errors.values()))}")


async def _consume(client: AsyncClient, taken: _Taken, stocks: Counter[str]) -> None:
    while True:
        items = await client.dequeue(_NAMESPACE, topic_prefix="", count=_CALL_ITEMS, wait_ms=1_000)
        topics = [item.topic for item in items]
        taken.note(topics)
        stocks.subtract(topic for topic in topics if topic != _CROWD)
        await client.ack(_NAMESPACE, [item.receipt for item in items])


def _judge(verdict: Verdict, course: Course, taken: _Taken) -> None:
    first, end = course.warm_s, course.warm_s + course.seconds
    whole = taken.between(first, end)
    starts = range(first, end - course.window_s + 1)
    windows = [taken.between(start, start + course.window_s) for start in starts]
    worst = {topic: max(_off(window, course.weights, topic) for window in windows) for topic in course.weights}
    for topic, weight in course.weights.items():
        verdict.rows.append(
            {
                "topic": topic,
                "weight": weight,
                "share due": weight / sum(course.weights.values()),
                "share of the whole time": whole[topic] / max(1, whole.total()),
                f"off in {course.window_s} s at most": worst[topic],
            }
        )
    verdict.facts["delivered a second"] = whole.total() / course.seconds
    what = f"by what part of its share a topic is off it in any {course.window_s} s"
    verdict.bounds.append(Bound(what, max(worst.values()), OFF_SHARE_MAX))


def _off(window: Mapping[str, int], weights: Mapping[str, int], topic: str) -> float:
    """By what part of its share the topic got more or less."""
    due = sum(window.values()) * weights[topic] / sum(weights.values())
    return abs(window.get(topic, 0) - due) / due if due else float("inf")
