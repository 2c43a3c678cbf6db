"""`df.write.format("foqs")` in a real session, against a real host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from foqs import Client, DeliveryPolicy
from foqs.client.items import Item
from foqs.client.sync import AdminClient
from foqs.model.errors import InvalidArgumentError
from foqs.spark.source import FoqsDataSource
from tests.support.dying_source import DyingSource

pytestmark = [pytest.mark.database, pytest.mark.slow, pytest.mark.timeout(300)]


def save(frame: Any, address: str, namespace: str, mode: str = "append", kind: str = "foqs", /, **options: str) -> None:
    required = {"addresses": address, "namespace": namespace, "dedup": "none"}
    frame.write.format(kind).options(**required | options).mode(mode).save()


def drained(client: Client, namespace: str) -> Iterator[Item]:
    """All ready items, acked."""
    while topics := [stats.topic for stats in client.topics(namespace) if stats.ready]:
        items = client.dequeue(namespace, topics, 1_000)
        assert not client.ack(namespace, items)
        yield from items


def numbered(spark: Any, count: int, partitions: int = 2) -> Any:
    """Rows whose payload is their number."""
    return spark.range(0, count, 1, partitions).selectExpr("concat('t', id % 10) AS topic", "string(id) AS payload")


def test_50_000_rows_arrive_each_once(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(numbered(spark, 50_000, partitions=3), address, namespace)
    counts = Counter(int(item.payload) for item in drained(client, namespace))
    assert len(counts) == 50_000
    assert set(counts.values()) == {1}


def test_each_column_becomes_a_field_of_the_item(spark: Any, address: str, namespace: str, client: Client) -> None:
    rows = spark.sql(
        "SELECT 'Mail' AS topic, CAST('p' AS BINARY) AS payload, 7Y AS priority, 3600000L AS ttl_ms, 5000 AS lease_ms, "
        "'at_most_once' AS delivery, 'm' AS metadata, CAST(NULL AS BIGINT) AS delay_ms, "
        "TIMESTAMP '2001-02-03 04:05:06.789 UTC' AS deliver_after"
    )
    save(rows, address, namespace)
    with AdminClient(address) as admin:
        [stored] = admin.peek_items(namespace, "Mail").items
    assert (stored.payload, stored.metadata, stored.priority, stored.lease_ms) == (b"p", b"m", 7, 5_000)
    assert stored.delivery is DeliveryPolicy.AT_MOST_ONCE
    assert stored.expires_at_ms - stored.deliver_after_ms == 3_600_000


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


def test_an_empty_frame_enqueues_nothing(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(numbered(spark, 10).where("payload = 'none'"), address, namespace)
    assert not list(client.topics(namespace))


# ---- a worker that dies ----


def test_a_worker_killed_after_sending_loses_no_row_and_doubles_only_its_own(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    spark.dataSource.register(DyingSource)
    save(numbered(spark, 4_000), address, namespace, "append", "foqs_dying")
    counts = Counter(int(item.payload) for item in drained(client, namespace))
    assert len(counts) == 4_000
    assert {number for number, times in counts.items() if times == 2} == set(range(2_000, 4_000))


# ---- what is wrong is one clear error, and no task starts ----


@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        ({"batchSize": "0"}, "topic, payload", "batchSize '0' is not a whole number within 1..1000"),
        ({"batchsise": "5"}, "topic, payload", "did you mean batchSize?"),
        ({"dedup": "key"}, "topic, payload", "dedup=key is not supported yet"),
        ({"addresses": "127.0.0.1:1"}, "topic, payload", "no host of addresses=127.0.0.1:1 answers"),
        ({"namespace": "nowhere"}, "topic, payload", "namespace 'nowhere' does not exist"),
        ({}, "topic", "column 'payload' is missing"),
        ({}, "payload", "column 'topic' is missing, and no option topic is set"),
        ({}, "topic, payload, 1 AS color", "unknown column 'color'"),
        ({}, "topic, payload, '1' AS priority", "column 'priority' is of type string, not tinyint or smallint"),
        ({}, "topic, payload, TIMESTAMP_NTZ '2030-01-01' AS deliver_after", "cast it to timestamp"),
    ],
)
def test_a_wrong_option_or_column_is_one_error_before_a_task_starts(
    spark: Any, address: str, namespace: str, client: Client, options: dict[str, str], columns: str, told: str
) -> None:
    frame = numbered(spark, 10).selectExpr(*columns.split(", "))
    with pytest.raises(PySparkException) as raised:
        save(frame, address, namespace, **options)
    assert told in str(raised.value)
    assert "Failed to initialize Python data source writer" in str(raised.value)
    assert not list(client.topics(namespace))


def test_overwrite_is_refused_with_a_reason(spark: Any, address: str, namespace: str) -> None:
    with pytest.raises(PySparkException, match="mode overwrite is refused: it would have to delete"):
        save(numbered(spark, 10), address, namespace, "overwrite")


def test_reading_and_streaming_say_that_they_are_not_there(spark: Any, address: str) -> None:
    with pytest.raises(PySparkException, match="reading with format foqs is not supported yet"):
        spark.read.format("foqs").load().collect()
    with pytest.raises(InvalidArgumentError, match="write each batch with foreachBatch"):
        FoqsDataSource({}).streamWriter(StructType(), overwrite=False)


# ---- rows that the service refuses ----


def with_bad_rows(spark: Any) -> Any:
    """Of 2,000 rows one is too large, one has no topic, and one has a topic with a control character."""
    return numbered(spark, 2_000).selectExpr(
        "CASE payload WHEN '3' THEN NULL WHEN '4' THEN 'a\\n' ELSE topic END AS topic",
        "CASE payload WHEN '1500' THEN repeat('x', 20000) ELSE payload END AS payload",
    )


def test_refused_rows_fail_the_job_with_their_reasons(spark: Any, address: str, namespace: str) -> None:
    with pytest.raises(PySparkException) as raised:
        save(with_bad_rows(spark), address, namespace, maxInvalidRows="2")
    assert "3 of 2000 rows were refused, maxInvalidRows is 2" in str(raised.value)
    assert "payload of 20000 bytes is over the limit of 10240" in str(raised.value)
    assert "topic is null" in str(raised.value)


def test_refused_rows_within_the_bound_are_left_out(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(with_bad_rows(spark), address, namespace, maxInvalidRows="3")
    numbers = {int(item.payload) for item in drained(client, namespace)}
    assert numbers == set(range(2_000)) - {3, 4, 1_500}
