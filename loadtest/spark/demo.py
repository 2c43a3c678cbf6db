"""A bulk enqueue from nothing to an exact balance: flights as Parquet, two Spark tasks, one of their workers killed.

A plain consumer takes everything out meanwhile and counts how often it met each row. At least once is the promise: no
row may be missing, and what came twice must have come from the task that Spark repeated.
"""

from __future__ import annotations

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

from foqs import AdminClient, Client
from loadtest.demo.cluster import DevCluster
from loadtest.flights import Flight, flights
from loadtest.spark.session import kill_python_worker, local_session

NAMESPACE = "flights"
PARTITIONS = 2
_KILL_AFTER_ROWS = 60_000
_BATCH_ITEMS = 1_000
_SILENCE_S_MAX = 60.0


@dataclass(slots=True)
class Tally:
    """How often each row came, told by its number."""

    deliveries: Counter[int] = field(default_factory=Counter)
    count: int = 0
    heard_s: float = field(default_factory=time.monotonic)


def main() -> int:
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
        rows_left = sum(cluster.rows_left().values())
        return report(console, len(records), tally, killed_at, elapsed_s, rows_left)


def write_parquet(records: list[Flight], directory: Path) -> None:
    """One file a task, so that each reads rows of its own; `metadata` has a row's number."""
    import pyarrow as pa
    import pyarrow.parquet as parquet

    directory.mkdir()
    size = -(-len(records) // PARTITIONS)
    for part in range(PARTITIONS):
        some = records[part * size : (part + 1) * size]
        table = pa.table(
            {
                "topic": [record.topic for record in some],
                "payload": pa.array([record.payload for record in some], pa.binary()),
                "priority": pa.array([record.priority for record in some], pa.int32()),
                "metadata": [str(part * size + number) for number in range(len(some))],
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
    frame.write.format("foqs").options(addresses=address, namespace=NAMESPACE, dedup="none").mode("append").save()
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


def report(console: Console, rows_count: int, tally: Tally, killed_at: int, elapsed_s: float, rows_left: int) -> int:
    """Print the balance; 0 when it holds."""
    doubled = [row for row, count in tally.deliveries.items() if count > 1]
    size = -(-rows_count // PARTITIONS)
    parts = {row // size for row in doubled}
    missing_count = rows_count - len(tally.deliveries)
    table = Table("balance", "rows", show_edge=False)
    table.add_row("rows of the DataFrame", f"{rows_count:,}")
    table.add_row("items delivered and acked", f"{tally.count:,}")
    table.add_row("distinct rows among them", f"{len(tally.deliveries):,}")
    table.add_row("rows delivered twice, by the task that was repeated", f"{len(doubled):,}")
    table.add_row("rows lost", f"{missing_count:,}")
    table.add_row("rows left in MySQL", f"{rows_left:,}")
    console.print(table)
    console.print(
        f"enqueued in {elapsed_s:.1f} s ({rows_count / elapsed_s:,.0f} rows/s, Spark's first job, consumed meanwhile); "
        f"a Python worker was killed with kill -9 when {killed_at:,} items were there"
    )
    holds = {
        "no row is lost": missing_count == 0,
        "each delivery is a row, or one of the repeated task": tally.count == rows_count + len(doubled),
        "only one task was repeated": len(parts) <= 1,
        "a worker was killed": killed_at > 0,
        "the repeated task sent rows again": bool(doubled),
        "nothing is left": rows_left == 0,
    }
    for claim, is_true in holds.items():
        console.print(f"{'ok' if is_true else 'FAILED':<7}{claim}")
    return 0 if all(holds.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
