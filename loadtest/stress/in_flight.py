"""Very many topics with a limit of items in flight: never more are out, and what the limit costs of throughput."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, field
from statistics import median

from foqs import AdminClient, AsyncClient
from foqs.client.queue_items import Item, NewItem
from loadtest.stress.hosts import cluster
from loadtest.stress.paced import PATIENCE_S, fill
from loadtest.stress.verdict import Bound, Verdict

RATE_SHARE_MIN = 0.9
_NAMESPACE = "tenant"
_LIMITED, _FREE = "limited-", "free-"
_PAYLOAD = b"x" * 100
_CALL_ITEMS = 100
_FILL_ITEMS = 1_000
_CONSUMERS = 4
"""On each host."""
_WORK_S = 0.002
_FOLLOWED_S = 3.0
"""Every host knows a policy within 2 s."""


@dataclass(frozen=True, slots=True)
class Course:
    hosts: int = 2
    topics: int = 3_000
    in_flight_max: int = 4
    items: int = 20
    """Of each topic, in each round."""
    rounds: int = 3


@dataclass(slots=True)
class Out:
    """The items that consumers work on, by topic. An item counts from its delivery until its ack begins."""

    counts: Counter[str] = field(default_factory=Counter)
    most: int = 0
    done: int = 0

    def begin(self, items: Sequence[Item]) -> None:
        self.counts.update(item.topic for item in items)
        self.most = max([self.most, *[self.counts[item.topic] for item in items]])

    def end(self, items: Sequence[Item]) -> None:
        self.counts.subtract(item.topic for item in items)
        self.done += len(items)


def run(course: Course) -> Verdict:
    verdict = Verdict("in-flight")
    verdict.facts |= asdict(course)
    with cluster(course.hosts) as hosts:
        hosts.create([_NAMESPACE])
        with AdminClient(hosts.addresses[0]) as admin:
            admin.set_topic_policy(_NAMESPACE, _LIMITED, is_prefix=True, in_flight_max=course.in_flight_max)
        time.sleep(_FOLLOWED_S)
        asyncio.run(_run(hosts.addresses, course, verdict))
    return verdict


async def _run(addresses: Sequence[str], course: Course, verdict: Verdict) -> None:
    rates: dict[str, list[float]] = {_FREE: [], _LIMITED: []}
    most: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(AsyncClient(address)) for address in addresses]
        for _ in range(course.rounds):
            for prefix, found in rates.items():
                topics = [f"{prefix}{number}" for number in range(course.topics)]
                items = [NewItem(topic, _PAYLOAD) for _ in range(course.items) for topic in topics]
                await asyncio.gather(
                    *[
                        fill(client, _NAMESPACE, items[at :: len(clients)], _FILL_ITEMS)
                        for at, client in enumerate(clients)
                    ]
                )
                out = Out()
                began_s = time.monotonic()
                await _consume_all(clients, prefix, out, len(items))
                found.append(len(items) / (time.monotonic() - began_s))
                most[prefix] = max(most[prefix], out.most)
    for prefix, found in rates.items():
        verdict.rows.append({"topics": prefix, "consumed a second": median(found), "most out": most[prefix]})
    share = median([limited / free for limited, free in zip(rates[_LIMITED], rates[_FREE], strict=True)])
    verdict.bounds += [
        Bound("most items of a limited topic in flight", most[_LIMITED], course.in_flight_max),
        Bound("rate of limited topics, by that of others", share, RATE_SHARE_MIN, is_least=True),
    ]


async def _consume_all(clients: Sequence[AsyncClient], prefix: str, out: Out, count: int) -> None:
    async def consume(client: AsyncClient) -> None:
        while out.done < count:
            items = await client.dequeue(_NAMESPACE, topic_prefix=prefix, count=_CALL_ITEMS, wait_ms=500)
            out.begin(items)
            await asyncio.sleep(_WORK_S)
            out.end(items)
            if items:
                await client.ack(_NAMESPACE, [item.receipt for item in items])

    async with asyncio.timeout(PATIENCE_S * 20), asyncio.TaskGroup() as group:
        for client in clients:
            for _ in range(_CONSUMERS):
                group.create_task(consume(client))
