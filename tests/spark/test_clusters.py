"""Exactly the rows, each once, where executors are processes of their own: shuffles, lost executors, speculation."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from foqs import Client
from loadtest.spark.faulty import told
from tests.support.spark_rows import drained, numbered, save

pytestmark = [pytest.mark.database, pytest.mark.slow]
ROWS = 8_000
MAPS, PARTITIONS = 12, 4


def shuffled(spark: Any, count: int = ROWS) -> Any:
    """Rows of many map tasks: those of a partition come in the order in which blocks are fetched."""
    return numbered(spark, count, partitions=MAPS).repartition(PARTITIONS, "payload")


def numbers(client: Client, namespace: str) -> Counter[int]:
    """How often each row is in the queue."""
    return Counter(int(item.payload) for item in drained(client, namespace))


def write(frame: Any, address: str, namespace: str, **options: str) -> None:
    save(frame, address, namespace, "append", "foqs_faulty", **options)


@pytest.mark.parametrize("dedup", ["key", "content", "positions"])
def test_a_repeated_task_meets_its_rows_in_another_order_and_only_ids_of_positions_lose_rows(
    two_executors: Any, address: str, namespace: str, client: Client, tmp_path: Path, dedup: str
) -> None:
    """Every task is repeated once after it has sent some of its rows, so that a part of its ids is known."""
    frame, every = shuffled(two_executors), list(range(PARTITIONS))
    if dedup == "key":
        frame = frame.selectExpr("*", "payload AS dedup_id")
    is_wrong = dedup == "positions"
    faults = told(tmp_path, fail_midway=every, positions=is_wrong)
    # With one call in flight the first batch is durable when the third one is asked for.
    write(frame, address, namespace, faults=faults, maxInFlight="1", dedup="content" if is_wrong else dedup)
    counts = numbers(client, namespace)
    if is_wrong:
        # Rows that now stand where others were sent from are dropped as their repeats, and those come twice.
        assert sum(counts.values()) == ROWS, "each position is enqueued once"
        assert set(counts) < set(range(ROWS)), "rows are lost"
        return
    assert counts == Counter(range(ROWS))
    assert len(list(tmp_path.glob("fail_midway-*"))) == PARTITIONS


@pytest.mark.parametrize("dedup", ["key", "content"])
def test_an_executor_killed_after_sending_and_its_stage_run_again_double_nothing(
    two_executors: Any, address: str, namespace: str, client: Client, tmp_path: Path, dedup: str
) -> None:
    """Its map output is lost with it, so the stage before is run again too, and tasks of the write with it."""
    frame = shuffled(two_executors)
    if dedup == "key":
        frame = frame.selectExpr("*", "payload AS dedup_id")
    write(frame, address, namespace, faults=told(tmp_path, kill_executor=[0]), dedup=dedup)
    assert (tmp_path / "kill_executor-0").exists()
    first_attempts = [path.name.split("-")[1] for path in tmp_path.glob("begun-*-0-*")]
    assert len(first_attempts) > len(set(first_attempts)), "the stage was run again, not a task alone"
    assert numbers(client, namespace) == Counter(range(ROWS))
