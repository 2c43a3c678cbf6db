"""A million rows on a real cluster with every kind of failure: exactly the rows must be there, each once.

A standalone master with two workers, speculation on, rows shuffled. On the way a task fails after a part of its rows,
Python workers and an executor are killed with kill -9 after sending, a slow task gets a copy on the other worker, and
the host is killed with kill -9 while tasks have calls in flight. With keys, and with ids from the content.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from foqs import AdminClient, Client, FoqsError, Job, JobState
from foqs.dev.local_server import LocalServer
from foqs.spark.options import CONTENT, KEY
from loadtest.spark.faulty import FaultySource, told
from loadtest.spark.standalone import standalone_session
from tests.support.faults.cluster import Databases, make_databases, wait_until_owned
from tests.support.faults.programs import HostProgram, free_port

ROOT = Path(__file__).parents[2]
NAMESPACE, JOB = "exact", "exact"
SHARDS = range(4)
KEY_SPREAD = 16
MAPS, PARTITIONS = 12, 8
LINGER, FAIL_MIDWAY, KILL_WORKER, KILL_EXECUTOR, HOLD = [0], [1], [2, 5], [3], [4]
"""The partitions that meet each fault."""
_SMALL_BATCHES = {"spark.sql.execution.arrow.maxRecordsPerBatch": "1000"}
"""A task has several batches to fail between, however few rows there are."""
_PATIENCE_S = 600.0
"""Of a task that waits for its copy: other tasks come first."""
_CALL_ITEMS = 1_000
_SILENCE_S_MAX = 90.0
"""What a host that was killed had prefetched is to be had again after 40 s."""


class Host:
    """A host with a server and four shards, which is killed and comes back under the same address."""

    def __init__(self, databases: Databases) -> None:
        self._databases = databases
        self._port = free_port()
        self._program = self._start()
        self.address = self._program.address
        self.kills_count = 0

    def kill(self) -> None:
        """kill -9, and start it again."""
        self._program.kill()
        self._program = self._start()
        self.kills_count += 1

    def close(self) -> None:
        self._program.close()

    def _start(self) -> HostProgram:
        return HostProgram("exact", self._port, self._databases.meta_url, self._databases.shard_urls)


@dataclass(slots=True)
class Outcome:
    """What one job has left. numbers: how many items there are of each row; marks: which faults were met."""

    dedup: str
    elapsed_s: float
    record: Job
    numbers: Counter[int]
    marks: list[str]
    kills_count: int
    claims: dict[str, bool] = field(default_factory=dict)

    def met(self, fault: str) -> int:
        return sum(mark.startswith(f"{fault}-") for mark in self.marks)

    def repeats_count(self) -> int:
        """Attempts beside the first one of each partition."""
        return self.met("begun") - PARTITIONS


def main() -> int:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # What it has started ends with it.
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--dedup", nargs="+", choices=[KEY, CONTENT], default=[KEY, CONTENT])
    arguments = parser.parse_args()
    os.environ["PYTHONPATH"] = str(ROOT)  # Python workers find the writer with faults.
    console = Console()
    outcomes = []
    with tempfile.TemporaryDirectory(prefix="foqs-spark-exact-") as home:
        for dedup in arguments.dedup:
            directory = Path(home, dedup)
            directory.mkdir()
            outcomes.append(run(directory, arguments.rows, dedup))
            report(console, outcomes[-1], arguments.rows)
    return 0 if all(all(outcome.claims.values()) for outcome in outcomes) else 1


def run(home: Path, rows_count: int, dedup: str) -> Outcome:
    """One job, on servers and a cluster of its own."""
    with LocalServer(home / "mysql") as server:
        host = Host(make_databases(server, dict.fromkeys(SHARDS, server)))
        try:
            wait_until_owned(host.address)
            make_namespace(host.address, rows_count)
            marks = home / "marks"
            marks.mkdir()
            elapsed_s = write(home, marks, host, rows_count, dedup)
            return Outcome(
                dedup,
                elapsed_s,
                record_of(host.address),
                drained(host.address, rows_count),
                sorted(mark.name for mark in marks.iterdir()),
                host.kills_count,
            )
        finally:
            host.close()


def make_namespace(address: str, rows_count: int) -> None:
    """One without a quota to speak of, that knows all ids of the job until it has ended."""
    with AdminClient(address) as admin:
        admin.create_namespace(
            NAMESPACE, enqueues_per_minute_max=1_000_000_000, key_spread=KEY_SPREAD, dedup_ids=2 * rows_count
        )


def write(home: Path, marks: Path, host: Host, rows_count: int, dedup: str) -> float:
    """The job with all faults; how long it took."""
    faults = told(
        marks,
        linger=LINGER,
        fail_midway=FAIL_MIDWAY,
        kill_worker=KILL_WORKER,
        kill_executor=KILL_EXECUTOR,
        hold=HOLD,
        patience_s=_PATIENCE_S,
    )
    killer = threading.Thread(target=_kill_while_held, args=(marks, host), name="killer", daemon=True)
    with standalone_session(home, settings=_SMALL_BATCHES) as spark:
        spark.dataSource.register(FaultySource)
        frame = shuffled(spark, rows_count)
        if dedup == KEY:
            frame = frame.selectExpr("*", "payload AS dedup_id")
        options = {"addresses": host.address, "namespace": NAMESPACE, "dedup": dedup, "jobId": JOB, "faults": faults}
        killer.start()
        began_s = time.monotonic()
        frame.write.format("foqs_faulty").options(**options, onShortWindow="fail").mode("append").save()
        return time.monotonic() - began_s


def shuffled(spark: Any, rows_count: int) -> Any:
    """Rows whose payload is their number, of many map tasks: their order is another one in each attempt."""
    rows = spark.range(0, rows_count, 1, MAPS).selectExpr("concat('t', id % 10) AS topic", "string(id) AS payload")
    return rows.repartition(PARTITIONS, "payload")


def _kill_while_held(marks: Path, host: Host) -> None:
    """Kill the host when the held task has sent its first rows, and let the task go on."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not list(marks.glob("held-*")) and time.monotonic() < deadline_s:
        time.sleep(0.02)
    host.kill()
    (marks / "go").touch()


