"""Rows per second from PySpark next to plain clients that send the same rows, by turns, on this machine.

Both sides have two tasks or processes with four calls of 1,000 in flight each. The plain clients have their rows ready
in memory; Spark makes its rows as it goes (`rows`) and has written before, so that its JVM is warm.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any

from foqs import AdminClient, AsyncClient, Client, NewItem
from loadtest.demo.cluster import DevCluster
from loadtest.spark.session import local_session

NAMESPACE = "bench"
TASKS = 2
CALLS_IN_FLIGHT = 4
TOPICS = 10
PAYLOAD_BYTES = 200
_DRAIN_ITEMS = 1_000
_PATIENCE_S = 600.0
"""With a process that has failed."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=400_000)
    parser.add_argument("--blocks", type=int, default=3, help="of plain, Spark, Spark, plain each")
    parser.add_argument("--json", type=Path, help="write the figures here")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="foqs-bench-spark-") as home, DevCluster() as cluster:
        with AdminClient(cluster.address) as admin:
            admin.create_namespace(NAMESPACE, enqueues_per_minute_max=1_000_000_000)
        with local_session(Path(home), is_short=False) as spark:
            frame = rows(spark, arguments.rows)
            for _ in range(2):  # The first one starts Python workers, and the JVM has still to compile.
                by_spark(frame, cluster.address)
            ratios: list[float] = []
            for block in range(arguments.blocks):
                plain_s = by_clients(arguments.rows, cluster.address)
                spark_s = by_spark(frame, cluster.address) + by_spark(frame, cluster.address)
                plain_s += by_clients(arguments.rows, cluster.address)
                rate, plain_rate = 2 * arguments.rows / spark_s, 2 * arguments.rows / plain_s
                ratios.append(rate / plain_rate)
                print(f"block {block}: Spark {rate:,.0f} rows/s, plain {plain_rate:,.0f} rows/s, {ratios[-1]:.2f}")
    print(f"ratio: median {statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
    if arguments.json:
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps({"rows": arguments.rows, "ratios": ratios}))
    return 0


def rows(spark: Any, count: int) -> Any:
    """The same that `items_of` makes."""
    return spark.range(0, count, 1, TASKS).selectExpr(
        f"concat('topic-', id % {TOPICS}) AS topic", f"lpad(string(id), {PAYLOAD_BYTES}, '0') AS payload"
    )


def items_of(numbers: range) -> list[NewItem]:
    return [NewItem(f"topic-{number % TOPICS}", b"%0*d" % (PAYLOAD_BYTES, number)) for number in numbers]


def by_spark(frame: Any, address: str) -> float:
    """Seconds to enqueue the rows; drained after."""
    began_s = time.monotonic()
    frame.write.format("foqs").options(addresses=address, namespace=NAMESPACE, dedup="none").mode("append").save()
    elapsed_s = time.monotonic() - began_s
    drain(address)
    return elapsed_s


def by_clients(count: int, address: str) -> float:
    """The same by processes with plain clients; their start is not measured."""
    context = multiprocessing.get_context("spawn")
    start, end = (context.Barrier(TASKS + 1, timeout=_PATIENCE_S) for _ in range(2))
    parts = [range(count * task // TASKS, count * (task + 1) // TASKS) for task in range(TASKS)]
    processes = [context.Process(target=send, args=(address, part, start, end)) for part in parts]
    for process in processes:
        process.start()
    start.wait()
    began_s = time.monotonic()
    end.wait()
    elapsed_s = time.monotonic() - began_s
    for process in processes:
        process.join()
    drain(address)
    return elapsed_s


def send(address: str, part: range, start: Barrier, end: Barrier) -> None:
    async def run() -> None:
        items = items_of(part)
        async with AsyncClient(address) as client:
            await client.enqueue_many(NAMESPACE, items[:1])  # Connected, when it begins.
            start.wait()
            await client.enqueue_many(
                NAMESPACE, items[1:], retry_unknown=True, bulk=True, calls_in_flight=CALLS_IN_FLIGHT
            )
            end.wait()

    asyncio.run(run())


def drain(address: str) -> None:
    topics = [f"topic-{number}" for number in range(TOPICS)]
    with Client(address) as client:
        while items := client.dequeue(NAMESPACE, topics, _DRAIN_ITEMS, wait_ms=500):
            client.ack(NAMESPACE, items)


if __name__ == "__main__":
    sys.exit(main())
