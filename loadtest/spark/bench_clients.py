"""The plain clients that PySpark is measured against: processes with the same rows, from memory or from Parquet."""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from collections.abc import Iterator
from multiprocessing.synchronize import Barrier
from pathlib import Path

from foqs import AsyncClient, Client, NewItem

NAMESPACE = "bench"
TASKS = 2
CALLS_IN_FLIGHT = 4
TOPICS = 10
PAYLOAD_BYTES = 200
MEMORY, PARQUET = "memory", "parquet"
_BATCH_ROWS = 10_000
"""As many as Spark gives a writer at a time."""
_DRAIN_ITEMS = 1_000
_PATIENCE_S = 600.0
"""With a process that has failed."""


def write_parquet(directory: Path, count: int) -> None:
    """One file for each task, with the columns id, topic and payload."""
    import pyarrow as pa
    from pyarrow import parquet

    directory.mkdir()
    for task in range(TASKS):
        numbers = range(count * task // TASKS, count * (task + 1) // TASKS)
        payloads = [b"%0*d" % (PAYLOAD_BYTES, number) for number in numbers]
        topics = [f"topic-{number % TOPICS}" for number in numbers]
        table = pa.table({"id": pa.array(numbers, pa.int64()), "topic": topics, "payload": payloads})
        parquet.write_table(table, file_of(directory, task))


def file_of(directory: Path, task: int) -> Path:
    return directory / f"part-{task}.parquet"


def items_of(file: Path, key_prefix: str | None) -> Iterator[NewItem]:
    """The rows of a file, read as they are taken; with a prefix each has a dedup id."""
    from pyarrow import parquet

    for batch in parquet.ParquetFile(file).iter_batches(_BATCH_ROWS):
        ids, topics, payloads = (batch.column(name).to_pylist() for name in ("id", "topic", "payload"))
        if key_prefix is None:
            yield from map(NewItem, topics, payloads)
        else:
            for number, topic, payload in zip(ids, topics, payloads, strict=True):
                yield NewItem(topic, payload, dedup_id=f"{key_prefix}{number}")


def by_clients(address: str, directory: Path, baseline: str, key_prefix: str | None) -> float:
    """Seconds until all rows are enqueued; the start of the processes is not measured."""
    context = multiprocessing.get_context("spawn")
    start, end = (context.Barrier(TASKS + 1, timeout=_PATIENCE_S) for _ in range(2))
    processes = [
        context.Process(target=_send, args=(address, file_of(directory, task), baseline, key_prefix, start, end))
        for task in range(TASKS)
    ]
    for process in processes:
        process.start()
    start.wait()
    began_s = time.monotonic()
    end.wait()
    elapsed_s = time.monotonic() - began_s
    for process in processes:
        process.join()
    return elapsed_s


def _send(address: str, file: Path, baseline: str, key_prefix: str | None, start: Barrier, end: Barrier) -> None:
    async def run() -> None:
        items = items_of(file, key_prefix)
        async with AsyncClient(address) as client:
            await client.enqueue_many(NAMESPACE, [next(items)])  # Connected, when it begins.
            rest = list(items) if baseline == MEMORY else items
            start.wait()
            await client.enqueue_many(NAMESPACE, rest, retry_unknown=True, bulk=True, calls_in_flight=CALLS_IN_FLIGHT)
            end.wait()

    asyncio.run(run())


def drain(address: str) -> int:
    """Take everything out; how much it was."""
    topics = [f"topic-{number}" for number in range(TOPICS)]
    count = 0
    with Client(address) as client:
        while items := client.dequeue(NAMESPACE, topics, _DRAIN_ITEMS, wait_ms=500):
            client.ack(NAMESPACE, items)
            count += len(items)
    return count
