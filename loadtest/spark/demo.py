"""A bulk enqueue from nothing to an exact balance: flights as Parquet, two Spark tasks, one of their workers killed.

A plain consumer takes everything out meanwhile and counts how often it met each row. Each flight has a key, so exactly
once is the promise: no row may be missing and none may come twice, although Spark repeats a task that had sent rows.
"""

from __future__ import annotations

import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foqs import AdminClient, Client, Job, JobState
from loadtest.flights import Flight, flights
from loadtest.spark.dev_cluster import DevCluster
from loadtest.spark.session import kill_python_worker, local_session

NAMESPACE = "flights"
JOB = "flights-of-2013"
PARTITIONS = 2
_KILL_AFTER_ROWS = 60_000
_BATCH_ITEMS = 1_000
_SILENCE_S_MAX = 60.0
_COUNTS_S_MAX = 10.0
"""Hosts write what they counted of a job every 2 s."""


@dataclass(slots=True)
class Tally:
    """How often each row came, told by its number. The consumer owns it; others read `count`."""

    deliveries: Counter[int] = field(default_factory=Counter)
    count: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What is known at the end. killed_at: how many items were there when a worker was killed, 0 if none was."""

    rows_count: int
    tally: Tally
    record: Job
    left_count: int
    killed_at: int
    elapsed_s: float


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # What it has started ends with it.
    console = Console()
    with console.status("reading the records"):
        records = flights()
    with tempfile.TemporaryDirectory(prefix="foqs-demo-spark-") as home, DevCluster() as cluster:
        with AdminClient(cluster.address) as admin:
            admin.create_namespace(NAMESPACE)
        parquet = Path(home, "flights")
        write_parquet(records, parquet)
        console.print(f"{len(records):,} flights in {PARTITIONS} Parquet files")
        topics = sorted({record.topic for record in records})
        tally, is_enqueued = Tally(), threading.Event()
        consumer = threading.Thread(target=consume, args=(cluster.address, topics, tally, is_enqueued), name="consumer")
        consumer.start()
        try:
            with console.status("starting Spark"), local_session(Path(home)) as spark:
                elapsed_s, killed_at = enqueue(spark, cluster.address, parquet, tally)
        finally:
            is_enqueued.set()
            consumer.join()
        balance = Balance(
            rows_count=len(records),
            tally=tally,
            record=record_of(cluster.address, len(records)),
            left_count=sum(cluster.rows_left().values()),
            killed_at=killed_at,
            elapsed_s=elapsed_s,
        )
        return report(console, balance)


def write_parquet(records: list[Flight], directory: Path) -> None:
    """One file a task, so that each reads rows of its own; a row's number is its key and its metadata."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    directory.mkdir()
    size = -(-len(records) // PARTITIONS)
    for part in range(PARTITIONS):
        some = records[part * size : (part + 1) * size]
        numbers = [str(part * size + number) for number in range(len(some))]
        table = pa.table(
            {
                "topic": [record.topic for record in some],
                "payload": pa.array([record.payload for record in some], pa.binary()),
                "priority": pa.array([record.priority for record in some], pa.int32()),
                "metadata": numbers,
                "dedup_id": numbers,
            }
        )
        parquet.write_table(table, directory / f"part-{part}.parquet")


def enqueue(spark: Any, address: str, parquet: Path, tally: Tally) -> tuple[float, int]:
    """Run the job, with a worker killed on the way; how long it took, and how many items were enqueued by then."""
    frame = spark.read.parquet(str(parquet)).coalesce(PARTITIONS)
    killed_at: list[int] = []

    def kill() -> None:
        with Client(address) as client:
            while (enqueued_count := tally.count + held_count(client)) < _KILL_AFTER_ROWS:
                time.sleep(0.01)
        kill_python_worker()
        killed_at.append(enqueued_count)

    killer = threading.Thread(target=kill, name="killer", daemon=True)
    killer.start()
    began_s = time.monotonic()
    options = {"addresses": address, "namespace": NAMESPACE, "dedup": "key", "jobId": JOB}
    frame.write.format("foqs").options(**options).mode("append").save()
    elapsed_s = time.monotonic() - began_s
    killer.join(_SILENCE_S_MAX)
    return elapsed_s, killed_at[0] if killed_at else 0


def held_count(client: Client) -> int:
    """Items that the queue holds now."""
    return sum(stats.ready + stats.leased for stats in client.topics(NAMESPACE))


def consume(address: str, topics: list[str], tally: Tally, is_enqueued: threading.Event) -> None:
    """Dequeue, count and ack until the job has ended and nothing comes any more."""
    with Client(address) as client:
        while True:
            was_enqueued = is_enqueued.is_set()
            items = client.dequeue(NAMESPACE, topics, _BATCH_ITEMS, wait_ms=500)
            tally.count += len(items)
            for item in items:
                tally.deliveries[int(item.metadata)] += 1
            if items:
                client.ack(NAMESPACE, items)
            elif was_enqueued:
                return


def record_of(address: str, rows_count: int) -> Job:
    """The job's record, once all hosts have written what they counted."""
    deadline_s = time.monotonic() + _COUNTS_S_MAX
    with AdminClient(address) as admin:
        while (record := admin.get_job(NAMESPACE, JOB)).items_count < rows_count and time.monotonic() < deadline_s:
            time.sleep(0.1)
    return record


def report(console: Console, balance: Balance) -> int:
    """Print the balance; 0 when it holds."""
    tally, record, rows_count = balance.tally, balance.record, balance.rows_count
    doubled_count = sum(count > 1 for count in tally.deliveries.values())
    missing_count = rows_count - len(tally.deliveries)
    table = Table("balance", "rows", show_edge=False)
    table.add_row("rows of the DataFrame", f"{rows_count:,}")
    table.add_row("items enqueued, as the job's record says", f"{record.items_count:,}")
    table.add_row("rows that Spark sent once more, and whose items were there", f"{record.duplicates_count:,}")
    table.add_row("items delivered and acked", f"{tally.count:,}")
    table.add_row("rows that came twice", f"{doubled_count:,}")
    table.add_row("rows lost", f"{missing_count:,}")
    table.add_row("rows left in MySQL", f"{balance.left_count:,}")
    console.print(table)
    console.print(
        f"enqueued in {balance.elapsed_s:.1f} s ({rows_count / balance.elapsed_s:,.0f} rows/s, Spark's first job, "
        f"consumed meanwhile); a Python worker was killed with kill -9 when {balance.killed_at:,} items were there"
    )
    holds = {
        "a worker was killed in the middle": 0 < balance.killed_at < rows_count,
        "Spark sent rows again": record.duplicates_count > 0,
        "no row is lost": missing_count == 0,
        "no row came twice": doubled_count == 0 and tally.count == rows_count,
        "the job's record agrees": (record.state, record.items_count, record.rows_count)
        == (JobState.SUCCEEDED, rows_count, rows_count),
        "nothing is left": balance.left_count == 0,
    }
    for claim, is_true in holds.items():
        console.print(f"{'ok' if is_true else 'FAILED':<7}{claim}")
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
