"""A real standalone master with two workers: what ships runs there, and copies of slow tasks double nothing."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foqs import AdminClient, Client, JobState
from loadtest.spark.faulty import told
from tests.support.spark_rows import drained, numbered, save

pytestmark = [pytest.mark.database, pytest.mark.slow]
ROWS, COPIED_ROWS = 12_000, 8_000
PARTITIONS = 4


def numbers(client: Client, namespace: str) -> Counter[int]:
    """How often each row is in the queue."""
    return Counter(int(item.payload) for item in drained(client, namespace))


def test_rows_of_files_arrive_each_once_and_the_record_has_the_totals(
    cluster: Any, address: str, namespace: str, client: Client, tmp_path: Path
) -> None:
    """Shuffled on the way, so that both workers have all parts of the writer to do."""
    numbered(cluster, ROWS).write.parquet(str(tmp_path / "rows"))
    rows = cluster.read.parquet(str(tmp_path / "rows")).repartition(PARTITIONS, "payload")
    save(rows.selectExpr("*", "payload AS dedup_id"), address, namespace, dedup="key", jobId="nightly")
    assert numbers(client, namespace) == Counter(range(ROWS))
    with AdminClient(address) as admin:
        job = admin.get_job(namespace, "nightly")
    assert (job.state, job.rows_count) == (JobState.SUCCEEDED, ROWS)
    # On a slow machine a task may have a copy, which then finds rows of the first one.
    told_rows = re.fullmatch(r"([\d,]+) items of 12,000 rows enqueued(?:, ([\d,]+) were there before)?", job.detail)
    assert told_rows is not None, job.detail
    assert sum([int(count.replace(",", "")) for count in told_rows.groups("0")]) == ROWS


@pytest.mark.parametrize("dedup", ["key", "content"])
def test_a_slow_task_and_its_copy_on_another_worker_double_nothing(
    cluster: Any, address: str, namespace: str, client: Client, tmp_path: Path, dedup: str
) -> None:
    """The slow one has sent its first rows, and goes on when the copy has sent all of them."""
    rows = numbered(cluster, COPIED_ROWS, PARTITIONS)
    if dedup == "key":
        rows = rows.selectExpr("*", "payload AS dedup_id")
    save(rows, address, namespace, "append", "foqs_faulty", faults=told(tmp_path, linger=[0]), dedup=dedup)
    assert numbers(client, namespace) == Counter(range(COPIED_ROWS))
    attempts = [path.name.split("-")[2] for path in tmp_path.glob("begun-0-*")]
    assert sorted(attempts) == ["0", "1"], "the task had a copy"
    assert len(list(tmp_path.glob("lingers-0-*"))) == 1
