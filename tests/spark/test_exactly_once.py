"""Exactly the rows, each once, in one process of Spark: a worker, a commit and the host die on the way."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from foqs import AdminClient, Client
from loadtest.spark.faulty import told
from tests.spark.conftest import KillableHost
from tests.support.spark_rows import keyed, numbered, numbers, save, stream
from tests.support.waiting import until_true

pytestmark = [pytest.mark.database]
ROWS = 12_000
STREAM_ROWS = 3_000


@pytest.mark.parametrize("dedup", [pytest.param("key", marks=pytest.mark.slow), "content"])
def test_workers_killed_after_sending_double_nothing(
    spark: Any, address: str, namespace: str, client: Client, tmp_path: Path, dedup: str
) -> None:
    rows = keyed(numbered(spark, ROWS), dedup)
    faults = told(tmp_path, kill_worker=[0, 1])
    save(rows, address, namespace, "append", "foqs_faulty", faults=faults, dedup=dedup)
    assert numbers(client, namespace) == Counter(range(ROWS))
    assert len(list(tmp_path.glob("kill_worker-*"))) == 2, "both were killed"


def test_rows_that_are_equal_are_all_kept_by_their_content(
    spark: Any, address: str, namespace: str, client: Client, tmp_path: Path
) -> None:
    """In one partition and in two; the attempts that are repeated double none of them."""
    rows = spark.range(0, 3_000, 1, 2).selectExpr("'t' AS topic", "string(id % 7) AS payload")
    save(rows, address, namespace, "append", "foqs_faulty", faults=told(tmp_path, fail=[0, 1]), dedup="content")
    assert numbers(client, namespace) == Counter(number % 7 for number in range(3_000))


def test_a_host_killed_in_the_middle_of_the_job_loses_and_doubles_nothing(
    spark: Any, host: KillableHost, namespace: str, client: Client, tmp_path: Path
) -> None:
    """Both tasks are in the middle when the host is killed, with calls in flight."""

    def kill() -> None:
        try:
            until_true(lambda: len(list(tmp_path.glob("held-*"))) == 2)
            host.kill()
        finally:
            (tmp_path / "go").touch()

    killer = threading.Thread(target=kill, name="killer")
    killer.start()
    faults = told(tmp_path, hold=[0, 1])
    save(keyed(numbered(spark, ROWS)), host.address, namespace, "append", "foqs_faulty", faults=faults, dedup="key")
    killer.join()
    assert len(list(tmp_path.glob("held-*"))) == 2, "the host was killed while both tasks held"
    until_true(lambda: sum(stats.ready for stats in client.topics(namespace)) >= ROWS)
    assert numbers(client, namespace) == Counter(range(ROWS))


@pytest.mark.parametrize("dedup", ["key", "content"])
def test_a_stream_started_again_after_a_failed_commit_has_each_row_once(
    spark: Any, address: str, namespace: str, client: Client, tmp_path: Path, dedup: str
) -> None:
    """The micro-batch whose commit failed is written again from the checkpoint, with the same ids."""
    marks, source = tmp_path / "marks", tmp_path / "source"
    marks.mkdir()
    numbered(spark, STREAM_ROWS).write.parquet(str(source))
    rows = keyed(spark.readStream.schema("topic string, payload string").parquet(str(source)), dedup)

    def run() -> None:
        faults = told(marks, fail_commit=True)
        stream(rows, address, namespace, tmp_path, "foqs_faulty", dedup=dedup, faults=faults)

    with pytest.raises(StreamingQueryException, match="the commit fails once"):
        run()
    assert sum(stats.ready for stats in client.topics(namespace)) == STREAM_ROWS, "the rows were sent before it failed"
    run()
    assert len(list(marks.glob("begun-*"))) == 4, "the micro-batch was written twice"
    prepared, for_commit = (len(list(marks.glob(f"{kind}-*"))) for kind in ("prepared", "for-commit"))
    assert (prepared, for_commit >= 2) == (2, True), "the service is asked once for each micro-batch, and for no commit"
    assert numbers(client, namespace) == Counter(range(STREAM_ROWS))
    numbered(spark, STREAM_ROWS + 100).where(f"int(payload) >= {STREAM_ROWS}").write.mode("append").parquet(str(source))
    run()
    assert numbers(client, namespace) == Counter(range(STREAM_ROWS, STREAM_ROWS + 100))


@pytest.mark.parametrize("dedup", ["key", "content"])
def test_a_stream_started_again_with_other_partitions_is_exact_with_a_key_alone(
    spark: Any, address: str, namespace: str, client: Client, tmp_path: Path, dedup: str
) -> None:
    """The partition is part of ids of the content: the documents say so, and the driver's output."""
    marks, source = tmp_path / "marks", tmp_path / "source"
    marks.mkdir()
    numbered(spark, STREAM_ROWS).write.parquet(str(source))
    rows = keyed(spark.readStream.schema("topic string, payload string").parquet(str(source)), dedup)

    def run(partitions: int) -> None:
        faults, frame = told(marks, fail_commit=True), rows.repartition(partitions, "payload")
        stream(frame, address, namespace, tmp_path, "foqs_faulty", dedup=dedup, faults=faults)

    with pytest.raises(StreamingQueryException, match="the commit fails once"):
        run(2)
    run(3)
    counts = numbers(client, namespace)
    assert counts.keys() == set(range(STREAM_ROWS)), "none is lost"
    assert (set(counts.values()) == {1}) == (dedup == "key")


def test_a_stream_whose_rows_are_refused_fails_and_its_record_knows_why(
    spark: Any, address: str, namespace: str, tmp_path: Path
) -> None:
    numbered(spark, 10).write.parquet(str(tmp_path / "source"))
    rows = spark.readStream.schema("topic string, payload string").parquet(str(tmp_path / "source"))
    rows = rows.selectExpr("IF(payload = '3', NULL, topic) AS topic", "payload")
    with pytest.raises(StreamingQueryException, match="1 of 10 rows were refused, and onInvalidRow is fail"):
        stream(rows, address, namespace, tmp_path, dedup="content", jobId="stream")
    with AdminClient(address) as admin:
        assert "micro-batch 0: 1 of 10 rows were refused" in admin.get_job(namespace, "stream").detail


def test_a_stream_in_another_mode_than_append_is_refused(
    spark: Any, address: str, namespace: str, tmp_path: Path
) -> None:
    rows = spark.readStream.format("rate").load().selectExpr("string(value) AS payload").groupBy("payload").count()
    query = rows.selectExpr("payload").writeStream.format("foqs").outputMode("complete")
    query = query.options(addresses=address, namespace=namespace, dedup="none", topic="t")
    with pytest.raises(PySparkException, match="output modes complete and update are refused"):
        query.option("checkpointLocation", str(tmp_path)).start().processAllAvailable()
