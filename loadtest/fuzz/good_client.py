"""A well-behaved client in a process of its own: a few items a second through their whole life, timed."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from multiprocessing.connection import Connection
from typing import Any

import uvloop

from foqs.client.aio import AsyncClient
from foqs.client.retry import RetryPolicy
from foqs.model.errors import FoqsError
from loadtest.fuzz.watched import NAMESPACE

GOOD_ADDRESS = "127.0.0.1"
"""Where it calls from."""
WORKERS = 4
PACE_S = 0.02
"""Between two items of a worker, so that it is the host that is measured and not this client."""
_END_S_MAX = 30.0


@dataclass(frozen=True, slots=True)
class Seen:
    """Calls since the last look; failures are calls that were answered with an error, or not at all."""

    count: int
    failures: int
    p50_ms: float
    p99_ms: float


class GoodClient:
    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def look(self) -> Seen:
        self._pipe.send("look")
        seen: Seen = self._pipe.recv()
        return seen


@contextmanager
def good_client(port: int, options: Mapping[str, Any] | None = None) -> Iterator[GoodClient]:
    """At work until the end of the block. `options`: further ones of it."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_serve, args=(there, port, dict(options or {})), name="good-client")
    process.start()
    there.close()
    try:
        yield GoodClient(here)
    finally:
        here.close()
        process.join(_END_S_MAX)
        if process.is_alive():
            process.kill()
            process.join()


def _serve(pipe: Connection, port: int, options: Mapping[str, Any]) -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(pipe, port, options))


class _Worker:
    """`topic` is its own, so that its items are the ones that it gets."""

    def __init__(self, client: AsyncClient, topic: str) -> None:
        self._client = client
        self._topic = topic
        self.latencies_ms: list[float] = []
        self.failures = 0

    async def run(self) -> None:
        while True:
            started_s = time.perf_counter()
            try:
                await self._client.enqueue(NAMESPACE, self._topic, b"good")
                enqueued_s = time.perf_counter()
                items = await self._client.dequeue(NAMESPACE, self._topic, wait_ms=5_000)
                dequeued_s = time.perf_counter()
                errors = await self._client.ack(NAMESPACE, items, return_errors=True)
                acked_s = time.perf_counter()
            except FoqsError:
                self.failures += 1
            else:
                self.failures += len(errors) + (not items)
                times = (started_s, enqueued_s, dequeued_s, acked_s)
                self.latencies_ms += [1000 * (end - start) for start, end in pairwise(times)]
            await asyncio.sleep(PACE_S)


async def _run(pipe: Connection, port: int, options: Mapping[str, Any]) -> None:
    loop = asyncio.get_running_loop()
    ended = asyncio.Event()
    async with AsyncClient(f"127.0.0.1:{port}", retry=RetryPolicy(deadline_ms=0), **options) as client:
        workers = [_Worker(client, f"good-{number}") for number in range(WORKERS)]

        def answer() -> None:
            try:
                pipe.recv()
                pipe.send(_look(workers))
            except (EOFError, BrokenPipeError):
                loop.remove_reader(pipe.fileno())
                ended.set()

        loop.add_reader(pipe.fileno(), answer)
        tasks = [asyncio.create_task(worker.run()) for worker in workers]
        await ended.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _look(workers: list[_Worker]) -> Seen:
    latencies_ms = sorted(latency for worker in workers for latency in worker.latencies_ms)
    failures = sum(worker.failures for worker in workers)
    for worker in workers:
        worker.latencies_ms, worker.failures = [], 0
    if not latencies_ms:
        return Seen(0, failures, float("inf"), float("inf"))
    return Seen(
        len(latencies_ms),
        failures,
        latencies_ms[len(latencies_ms) // 2],
        latencies_ms[min(len(latencies_ms) - 1, len(latencies_ms) * 99 // 100)],
    )
