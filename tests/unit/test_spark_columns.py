"""From Arrow columns to items, without Spark."""

from __future__ import annotations

from datetime import UTC, datetime

import pyarrow as pa
import pytest

from foqs import DeliveryPolicy, NewItem
from foqs.model.errors import InvalidArgumentError
from foqs.spark.columns import COLUMNS, SCHEMA, check_columns, rows_of


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def test_the_columns_become_the_fields_of_the_items() -> None:
    rows = rows_of(
        batch(
            Topic=pa.array(["a", "b"]),
            payload=pa.array([b"1", b"2"]),
            priority=pa.array([3, None], pa.int16()),
            deliver_after=pa.array([datetime(2030, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            delay_ms=pa.array([None, 5], pa.int64()),
            ttl_ms=pa.array([7, None], pa.int32()),
            lease_ms=pa.array([8, None], pa.int32()),
            delivery=pa.array(["AT_MOST_ONCE", None]),
            metadata=pa.array([b"m", None]),
            ignored=pa.array([1, 2]),
        ),
        None,
    )
    assert rows.items == [
        NewItem("a", b"1", 3, 1_893_456_000_000, None, 7, 8, b"m", DeliveryPolicy.AT_MOST_ONCE),
        NewItem("b", b"2", 0, None, 5),
    ]
    assert list(rows.numbers) == [0, 1]
    assert not rows.refused


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_and_bytes_of_any_width_are_payloads(kind: pa.DataType) -> None:
    rows = rows_of(batch(payload=pa.array(["ä"], pa.string()).cast(pa.binary()).cast(kind)), "t")
    assert rows.items == [NewItem("t", "ä".encode())]


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_milliseconds_whatever_the_unit_and_the_zone(unit: str) -> None:
    times = pa.array([datetime(2030, 1, 1, tzinfo=UTC)], pa.timestamp(unit, "America/New_York"))
    rows = rows_of(batch(payload=pa.array([b"x"]), deliver_after=times), "t")
    assert rows.items[0].deliver_after_ms == 1_893_456_000_000


def test_rows_that_cannot_become_items_are_told_apart_and_the_others_keep_their_numbers() -> None:
    rows = rows_of(
        batch(
            topic=pa.array(["a", None, "c", "d"]),
            payload=pa.array([b"1", b"2", None, b"4"]),
            delivery=pa.array([None, None, None, "twice"]),
        ),
        None,
    )
    assert [item.payload for item in rows.items] == [b"1"]
    assert rows.numbers == [0]
    assert [number for number, _ in rows.refused] == [1, 2, 3]
    assert [reason.partition(" is ")[0] for _, reason in rows.refused] == ["topic", "payload", "delivery 'twice'"]


def test_a_topic_given_by_option_needs_no_column_and_wins_over_one() -> None:
    rows = rows_of(batch(topic=pa.array([None, "x"], pa.string()), payload=pa.array([b"1", b"2"])), "t")
    assert [item.topic for item in rows.items] == ["t", "t"]


def test_a_batch_without_rows_has_no_items() -> None:
    assert rows_of(batch(payload=pa.array([], pa.binary())), "t").items == []


def test_all_that_is_wrong_with_the_columns_is_told_at_once() -> None:
    columns = [
        ("payload", "int"),
        ("PRIORITY", "string"),
        ("colour", "string"),
        ("Topic", "string"),
        ("topic", "string"),
    ]
    with pytest.raises(InvalidArgumentError) as raised:
        check_columns(columns, topic_given=False, ignores_extra=False)
    message = raised.value.message
    assert "'payload' is of type int, not binary or string" in message
    assert "'PRIORITY' is of type string" in message
    assert "unknown column 'colour'" in message
    assert "column 'topic' is there twice" in message


def test_extra_columns_are_left_out_when_asked_for() -> None:
    check_columns([("payload", "binary"), ("colour", "string")], topic_given=True, ignores_extra=True)


def test_the_schema_of_views_has_a_type_that_each_column_may_have() -> None:
    types = dict(column.split() for column in SCHEMA.split(", "))
    assert list(types) == list(COLUMNS)
    check_columns(list(types.items()), topic_given=False, ignores_extra=False)
