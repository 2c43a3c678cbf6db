"""Rows of a frame become items, and items rows: what `make test` runs of Spark, in one session."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.types import StructType

from foqs import AdminClient, Client, DeliveryPolicy
from foqs.spark.rows import READ_SCHEMA
from tests.support.spark_rows import keyed, load, numbered, numbers, save

pytestmark = [pytest.mark.database]


def test_rows_arrive_each_once(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(numbered(spark, 12_000, partitions=3), address, namespace)
    counts = numbers(client, namespace)
    assert len(counts) == 12_000
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


def test_an_empty_frame_enqueues_nothing(spark: Any, address: str, namespace: str, client: Client) -> None:
    save(numbered(spark, 10).where("payload = 'none'"), address, namespace)
    assert not list(client.topics(namespace))


def test_a_job_that_is_run_again_with_its_keys_enqueues_nothing_twice(
    spark: Any, address: str, namespace: str, client: Client
) -> None:
    """The default is the key where there is the column; the second run has other partitions."""
    save(keyed(numbered(spark, 1_000)), address, namespace, dedup="key")
    save(keyed(numbered(spark, 1_500, 3)), address, namespace, dedup="key")
    assert numbers(client, namespace) == Counter(range(1_500))


@pytest.mark.parametrize(
    ("options", "columns", "told"),
    [
        ({"batchSize": "0"}, "topic, payload", "batchSize '0' is not a whole number within 1..1000"),
        ({"batchsise": "5"}, "topic, payload", "did you mean batchSize?"),
        ({"dedup": "key"}, "topic, payload", "key column 'dedup_id' is missing"),
        ({"spreadOverMs": "60001"}, "topic, payload", "spreadOverMs 60001 is more than the namespace"),
        ({"onInvalidRow": "sideOutput", "rejectedRowsPath": "/proc/no"}, "topic, payload", "'/proc/no' cannot be used"),
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
    with AdminClient(address) as admin:
        admin.update_namespace(namespace, delay_ms_max=60_000)
    with pytest.raises(PySparkException) as raised:
        save(frame, address, namespace, **options)
    assert told in str(raised.value)
    assert "Failed to initialize Python data source writer" in str(raised.value)
    assert not list(client.topics(namespace))


def test_items_of_every_state_are_rows_with_all_their_fields(
    spark: Any, address: str, namespace: str, states: dict[str, str]
) -> None:
    frame = load(spark, address, namespace)
    assert frame.schema == StructType.fromDDL(READ_SCHEMA)
    rows = {row.id: row for row in frame.collect()}
    assert rows.keys() == set(states.values())
    with AdminClient(address) as admin:
        for item_id, row in rows.items():
            stored = admin.get_item(namespace, item_id)
            assert (row.topic, row.state, row.priority) == (stored.topic, stored.state.name.lower(), stored.priority)
            assert (bytes(row.payload), bytes(row.metadata)) == (stored.payload, stored.metadata)
            assert (row.failed_attempts, row.death_reason) == (stored.failed_attempts, stored.death_reason)
            assert row.last_error == (stored.errors[0].reason if stored.errors else None)
            assert (row.delivery, row.trace_context) == (stored.delivery.name, stored.trace_context)
            assert round(row.enqueued_at.timestamp() * 1000) == stored.enqueued_at_ms
            assert round(row.deliver_after.timestamp() * 1000) == stored.deliver_after_ms
            assert (row.died_at is None, row.lease_expires_at is None) == (
                stored.died_at_ms is None,
                stored.lease_expires_at_ms is None,
            )
    assert rows[states["dead"]].died_at is not None
    assert rows[states["leased"]].lease_expires_at is not None


def test_a_read_can_be_narrowed_by_options(spark: Any, address: str, namespace: str, states: dict[str, str]) -> None:
    def ids(**options: str) -> set[str]:
        return {row.id for row in load(spark, address, namespace, **options).select("id").collect()}

    assert ids(state="dead") == {states["dead"]}
    assert ids(state="ready,leased", topics='["t"]') == {states["ready"], states["leased"]}
    assert ids(topics='["other", "none"]') == {states["other"]}
    assert ids(topicPrefix="oth") == {states["other"]}
    assert ids(topics='["none"]') == set()
