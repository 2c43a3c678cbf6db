"""The processes that use a queue: producers and consumers of one phase, and what each of them saw."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
import traceback
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from multiprocessing.queues import Queue as Results
from random import Random
from typing import Any, Protocol, runtime_checkable

import uvloop

from loadtest.bench.scenario import STAMP_BYTES, Phase, Scenario
from loadtest.bench.stamp import STAMP, Lateness, TopicDelay, histogram
from loadtest.bench.ticker import Ticker, evenly
from loadtest.peers.adapter import Adapter, Client, Held, Offer

NEVER = 1 << 62
READY = "ready"
_DUE_MAX = 1_000_000
"""Of an open loop: so much may wait in a producer."""


@runtime_checkable
class Grouping(Protocol):
    """A client that knows which items go together into a call."""

    async def shards_of(self, offers: Sequence[Offer]) -> Sequence[int]: ...


class Gate:
    """Memory that the main process and the clients share: when to begin, what is to be done, what is."""

    def __init__(self, context: BaseContext, consumer_count: int) -> None:
        self.begin = context.Event()
        self.begin_ns: Any = context.Value("q", 0, lock=False)
        self.target: Any = context.Value("q", NEVER, lock=False)
        """So many items are to be acked by all consumers."""
        self.acked: Any = context.Array("q", max(1, consumer_count), lock=False)
        """By consumer, each written by it alone."""

    def left(self) -> int:
        return int(self.target.value - sum(self.acked))


@dataclass(frozen=True)
class Job:
    """What a client process needs to know."""

    adapter: Adapter
    scenario: Scenario
    phase: Phase
    number: int
    """Among those of its kind."""
    first_item: int
    """Items have numbers from here on; those of different producers and phases do not meet. See stamp.OF_BACKLOG."""
    due_in_ns: int | None = None
    """All items are to be ready so long after the beginning, if not at once."""
    cores: frozenset[int] = field(default_factory=lambda: frozenset(os.sched_getaffinity(0)))
    """Those of the main process: the process that forks the clients may have begun on others."""

    def batch(self, asked: int) -> int:
        return min(asked, self.adapter.batch_max)


@dataclass
class Outcome:
    """What one client process did. Histograms are encoded."""

    kind: str
    items: int
    last_ns: int
    cpu_s: float
    check: int
    histograms: dict[str, bytes] = field(default_factory=dict)
    topics: dict[int, TopicDelay] = field(default_factory=dict)


def produce(job: Job, gate: Gate, results: Results[Any]) -> None:
    """The main function of a producer process."""
    _run(_Producer(job, gate), results)


def consume(job: Job, gate: Gate, results: Results[Any]) -> None:
    """The main function of a consumer process."""
    _run(_Consumer(job, gate), results)


def process_number() -> int:
    """Of the client process that asks, among those of its kind; 0 in the main process."""
    _, _, number = multiprocessing.current_process().name.rpartition("-")
    return int(number) if number.isdigit() else 0


def _run(worker: _Producer | _Consumer, results: Results[Any]) -> None:
    os.sched_setaffinity(0, worker.job.cores)
    try:
        uvloop.run(worker.run(results))
    except Exception:
        results.put(traceback.format_exc())


async def _begin(gate: Gate, results: Results[Any]) -> float:
    """Wait until all are ready; the CPU that was used up to then."""
    results.put(READY)
    await asyncio.to_thread(gate.begin.wait)
    await asyncio.sleep(max(0.0, (gate.begin_ns.value - time.monotonic_ns()) / 1e9))
    return time.process_time()


class _Producer:
    def __init__(self, job: Job, gate: Gate) -> None:
        assert job.phase.producers is not None
        self.job, self._gate, self._role = job, gate, job.phase.producers
        self._batch = job.batch(self._role.batch)
        self._made = 0
        self._last_ns = 0
        self._calls_ns: list[int] = []
        self._until_ns = NEVER
        self._items_left = self._share(job.phase.items)
        self._due: asyncio.Queue[int | None] = asyncio.Queue(_DUE_MAX)
        scenario = job.scenario
        self._topics = scenario.topic_names
        self._filler = b"x" * (scenario.payload_bytes - STAMP_BYTES)
        self._has_ids = self._role.dedup_ids != "none"
        self._by_shard: dict[int, list[Offer]] | None = (
            defaultdict(list) if self._role.dedup_ids == "by shard" else None
        )
        self._priorities = [p for p, weight in enumerate(scenario.priority_weights) for _ in range(weight)]
        Random(7).shuffle(self._priorities)

    def _share(self, items: int | None) -> int:
        if items is None:
            return NEVER
        count, rest = divmod(items, self._role.processes)
        return count + (self.job.number < rest)

    async def run(self, results: Results[Any]) -> None:
        clients = [await self.job.adapter.connect(self._role.in_flight) for _ in range(self._role.connections)]
        cpu_before_s = await _begin(self._gate, results)
        if self.job.phase.seconds is not None:
            self._until_ns = self._gate.begin_ns.value + int(self.job.phase.seconds * 1e9)
        work = self._closed if self._role.items_per_s is None else self._open
        await work([client for client in clients for _ in range(self._role.in_flight)])
        for rest in (self._by_shard or {}).values():
            await self._send(clients[0], rest, time.monotonic_ns())
        cpu_s = time.process_time() - cpu_before_s
        first, made = self.job.first_item, self._made
        results.put(
            Outcome(
                "producer", made, self._last_ns, cpu_s, made * first + made * (made - 1) // 2,
                {"enqueue": histogram(self._calls_ns).encode()},
            )
        )  # fmt: skip
        for client in clients:
            await client.close()

    async def _closed(self, clients: list[Client]) -> None:
        async def one(client: Client) -> None:
            # One call in any case: on a busy machine a short phase can be over before it has begun here.
            while self._items_left > 0 and ((now_ns := time.monotonic_ns()) < self._until_ns or not self._made):
                count = min(self._batch, self._items_left)
                self._items_left -= count
                await self._enqueue(client, count, now_ns)

        await asyncio.gather(*[one(client) for client in clients])

    async def _open(self, clients: list[Client]) -> None:
        """Producers take turns, so that items are due one by one at the whole rate."""
        assert self._role.items_per_s is not None
        turn_ns = self._batch / self._role.items_per_s * 1e9
        first_ns = self._gate.begin_ns.value + int(turn_ns * self.job.number)
        end_ns = min(self._until_ns, first_ns + int(self._items_left / self._batch * turn_ns * self._role.processes))

        async def one(client: Client) -> None:
            while (due_ns := await self._due.get()) is not None:
                await self._enqueue(client, self._batch, due_ns)
            self._due.put_nowait(None)

        with Ticker(
            evenly(first_ns, turn_ns * self._role.processes, end_ns),
            self._due.put_nowait, lambda: self._due.put_nowait(None),
        ):  # fmt: skip
            await asyncio.gather(*[one(client) for client in clients])

    async def _enqueue(self, client: Client, count: int, due_ns: int) -> None:
        offers = self._offers(count, due_ns)
        if self._by_shard is None:
            await self._send(client, offers, due_ns)
            return
        assert isinstance(client, Grouping)
        shards = await client.shards_of(offers)
        for shard, offer in zip(shards, offers, strict=True):
            self._by_shard[shard].append(offer)
        for shard in set(shards):
            while len(self._by_shard[shard]) >= self._batch:
                whole = self._by_shard[shard][: self._batch]
                del self._by_shard[shard][: self._batch]
                await self._send(client, whole, time.monotonic_ns())

    async def _send(self, client: Client, offers: Sequence[Offer], due_ns: int) -> None:
        await client.enqueue(offers)
        self._last_ns = time.monotonic_ns()
        self._calls_ns.append(self._last_ns - due_ns)

    def _offers(self, count: int, due_ns: int) -> list[Offer]:
        """Topics take turns within a call; priorities are dealt from a shuffled deck, alike for every topic."""
        job, scenario, topics, priorities, filler, has_ids = (
            self.job, self.job.scenario, self._topics, self._priorities, self._filler, self._has_ids,
        )  # fmt: skip
        begin, self._made = self._made, self._made + count
        ready_ns, common_delay_ms = due_ns, 0
        if job.due_in_ns is not None:
            ready_ns = self._gate.begin_ns.value + job.due_in_ns
            common_delay_ms = max(0, -((time.monotonic_ns() - ready_ns) // 1_000_000))
        offers = []
        for made in range(begin, begin + count):
            topic = made % len(topics)
            delay_ms = common_delay_ms
            if scenario.delay_share and int((made + 1) * scenario.delay_share) > int(made * scenario.delay_share):
                delay_ms += scenario.delay_ms
            number = job.first_item + made
            stamp = STAMP.pack(ready_ns + (delay_ms - common_delay_ms) * 1_000_000, number, topic)
            priority = priorities[made // len(topics) % len(priorities)]
            dedup_id = f"{number:032x}" if has_ids else None
            offers.append(Offer(topics[topic], stamp + filler, priority, delay_ms, dedup_id))
        return offers


class _Consumer:
    def __init__(self, job: Job, gate: Gate) -> None:
        assert job.phase.consumers is not None
        self.job, self._gate, self._role = job, gate, job.phase.consumers
        self._batch = job.batch(self._role.batch)
        self._claims_ns: list[int] = []
        self._acks_ns: list[int] = []
        self._taken: list[tuple[int, bytes]] = []
        """When, and the stamps: they are read after the end, for that costs more than taking them."""
        self._acked = self._seen = self._nacked = 0
        self._last_ns = 0
        names, size = job.scenario.topic_names, self._role.topics_per_claim
        self._topics = [names[first : first + size] for first in range(0, len(names), size)]

    async def run(self, results: Results[Any]) -> None:
        clients = [await self.job.adapter.connect(self._role.in_flight) for _ in range(self._role.connections)]
        tasks = [client for client in clients for _ in range(self._role.in_flight)]
        cpu_before_s = await _begin(self._gate, results)
        first = self.job.number * len(tasks)
        await asyncio.gather(*[self._consume(client, first + n) for n, client in enumerate(tasks)])
        cpu_s = time.process_time() - cpu_before_s
        found = Lateness()
        for claimed_ns, stamps in self._taken:
            found.read(claimed_ns, stamps)
        histograms = {
            "claim": histogram(self._claims_ns), "ack": histogram(self._acks_ns),
            "ready": found.ready, "backlog": found.backlog,
        }  # fmt: skip
        encoded = {kind: of.encode() for kind, of in histograms.items()}
        results.put(Outcome("consumer", self._acked, self._last_ns, cpu_s, found.check, encoded, found.topics))
        for client in clients:
            await client.close()

    async def _consume(self, client: Client, turn: int) -> None:
        while (left := self._gate.left()) > 0:
            topics = self._topics[turn % len(self._topics)]
            turn += self._role.topics_per_claim == 1
            began_ns = time.monotonic_ns()
            held = await client.claim(topics, min(self._batch, left), self._role.wait_ms)
            if not held:
                continue
            claimed_ns = time.monotonic_ns()
            self._claims_ns.append(claimed_ns - began_ns)
            if self._role.nack_share:
                held = await self._give_back_some(client, held)
            await self._ack(client, held, claimed_ns)

    async def _ack(self, client: Client, held: Sequence[Held], claimed_ns: int) -> None:
        if not held:
            return
        began_ns = time.monotonic_ns()
        await client.ack(held)
        self._last_ns = time.monotonic_ns()
        self._acks_ns.append(self._last_ns - began_ns)
        self._taken.append((claimed_ns, b"".join([one.payload[:STAMP_BYTES] for one in held])))
        self._acked += len(held)
        self._gate.acked[self.job.number] = self._acked

    async def _give_back_some(self, client: Client, held: list[Held]) -> list[Held]:
        """Those that are left."""
        self._seen += len(held)
        count = int(self._seen * self._role.nack_share) - self._nacked
        if count > 0:
            self._nacked += count
            await client.nack(held[:count], self._role.nack_delay_ms)
        return held[max(0, count) :]
