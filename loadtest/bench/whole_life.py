"""Enqueue, dequeue and ack in calls of 100: 2 producer and 2 consumer processes with 8 calls in flight each."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import time
from multiprocessing.queues import Queue as Results
from multiprocessing.sharedctypes import Synchronized
from typing import Any

import uvloop

from loadtest.bench.cluster import Cluster, usage
from loadtest.bench.wire import Wire

BATCH, IN_FLIGHT, TOPICS, PRIORITIES = 100, 8, 10, 10
PAYLOAD = b"x" * 200


def whole_life(cluster: Cluster, items_count: int) -> dict[str, float]:
    """Rate from the first enqueue to the last ack, so that a growing backlog flatters nothing."""
    context = multiprocessing.get_context("spawn")
    results: Results[Any] = context.Queue()
    left: Synchronized[int] = context.Value("q", items_count)
    begin = context.Event()
    share = items_count // 2
    processes = [context.Process(target=_produce, args=(cluster.port, share, begin, results)) for _ in range(2)]
    processes += [context.Process(target=_consume, args=(cluster.port, left, begin, results)) for _ in range(2)]
    for process in processes:
        process.start()
    for _ in processes:
        assert results.get(timeout=60) == "ready"
    mysql_before_s, host_before_s = cluster.cpu_s()
    began_s = time.monotonic()
    begin.set()
    ends = [results.get(timeout=600) for _ in processes]
    mysql_s, host_s = cluster.cpu_s()
    for process in processes:
        process.join()
    last_ack_s = max(end for kind, end, _ in ends if kind == "consumer") - began_s
    return {
        "items_per_s": items_count / last_ack_s,
        "enqueues_per_s": items_count / (max(end for kind, end, _ in ends if kind == "producer") - began_s),
        "mysql_us": (mysql_s - mysql_before_s) / items_count * 1e6,
        "host_us": (host_s - host_before_s) / items_count * 1e6,
        "clients_us": sum(cpu_s for _, _, cpu_s in ends) / items_count * 1e6,
    }


def _produce(port: int, count: int, begin: Any, results: Results[Any]) -> None:
    async def work() -> None:
        wire = await Wire.connect(port)
        _ready(begin, results)
        left = count

        async def one(number: int) -> None:
            nonlocal left
            while left > 0:
                left -= BATCH
                number += 1
                await wire.enqueue([(f"t{(number + n) % TOPICS}", PAYLOAD, n % PRIORITIES) for n in range(BATCH)])

        cpu_before_s = usage(os.getpid()).cpu_s
        await asyncio.gather(*[one(number) for number in range(IN_FLIGHT)])
        results.put(("producer", time.monotonic(), usage(os.getpid()).cpu_s - cpu_before_s))
        wire.close()

    uvloop.run(work())


def _consume(port: int, left: Synchronized[int], begin: Any, results: Results[Any]) -> None:
    async def work() -> None:
        wire = await Wire.connect(port)
        _ready(begin, results)
        last_ack_s = 0.0

        async def one(number: int) -> None:
            nonlocal last_ack_s
            while left.value > 0:
                number += 1
                items = await wire.dequeue(f"t{number % TOPICS}", BATCH, 20)
                if items:
                    await wire.ack(items)
                    last_ack_s = time.monotonic()
                    with left.get_lock():
                        left.value -= len(items)

        cpu_before_s = usage(os.getpid()).cpu_s
        await asyncio.gather(*[one(number) for number in range(IN_FLIGHT)])
        results.put(("consumer", last_ack_s, usage(os.getpid()).cpu_s - cpu_before_s))
        wire.close()

    uvloop.run(work())


def _ready(begin: Any, results: Results[Any]) -> None:
    results.put("ready")
    begin.wait()
