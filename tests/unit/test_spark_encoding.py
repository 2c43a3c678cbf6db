"""From Arrow columns to encoded items, without Spark; the oracle is the contract's own codec."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs import DedupUntil, DeliveryPolicy, NewItem
from foqs.client.encoded import EncodedItems
from foqs.spark import json_numbers, json_times
from foqs.spark.dedup_ids import ContentIds
from foqs.spark.encoding import EncodedRows, RowEncoder, Spread
from foqs.spark.json_payload import JsonPayload
from foqs.wire import codec as wire

FIELDS = [spec[1] for spec in wire.structs.NewItem.thrift_spec.values()]


def batch(**columns: pa.Array) -> pa.RecordBatch:
    return pa.record_batch(columns)


def decoded(items: EncodedItems) -> list[dict[str, Any]]:
    """What a host reads of calls with these items: the fields that are set."""
    return [item for _, part in items.batches(1_000, 1 << 20) for item in read_by_host(part)]


def read_by_host(items: EncodedItems) -> list[dict[str, Any]]:
    codec = wire.Codec()
    request = wire.structs.EnqueueRequest(namespace_name="jobs", bulk=True)
    frame = codec.join_call("enqueue", request, len(items), items.parts(), 1)
    method, seqid, read, count = codec.decode_call(frame[wire.LENGTH_BYTES :])
    assert (method.name, seqid, read.namespace_name, read.bulk, count) == ("enqueue", 1, "jobs", True, len(items))
    return [{name: value for name in FIELDS if (value := getattr(item, name)) is not None} for item in read.items]


def told(*items: NewItem) -> list[dict[str, Any]]:
    """The same for items that the codec encodes."""
    codec = wire.Codec()
    request = wire.structs.EnqueueRequest(namespace_name="jobs", items=items)
    read = codec.decode_call(codec.encode_call("enqueue", request, 1)[wire.LENGTH_BYTES :])[2]
    return [{name: value for name in FIELDS if (value := getattr(item, name)) is not None} for item in read.items]


def encoded(rows: pa.RecordBatch, **how: Any) -> EncodedRows:
    return RowEncoder(**how).encode(rows)


def test_the_columns_become_the_fields_of_the_items() -> None:
    rows = encoded(
        batch(
            Topic=pa.array(["a", "b"]),
            payload=pa.array([b"1", b"2"]),
            priority=pa.array([3, None], pa.int16()),
            deliver_after=pa.array([datetime(2030, 1, 1, tzinfo=UTC), None], pa.timestamp("us", "UTC")),
            delay_ms=pa.array([None, 5], pa.int64()),
            ttl_ms=pa.array([7, None], pa.int32()),
            lease_ms=pa.array([8, None], pa.int32()),
            delivery=pa.array(["at_most_once", None]),
            metadata=pa.array([b"m", None]),
            trace_context=pa.array([None, "00-x"]),
            key=pa.array(["k", "ü"]),
            ignored=pa.array([1, 2]),
        ),
        key_column="KEY",
    )
    assert decoded(rows.items) == told(
        NewItem("a", b"1", 3, 1_893_456_000_000, None, 7, 8, b"m", DeliveryPolicy.AT_MOST_ONCE, "k"),
        NewItem("b", b"2", 0, None, 5, dedup_id="ü", trace_context="00-x"),
    )
    assert list(rows.numbers) == [0, 1]
    assert not rows.refused


def test_keys_are_taken_as_long_as_the_items_live_if_the_option_says_so() -> None:
    rows = batch(payload=pa.array([b"1", b"2"]), key=pa.array([7, 8]))
    made = encoded(rows, topic="t", key_column="key", dedup_until=DedupUntil.ACKED)
    items = [NewItem("t", b"%d" % at, dedup_id=f"{at + 6}", dedup_until=DedupUntil.ACKED) for at in (1, 2)]
    assert decoded(made.items) == told(*items)


texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.none() | st.integers(0, 2**62)


@given(
    st.lists(
        st.tuples(
            texts,
            st.binary(max_size=30),
            st.integers(-(2**31), 2**31 - 1) | st.none(),
            whole,
            whole,
            st.none() | st.binary(max_size=5),
            st.integers(-(2**63), 2**63 - 1),
        ),
        min_size=1,
        max_size=20,
    ),
    st.data(),
)
def test_any_rows_say_to_a_host_what_the_same_items_of_a_client_say(rows: list[Any], data: st.DataObject) -> None:
    """A slice of a larger batch too, whose buffers do not begin at its first row."""
    topics, payloads, priorities, delays, ttls, metadata, keys = (list(column) for column in zip(*rows, strict=True))
    whole_batch = batch(
        topic=pa.array(topics, pa.string()),
        payload=pa.array(payloads, pa.binary()),
        priority=pa.array(priorities, pa.int32()),
        delay_ms=pa.array(delays, pa.int64()),
        ttl_ms=pa.array(ttls, pa.int64()),
        metadata=pa.array(metadata, pa.binary()),
        dedup_id=pa.array(keys, pa.int64()),
    )
    first = data.draw(st.integers(0, len(rows) - 1))
    made = encoded(whole_batch.slice(first), key_column="dedup_id")
    items = [
        NewItem(topic, payload, priority or 0, None, delay, ttl, None, about, None, str(key))
        for topic, payload, priority, delay, ttl, about, key in rows[first:]
    ]
    assert decoded(made.items) == told(*items)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary()])
def test_text_and_bytes_of_any_width_are_payloads(kind: pa.DataType) -> None:
    rows = encoded(batch(payload=pa.array(["ä"], pa.string()).cast(pa.binary()).cast(kind)), topic="t")
    assert decoded(rows.items) == told(NewItem("t", "ä".encode()))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_times_are_milliseconds_whatever_the_unit_and_the_zone(unit: str) -> None:
    times = pa.array([datetime(2030, 1, 1, tzinfo=UTC)], pa.timestamp(unit, "America/New_York"))
    rows = encoded(batch(payload=pa.array([b"x"]), deliver_after=times), topic="t")
    assert decoded(rows.items)[0]["deliver_after_ms"] == 1_893_456_000_000


def not_utf8(*values: bytes) -> pa.Array:
    """Text as Spark may have it: its strings are bytes that nobody has checked."""
    return pa.Array.from_buffers(pa.string(), len(values), pa.array(values, pa.binary()).buffers())


def test_rows_that_cannot_become_items_are_told_apart_and_the_others_keep_their_numbers() -> None:
    rows = encoded(
        batch(
            topic=pa.array(["a", None, "c", "d", "e", "f", "g", "h"]),
            payload=pa.array([b"1", b"2", None, b"4", b"5", b"6", b"7", b"8"]),
            delivery=pa.array([None, None, None, "twice", None, None, None, None]),
            priority=pa.array([0, 0, 0, 0, 2**31, 0, 0, 0], pa.int64()),
            dedup_id=pa.array(["k", "k", "k", "k", "k", None, "", "k" * 256]),
        ),
        key_column="dedup_id",
    )
    assert [item["payload"] for item in decoded(rows.items)] == [b"1"]
    assert rows.numbers == [0]
    assert [number for number, _ in rows.refused] == [1, 2, 3, 4, 5, 6, 7]
    assert [reason for _, reason in rows.refused] == [
        "topic is null",
        "payload is null",
        "delivery 'twice' is not one of AT_LEAST_ONCE, AT_MOST_ONCE",
        "priority 2147483648 is not within -2147483648..2147483647",
        "dedup_id is null, and dedup=key needs it",
        "dedup_id makes an id of 0 bytes; it has 1 to 255",
        "dedup_id makes an id of 256 bytes; it has 1 to 255",
    ]


def test_text_that_is_not_utf8_refuses_its_row_alone() -> None:
    """One of them in a call would make the host refuse the whole call."""
    rows = encoded(
        batch(
            topic=not_utf8(b"a", b"\xff", b"c", b"d"),
            payload=pa.array([b"1", b"2", b"3", b"4"]),
            trace_context=not_utf8(b"a", b"b", b"\xff", b"d"),
            dedup_id=not_utf8(b"a", b"b", b"c", b"\xff"),
        ),
        key_column="dedup_id",
    )
    assert [reason for _, reason in rows.refused] == [
        "topic is not UTF-8",
        "trace_context is not UTF-8",
        "dedup_id b'\\xff' is not UTF-8",
    ]
    assert [item["payload"] for item in decoded(rows.items)] == [b"1"]


def test_a_topic_given_by_option_needs_no_column_and_wins_over_one() -> None:
    rows = encoded(batch(topic=pa.array([None, "x"], pa.string()), payload=pa.array([b"1", b"2"])), topic="t")
    assert [item["topic"] for item in decoded(rows.items)] == ["t", "t"]


def test_a_batch_without_rows_and_one_whose_rows_are_all_refused_have_no_items() -> None:
    assert len(encoded(batch(payload=pa.array([], pa.binary())), topic="t").items) == 0
    nulls = encoded(batch(payload=pa.array([None, None], pa.binary())), topic="t", content_ids=ContentIds("j", 0))
    assert len(nulls.items) == 0
    assert len(nulls.refused) == 2


# ---- ids of keys ----


@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array(["a", "B", "ä"]), ["a", "B", "ä"]),
        (pa.array([1, -2, 2**40], pa.int64()), ["1", "-2", "1099511627776"]),
        (pa.array([0, 7], pa.int8()), ["0", "7"]),
        (pa.array([b"\x00\xff", b"A"]), ["00ff", "41"]),
        (pa.array([b"\x00\xff", b"A"], pa.large_binary()), ["00ff", "41"]),
        (pa.array(["a"], pa.large_string()), ["a"]),
    ],
)
def test_keys_of_each_type_become_text(column: pa.Array, ids: list[str]) -> None:
    rows = encoded(batch(payload=pa.array([b"x"] * len(column)), key=column), topic="t", key_column="key")
    assert [item["dedup_id"] for item in decoded(rows.items)] == ids
    assert [text.decode() for text in rows.ids.to_pylist()] == ids


# ---- times spread ----


def spread_times(ids: Callable[[int], str] | None, count: int = 4_000) -> list[int]:
    columns = {"payload": pa.array([b"x"] * count)}
    if ids is not None:
        columns["dedup_id"] = pa.array([ids(number) for number in range(count)])
    encoder = RowEncoder(
        topic="t", key_column="dedup_id" if ids else None, spread=Spread(over_ms=1_000, begin_ms=5_000)
    )
    return [item["deliver_after_ms"] for item in decoded(encoder.encode(batch(**columns)).items)]


@pytest.mark.parametrize("ids", [None, lambda number: f"order-{number}"])
def test_items_are_spread_evenly_over_the_time_and_a_repeat_gets_the_same_time(ids: Any) -> None:
    times = spread_times(ids)
    assert times == spread_times(ids)
    assert min(times) >= 5_000
    assert max(times) < 6_000
    tenths = [sum(5_000 + 100 * n <= time < 5_100 + 100 * n for time in times) for n in range(10)]
    assert all(300 < count < 500 for count in tenths), tenths


def test_rows_with_a_time_of_their_own_are_spread_from_there() -> None:
    due = datetime(2030, 1, 1, tzinfo=UTC)
    rows = encoded(
        batch(
            payload=pa.array([b"x"] * 3),
            deliver_after=pa.array([due, None, None], pa.timestamp("us", "UTC")),
            delay_ms=pa.array([None, 10_000, None], pa.int64()),
        ),
        topic="t",
        spread=Spread(over_ms=1_000, begin_ms=5_000),
    )
    first, second, third = decoded(rows.items)
    assert 0 <= first["deliver_after_ms"] - 1_893_456_000_000 < 1_000
    assert 10_000 <= second["delay_ms"] < 11_000
    assert "deliver_after_ms" not in second
    assert 5_000 <= third["deliver_after_ms"] < 6_000


def test_a_spread_does_not_change_ids_of_the_content() -> None:
    """The begin of the job is another one when it is started again with its id."""
    rows = batch(payload=pa.array([b"x", b"y"]))

    def ids(begin_ms: int) -> list[str]:
        spread = Spread(over_ms=1_000, begin_ms=begin_ms)
        return encoded(rows, topic="t", content_ids=ContentIds("j", 0), spread=spread).ids.to_pylist()

    assert ids(5_000) == ids(9_000)


# ---- JSON payloads ----


def test_columns_become_an_object_of_json_as_sparks_own_to_json_makes_it() -> None:
    rows = batch(
        topic=pa.array(["t", "t"]),
        id=pa.array([1, 2]),
        name=pa.array(["ä", None]),
        due=pa.array([datetime(2030, 1, 1, 12, tzinfo=UTC), None], pa.timestamp("us", "Europe/Berlin")),
        wall=pa.array([datetime(2030, 1, 1, 12), None], pa.timestamp("us")),
        day=pa.array([date(2030, 1, 2), None]),
        price=pa.array([Decimal("1.10"), None], pa.decimal128(10, 2)),
        raw=pa.array([b"\x00\x01", None]),
        rush=pa.array([True, None]),
        ratio=pa.array([0.5, None]),
        tags=pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())),
        parts=pa.array([[{"n": 1, "x": None}], None], pa.list_(pa.struct([("n", pa.int64()), ("x", pa.string())]))),
    )
    names = [name for name in rows.schema.names if name != "topic"]
    made = encoded(rows, json_payload=JsonPayload(names, is_whole=False))
    first, second = (json.loads(item["payload"]) for item in decoded(made.items))
    assert first == {
        "id": 1,
        "name": "ä",
        "due": "2030-01-01T12:00:00.000Z",
        "wall": "2030-01-01T12:00:00.000",
        "day": "2030-01-02",
        "price": 1.1,
        "raw": "AAE=",
        "rush": True,
        "ratio": 0.5,
        "tags": {"a": 1},
        "parts": [{"n": 1}],
    }
    assert second == {"id": 2}


@pytest.mark.parametrize(
    ("times", "text"),
    [
        (pa.array([9_000_000_000_000_000_000], pa.timestamp("us", "America/New_York")), "+287168-08-24T16:00:00.000Z"),
        (pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC")), "0000-12-31T23:59:59.999Z"),
        (pa.array([253_402_300_800_000_000], pa.timestamp("us")), "+10000-01-01T00:00:00.000"),
        (pa.array([4_000_000], pa.date32()), "+12921-08-18"),
        (pa.array([-719_529], pa.date32()), "-0001-12-31"),
        (pa.array([45_296_789_000_000], pa.time64("ns")), "12:34:56.789"),
    ],
)
@pytest.mark.parametrize("is_nested", [False, True])
def test_times_of_all_years_are_told(times: pa.Array, text: str, is_nested: bool) -> None:
    if is_nested:
        times = pa.StructArray.from_arrays([times], ["at"])
    made = encoded(batch(due=times), topic="t", json_payload=JsonPayload(["due"], is_whole=False))
    (told,) = (json.loads(item["payload"])["due"] for item in decoded(made.items))
    assert told == ({"at": text} if is_nested else text)


@given(days=st.integers(-719_162, 2_932_896))
def test_dates_are_those_of_python_where_it_has_them(days: int) -> None:
    assert json_times.date_text(days) == f'"{date.fromordinal(days + 719_163).isoformat()}"'


@given(value=st.floats())
def test_a_double_is_told_with_a_point_and_comes_back_as_it_was(value: float) -> None:
    text = json_numbers.double_text(value)
    assert "." in text or text.startswith('"')
    assert json.loads(text, parse_float=float) == value or float(json.loads(text)) == value or value != value


@given(value=st.floats(width=32))
def test_a_float_is_told_with_no_more_digits_than_it_needs(value: float) -> None:
    text = json_numbers.float_text(value).strip('"')
    assert value != value or struct.pack("f", float(text)) == struct.pack("f", value)
    assert len(text.partition("E")[0].replace("-", "").replace(".", "").strip("0")) <= 9 or text.endswith("y")


def test_text_that_is_no_utf_8_refuses_its_row_alone() -> None:
    names = pa.array([b"a", b"\xff", b"c"], pa.binary()).view(pa.string())
    for column in (names, pa.StructArray.from_arrays([names], ["at"])):
        rows = batch(id=pa.array([1, 2, 3]), name=column)
        made = encoded(rows, topic="t", json_payload=JsonPayload(["id", "name"], is_whole=False))
        ((row, reason),) = made.refused
        assert (row, made.numbers) == (1, [0, 2])
        assert "column 'name' cannot be JSON" in reason


def test_lists_and_maps_of_a_slice_are_its_own() -> None:
    kind = pa.struct([("list", pa.list_(pa.int64())), ("map", pa.map_(pa.int64(), pa.string()))])
    values = [{"list": [n] * n, "map": [(n, None), (-n, "x")]} if n % 2 else None for n in range(8)]
    rows = batch(payload=pa.array(values, kind)).slice(3, 3)
    made = encoded(rows, topic="t", json_payload=JsonPayload(["payload"], is_whole=True))
    told = [item["payload"] for item in decoded(made.items)]
    assert told == [b'{"list":[3,3,3],"map":{"3":null,"-3":"x"}}', b'{"list":[5,5,5,5,5],"map":{"5":null,"-5":"x"}}']


def test_a_payload_that_is_a_struct_is_the_json_itself() -> None:
    kind = pa.struct([("a", pa.int64()), ("b", pa.float64())])
    rows = batch(payload=pa.array([{"a": 1, "b": None}, None, {"a": 2, "b": float("nan")}], kind))
    made = encoded(rows, topic="t", json_payload=JsonPayload(["payload"], is_whole=True))
    assert [item["payload"] for item in decoded(made.items)] == [b'{"a":1}', b'{"a":2,"b":"NaN"}']
    assert made.refused == [(1, "payload is null")]
