"""Items at a fixed rate, and how long each takes from the time when it was due to its delivery.

Producer and consumers are tasks of one process, whose clock is in each payload. The rate is an open loop: a stall is a
delay of all items that were due meanwhile.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from random import Random

from foqs import AsyncClient
from foqs.client.queue_items import Item, NewItem
from tests.support.faults import FaultError

PATIENCE_S = 60.0
_FILLING = 8
"""Calls in flight while a backlog is enqueued."""
_WAIT_MS = 1_000


@dataclass(slots=True)
class Latencies:
    """Of a stretch, in nanoseconds. `due_count`: how many items were to be enqueued."""

    due_count: int = 0
    found_ns: array[int] = field(default_factory=lambda: array("Q"))

    def note(self, item: Item) -> None:
        self.found_ns.append(max(0, time.monotonic_ns() - int(item.payload)))

    def ms(self, percentile: float) -> float:
        """Infinite if an item was not delivered."""
        if len(self.found_ns) < self.due_count or not self.found_ns:
            return float("inf")
        ordered = sorted(self.found_ns)
        return ordered[min(len(ordered) - 1, int(len(ordered) * percentile / 100))] / 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Paced:
    """A stretch. `new`: the next item, with this payload. `take`: one dequeue of the consumers."""

    namespace: str
    items_per_s: float
    seconds: float
    new: Callable[[bytes], NewItem]
    take: Callable[[AsyncClient], Awaitable[Sequence[Item]]]
    consumers: int = 4
    seed: int = 1

    async def run(self, client: AsyncClient) -> Latencies:
        """Enqueue and consume; return once all items were acked. Raises FaultError if a call or a minute fails."""
        found, done = Latencies(due_count=round(self.items_per_s * self.seconds)), asyncio.Event()

        async def consume() -> None:
            while not done.is_set():
                items = await self.take(client)
                for item in items:
                    found.note(item)
                if items:
                    await client.ack(self.namespace, [item.receipt for item in items])
                if len(found.found_ns) >= found.due_count:
                    done.set()

        async with asyncio.timeout(self.seconds + PATIENCE_S), asyncio.TaskGroup() as group:
            for _ in range(self.consumers):
                group.create_task(consume())
            await self._produce(client, found.due_count, group)
        return found

    async def _produce(self, client: AsyncClient, count: int, group: asyncio.TaskGroup) -> None:
        rng, due_ns = Random(self.seed), time.monotonic_ns()
        for _ in range(count):
            due_ns += int(rng.expovariate(self.items_per_s) * 1e9)
            await asyncio.sleep(max(0.0, (due_ns - time.monotonic_ns()) / 1e9))
            group.create_task(enqueue(client, self.namespace, [self.new(b"%d" % due_ns)]))


async def enqueue(client: AsyncClient, namespace: str, items: Sequence[NewItem]) -> None:
    """One call, whose items are all stored. Raises FaultError."""
    result = await client.enqueue_many(namespace, items)
    if result.errors:
        raise FaultError(f"an enqueue failed: {next(iter(result.errors.values()))}")


async def fill(client: AsyncClient, namespace: str, items: Iterable[NewItem], call_items: int) -> None:
    """A backlog, some calls at a time."""
    left = iter(items)

    async def work() -> None:
        while part := list(islice(left, call_items)):
            await enqueue(client, namespace, part)

    await asyncio.gather(*[work() for _ in range(_FILLING)])


def from_topic(
    namespace: str, topic: str, group: str | None = None, count: int = 10
) -> Callable[[AsyncClient], Awaitable[Sequence[Item]]]:
    """A dequeue of the topic, or of one of its groups."""

    async def take(client: AsyncClient) -> Sequence[Item]:
        return await client.dequeue(namespace, topic, count, group=group, wait_ms=_WAIT_MS)

    return take
