"""How long calls take: single-item enqueues from 64 connections, and from an enqueue to a waiting consumer."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.queues import Queue as Results
from typing import Any

import uvloop
from hdrh.histogram import HdrHistogram

from loadtest.bench.cluster import Cluster
from loadtest.bench.wire import Wire

PAYLOAD = b"x" * 200
_US_MAX = 60_000_000


def single_enqueues(cluster: Cluster, seconds: float, connection_count: int = 64) -> dict[str, float]:
    """Closed loop: one call in flight a connection, the connections spread over two processes."""
    context = multiprocessing.get_context("spawn")
    results: Results[Any] = context.Queue()
    processes = [
        context.Process(target=_enqueue_singly, args=(cluster.port, connection_count // 2, seconds, results))
        for _ in range(2)
    ]
    mysql_before_s, host_before_s = cluster.cpu_s()
    for process in processes:
        process.start()
    merged = HdrHistogram(1, _US_MAX, 3)
    count = 0
    for _ in processes:
        done, encoded = results.get(timeout=seconds + 60)
        count += done
        merged.decode_and_add(encoded)
    mysql_s, host_s = cluster.cpu_s()
    for process in processes:
        process.join()
    return {
        "calls_per_s": count / seconds,
        "mysql_us": (mysql_s - mysql_before_s) / count * 1e6,
        "host_us": (host_s - host_before_s) / count * 1e6,
        "p50_ms": merged.get_value_at_percentile(50) / 1000,
        "p99_ms": merged.get_value_at_percentile(99) / 1000,
    }


def _enqueue_singly(port: int, connection_count: int, seconds: float, results: Results[Any]) -> None:
    async def work() -> None:
        histogram = HdrHistogram(1, _US_MAX, 3)
        wires = [await Wire.connect(port) for _ in range(connection_count)]
        count, until_s = 0, time.monotonic() + seconds

        async def one(wire: Wire, number: int) -> None:
            nonlocal count
            while (began_s := time.monotonic()) < until_s:
                number += 1
                await wire.enqueue([(f"single{number % 10}", PAYLOAD, number % 10)])
                histogram.record_value(int((time.monotonic() - began_s) * 1e6))
                count += 1

        await asyncio.gather(*[one(wire, number) for number, wire in enumerate(wires)])
        results.put((count, histogram.encode()))
        for wire in wires:
            wire.close()

    uvloop.run(work())


def to_waiting_consumer(cluster: Cluster, seconds: float, items_per_s: int = 500) -> dict[str, float]:
    """Open loop: each item is due at its time, and its latency counts from then, whenever it was really sent."""
    histogram = HdrHistogram(1, _US_MAX, 3)
    count = int(seconds * items_per_s)
    all_here = asyncio.Event()

    async def consume(wire: Wire) -> None:
        while True:
            items = await wire.dequeue("waiting", 1, 5_000)
            now_s = time.monotonic()
            if histogram.get_total_count() + len(items) == count:
                all_here.set()
            for item in items:
                histogram.record_value(max(1, int((now_s - float(item.payload)) * 1e6)))
            if items:
                await wire.ack(items)

    async def work() -> None:
        producer = await Wire.connect(cluster.port)
        consumers = [await Wire.connect(cluster.port) for _ in range(8)]
        tasks = [asyncio.create_task(consume(wire)) for wire in consumers]
        begin_s = time.monotonic() + 0.2
        sent = set()
        for number in range(count):
            due_s = begin_s + number / items_per_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            call = asyncio.ensure_future(producer.enqueue([("waiting", b"%.6f" % due_s, 0)]))
            sent.add(call)
            call.add_done_callback(sent.discard)
        await asyncio.wait_for(all_here.wait(), 10)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for wire in (producer, *consumers):
            wire.close()

    uvloop.run(work())
    return {
        "items": histogram.get_total_count(),
        "p50_ms": histogram.get_value_at_percentile(50) / 1000,
        "p99_ms": histogram.get_value_at_percentile(99) / 1000,
        "max_ms": histogram.get_max_value() / 1000,
    }