def record_of(address: str) -> Job:
    with AdminClient(address) as admin:
        return admin.get_job(NAMESPACE, JOB)


def drained(address: str, rows_count: int) -> Counter[int]:
    """How many items there are of each row, by taking all of them out. An item that comes again counts once."""
    ids: set[str] = set()
    numbers: Counter[int] = Counter()
    heard_s = time.monotonic()
    with Client(address) as client:
        topics = [f"t{number}" for number in range(10)]
        while len(ids) < rows_count or time.monotonic() - heard_s < 1.0:
            if time.monotonic() - heard_s > _SILENCE_S_MAX:
                break
            items = client.dequeue(NAMESPACE, topics, _CALL_ITEMS, wait_ms=500)
            for item in items:
                if item.id not in ids:
                    ids.add(item.id)
                    numbers[int(item.payload)] += 1
            if items:
                heard_s = time.monotonic()
                client.ack(NAMESPACE, items)
    return numbers


def report(console: Console, outcome: Outcome, rows_count: int) -> None:
    """Print the balance, and enter what held."""
    numbers, record = outcome.numbers, outcome.record
    twice_count = sum(count > 1 for count in numbers.values())
    lost_count = rows_count - len(numbers)
    table = Table(f"dedup={outcome.dedup}", "count", show_edge=False)
    counts: Mapping[str, int] = {
        "rows of the DataFrame": rows_count,
        "items in the queue": numbers.total(),
        "rows lost": lost_count,
        "rows that are there twice": twice_count,
        "rows that came again, at least (a killed host forgets 2 s)": record.duplicates_count,
        "attempts of tasks that were repeated": outcome.repeats_count(),
    }
    for name, count in counts.items():
        table.add_row(name, f"{count:,}")
    console.print(table)
    outcome.claims = {
        "exactly the rows, each once": numbers == Counter(range(rows_count)),
        "the job's record has the rows": (record.state, record.rows_count) == (JobState.SUCCEEDED, rows_count),
        "a task failed after a part of its rows": outcome.met("fail_midway") == len(FAIL_MIDWAY),
        "Python workers were killed after sending": outcome.met("kill_worker") == len(KILL_WORKER),
        "an executor was killed after sending": outcome.met("kill_executor") == len(KILL_EXECUTOR),
        "a slow task was overtaken by another attempt": outcome.met("lingers") > 0 and outcome.met("begun-0") > 1,
        "the host was killed while a task had sent a part": outcome.kills_count == 1 and outcome.met("held") == 1,
    }
    for claim, is_true in outcome.claims.items():
        console.print(f"{'ok' if is_true else 'FAILED':<7}{claim}")
    console.print(f"in {outcome.elapsed_s:.0f} s with all failures\n")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except FoqsError as error:
        sys.exit(f"error: {error}")
