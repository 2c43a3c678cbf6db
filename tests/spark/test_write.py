"""`df.write.format("foqs")` in a real session, against a real host."""

from __future__ import annotations

import re
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from foqs import AdminClient, Client, DedupWhenAway, JobState
from loadtest.spark.faulty import told
from tests.support.spark_rows import drained, numbered, save

ROOT = Path(__file__).parents[2]
pytestmark = [pytest.mark.database]


def test_a_timestamp_column_delays(spark: Any, address: str, namespace: str, client: Client) -> None:
    due = datetime.now(UTC) + timedelta(hours=1)
    rows = spark.createDataFrame([(b"x", due)], "payload binary, deliver_after timestamp")
    save(rows, address, namespace, topic="later")
    [stats] = client.topics(namespace)
    assert (stats.topic, stats.ready, stats.delayed) == ("later", 0, 1)


def test_the_option_topic_wins_over_the_column(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(numbered(spark, 10), address, namespace, topic="one")
    assert [(stats.topic, stats.ready) for stats in client.topics(namespace)] == [("one", 10)]


def test_insert_into_a_view_enqueues(spark: Any, address: str, namespace: str, client: Client) -> None:
    spark.sql(
        f"CREATE OR REPLACE TEMPORARY VIEW queue USING foqs "
        f"OPTIONS (addresses '{address}', namespace '{namespace}', dedup 'none')"
    )
    spark.sql("INSERT INTO queue (topic, payload) SELECT 'sql', CAST(string(id) AS BINARY) FROM range(3)")
    assert sorted(item.payload for item in drained(client, namespace)) == [b"0", b"1", b"2"]


def test_a_worker_killed_after_sending_doubles_its_rows_where_no_dedup_was_asked_for(
    spark: Any, address: str, namespace: str, client: Client, tmp_path: Path
) -> None:
    """Without it no test here would show that ids do anything."""
    save(numbered(spark, 4_000), address, namespace, "append", "foqs_faulty", faults=told(tmp_path, kill_worker=[1]))
    counts = Counter(int(item.payload) for item in drained(client, namespace))
    assert len(counts) == 4_000
    assert {number for number, times in counts.items() if times == 2} == set(range(2_000, 4_000))


def test_the_recipe_for_spark_3_5_enqueues_each_key_once(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    """As it stands in the documents, and twice, as when Spark repeats its tasks."""
    text = (ROOT / "docs/spark.md").read_text()
    recipe = re.search(r"^## Spark 3.5$.*?^```python$(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert recipe is not None
    code = recipe[1].replace("queue-1:7600", address).replace('"shop"', repr(namespace))
    rows = numbered(spark, 1_000).selectExpr("topic", "CAST(payload AS BINARY) AS payload", "payload AS order_id")
    for _ in range(2):
        exec(code, {"orders": rows})
    assert Counter(int(item.payload) for item in drained(client, namespace)) == Counter(range(1_000))


# ---- more than columns ----


def test_other_columns_become_json_and_items_are_spread_over_time(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    rows = spark.range(200).selectExpr("id", "id % 2 = 0 AS even", "named_struct('x', id) AS nested", "NULL AS absent")
    rows = rows.selectExpr("id", "even", "nested", "CAST(absent AS STRING) AS absent")
    hour_ms = "3600000"
    save(rows, address, namespace, topic="json", payloadFormat="json", spreadOverMs=hour_ms)
    [stats] = client.topics(namespace)
    assert stats.ready <= 2
    assert stats.ready + stats.delayed == 200


def test_a_payload_of_json_is_the_same_that_spark_itself_makes(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    columns = (
        "id",
        "id % 2 = 0 AS even",
        "named_struct('x', id, 'y', array('a')) AS nested",
        "IF(id = 1, 'ä', NULL) AS s",
    )
    rows = spark.range(3).selectExpr(
        *columns, "TIMESTAMP '2030-01-01 00:00:00 UTC' AS due", "CAST('a' AS BINARY) AS raw"
    )
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    expected = [row.json for row in rows.selectExpr("to_json(struct(*)) AS json").collect()]
    save(rows, address, namespace, topic="json", payloadFormat="json")
    assert sorted(item.payload.decode() for item in drained(client, namespace)) == sorted(expected)


def test_the_jobs_record_tells_rate_rows_and_end(spark: Any, address: str, namespace: str, client: Client) -> None:
    began_s = time.monotonic()
    save(numbered(spark, 300), address, namespace, jobId="nightly", maxItemsPerSecond="200")
    assert time.monotonic() - began_s > 1.0, "300 items at 200 a second"
    with AdminClient(address) as admin:
        job = admin.get_job(namespace, "nightly")
    assert (job.state, job.items_count, job.rows_count, job.items_per_second_max) == (JobState.SUCCEEDED, 300, 300, 200)
    assert "300 items of 300 rows enqueued" in job.detail


def test_the_next_load_under_the_id_of_one_that_succeeded_is_refused_and_loses_no_row_unnoticed(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    """Ids of the content are made of it: rows that are equal to those of the first load would count as repeats."""
    save(numbered(spark, 100), address, namespace, dedup="content", jobId="daily-1")
    assert len(list(drained(client, namespace))) == 100
    with pytest.raises(PySparkException, match=r"job 'daily-1' of namespace .* has succeeded"):
        save(numbered(spark, 100), address, namespace, dedup="content", jobId="daily-1")
    save(numbered(spark, 100), address, namespace, dedup="content", jobId="daily-2")
    assert len(list(drained(client, namespace))) == 100


def test_a_load_that_failed_is_written_again_under_its_id_and_its_rows_come_once(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    with pytest.raises(PySparkException, match="rows were refused"):
        save(with_bad_rows(spark), address, namespace, dedup="content", jobId="daily", batchSize="10")
    save(numbered(spark, 2_000), address, namespace, dedup="content", jobId="daily")
    assert Counter(int(item.payload) for item in drained(client, namespace)) == Counter(range(2_000))
    with AdminClient(address) as admin:
        assert [(job.id, job.rows_count) for job in admin.list_jobs(namespace).jobs] == [("daily", 2_000)]


# ---- what is wrong is one clear error, and no task starts ----


def test_a_window_that_is_shorter_than_the_patience_of_a_call_is_told_or_refused(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    with AdminClient(address) as admin:
        admin.update_namespace(namespace, dedup_ms=60_000)
    rows = numbered(spark, 10)
    with pytest.raises(PySparkException, match="are remembered for 60 s, and retryTimeoutMs is 600 s"):
        save(rows, address, namespace, dedup="content", onShortWindow="fail")
    assert not list(client.topics(namespace))
    save(rows, address, namespace, dedup="content", onShortWindow="warn")
    save(rows, address, namespace, dedup="content", onShortWindow="fail", retryTimeoutMs="60000")


def test_what_weakens_the_promise_is_told_in_the_record(spark: Any, address: str, namespace: str) -> None:
    with AdminClient(address) as admin:
        admin.update_namespace(namespace, dedup_ms=60_000, dedup_when_away=DedupWhenAway.ACCEPT)
        save(numbered(spark, 10), address, namespace, dedup="content", jobId="weak")
        save(numbered(spark, 10), address, namespace, dedup="none", jobId="none")
        weak, none = (admin.get_job(namespace, job).detail for job in ("weak", "none"))
    assert "; warning: dedup ids of namespace" in weak
    assert "is ACCEPT: a row that is repeated while the shard of its id is away may be enqueued twice" in weak
    assert none == "10 items of 10 rows enqueued"


@pytest.mark.parametrize("then", ["warn", "fail"])
def test_a_job_that_outlasts_the_window_of_its_ids_is_told_or_fails(
    spark: Any, address: str, namespace: str, client: Client, then: str
) -> None:
    """The namespace remembers the last 1,000 ids: those of the first rows are forgotten when the last ones are sent."""
    with AdminClient(address) as admin:
        admin.update_namespace(namespace, dedup_ids=1_000)
        rows = numbered(spark, 20_000).selectExpr("*", "payload AS dedup_id")
        if then == "warn":
            save(rows, address, namespace, dedup="key", jobId="long", onShortWindow=then)
        else:
            with pytest.raises(PySparkException, match=r"are remembered for \d+ s, and the job took \d+ s"):
                save(rows, address, namespace, dedup="key", jobId="long", onShortWindow=then)
        job = admin.get_job(namespace, "long")
    assert job.state is (JobState.SUCCEEDED if then == "warn" else JobState.FAILED)
    assert "a row that is repeated later may be enqueued twice; raise dedup_ids" in job.detail
    assert sum(stats.ready for stats in client.topics(namespace)) == 20_000


def test_overwrite_is_refused_with_a_reason(spark: Any, address: str, namespace: str) -> None:
    with pytest.raises(PySparkException, match="mode overwrite is refused: it would have to delete"):
        save(numbered(spark, 10), address, namespace, "overwrite")


def test_a_queue_as_the_source_of_a_stream_is_refused_with_a_reason(spark: Any) -> None:
    with pytest.raises(PySparkException, match="a queue is no source of a stream: it has no offsets"):
        spark.readStream.format("foqs").load().writeStream.format("noop").start().processAllAvailable()


# ---- rows that the service refuses ----


def with_bad_rows(spark: Any) -> Any:
    """Of 2,000 rows one is too large, one has no topic, and one has a topic with a control character."""
    return numbered(spark, 2_000).selectExpr(
        "CASE payload WHEN '3' THEN NULL WHEN '4' THEN 'a\\n' ELSE topic END AS topic",
        "CASE payload WHEN '1500' THEN repeat('x', 20000) ELSE payload END AS payload",
    )


def test_refused_rows_fail_the_job_with_their_reasons(spark: Any, address: str, namespace: str) -> None:
    with pytest.raises(PySparkException) as raised:
        save(with_bad_rows(spark), address, namespace, onInvalidRow="skip", maxInvalidRows="2", jobId="bad")
    assert "3 of 2000 rows were refused, maxInvalidRows is 2" in str(raised.value)
    assert "payload of 20000 bytes is over the limit of 10240" in str(raised.value)
    assert "topic is null" in str(raised.value)
    with AdminClient(address) as admin:
        job = admin.get_job(namespace, "bad")
    assert job.state is JobState.FAILED
    assert "3 of 2000 rows were refused, maxInvalidRows is 2" in job.detail


def test_one_refused_row_fails_the_job_where_nothing_else_is_said(spark: Any, address: str, namespace: str) -> None:
    with pytest.raises(PySparkException, match=r"of \d+ rows were refused, and onInvalidRow is fail"):
        save(with_bad_rows(spark), address, namespace)


def test_refused_rows_within_the_bound_are_left_out(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(with_bad_rows(spark), address, namespace, onInvalidRow="skip", maxInvalidRows="3")
    numbers = {int(item.payload) for item in drained(client, namespace)}
    assert numbers == set(range(2_000)) - {3, 4, 1_500}


def test_rejected_rows_go_to_the_side_output_and_can_be_read_and_mended(
    spark: Any, address: str, namespace: str, client: Client, tmp_path: Path
) -> None:
    """The attempt that was killed has left a file too; it does not count."""
    path, marks = tmp_path / "rejected", tmp_path / "marks"
    marks.mkdir()
    side = {"onInvalidRow": "sideOutput", "rejectedRowsPath": path.as_uri(), "jobId": "side", "dedup": "content"}
    save(with_bad_rows(spark), address, namespace, "append", "foqs_faulty", faults=told(marks, kill_worker=[1]), **side)
    rejected = spark.read.parquet(str(path))
    assert sorted((row.payload[:4], row.foqs_reason.split()[0]) for row in rejected.collect()) == [
        ("3", "topic"),
        ("4", "topic"),
        ("xxxx", "payload"),
    ]
    names = sorted(file.name for file in path.iterdir())
    assert [re.sub(r"-\d{13}-", "-BEGIN-", name) for name in names] == [
        "side-BEGIN-00000.parquet",
        "side-BEGIN-00001.parquet",
    ]
    assert len(list(drained(client, namespace))) == 1_997
    mended = rejected.selectExpr("'mended' AS topic", "left(payload, 10) AS payload")
    save(mended, address, namespace)
    assert [item.topic for item in drained(client, namespace)] == ["mended"] * 3


def test_a_load_that_is_run_again_leaves_the_rejected_rows_of_the_run_before(
    spark: Any, address: str, namespace: str, tmp_path: Path
) -> None:
    side = {"onInvalidRow": "sideOutput", "rejectedRowsPath": str(tmp_path), "jobId": "side", "maxInvalidRows": "1"}
    with pytest.raises(PySparkException, match="rows were refused, maxInvalidRows is 1"):
        save(with_bad_rows(spark), address, namespace, **side)
    first = sorted(row.foqs_reason for row in spark.read.parquet(str(tmp_path)).collect())
    assert first
    again = with_bad_rows(spark).where("topic IS NULL")
    save(again, address, namespace, **side)
    both = sorted(row.foqs_reason for row in spark.read.parquet(str(tmp_path)).collect())
    assert both == sorted([*first, "topic is null"])
