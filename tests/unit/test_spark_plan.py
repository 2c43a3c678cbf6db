"""What options and columns a write may have, without Spark: all that is wrong is one error."""

from __future__ import annotations

import re

import pytest

from foqs.model.errors import InvalidArgumentError
from foqs.spark.columns import COLUMNS, view_schema
from foqs.spark.options import OPTIONS, WriteOptions, option_table, parse_options
from foqs.spark.plan import WritePlan, plan_write
from foqs.spark.read_options import is_for_reading

REQUIRED = {"addresses": "h:1", "namespace": "jobs", "dedup": "none"}
COLUMNS_GIVEN = [("topic", "string"), ("payload", "binary")]


def planned(*columns: tuple[str, str], **options: str) -> WritePlan:
    return plan_write({"addresses": "h:1", "namespace": "jobs", **options}, [*COLUMNS_GIVEN, *columns])


def test_names_are_taken_in_any_case() -> None:
    plan = plan_write(
        {**REQUIRED, "batchsize": "10", "MAXINFLIGHT": "2", "ignoreExtraColumns": "TRUE", "oninvalidrow": "sideoutput"}
        | {"REJECTEDROWSPATH": "/r"},
        COLUMNS_GIVEN,
    )
    assert plan.options == WriteOptions(
        addresses="h:1",
        namespace="jobs",
        dedup="none",
        batch_items=10,
        calls_in_flight=2,
        ignores_extra_columns=True,
        on_invalid_row="sideOutput",
        rejected_rows_path="/r",
    )


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"addresses": "h:0"}, "'h:0' is not an address"),
        ({"namespace": "a b"}, "namespace name 'a b' is not valid"),
        ({"topic": ""}, "topic is empty"),
        ({"maxInFlight": "65"}, "maxInFlight '65' is not a whole number within 1..64"),
        ({"maxInvalidRows": "-1"}, "maxInvalidRows '-1' is not a whole number"),
        ({"retryTimeoutMs": "1e3"}, "retryTimeoutMs '1e3' is not a whole number"),
        ({"spreadOverMs": "7776000001"}, "spreadOverMs '7776000001' is not a whole number within 0..7776000000"),
        ({"maxItemsPerSecond": "0"}, "maxItemsPerSecond '0' is not a whole number"),
        ({"ignoreExtraColumns": "yes"}, "neither true nor false"),
        ({"dedup": "maybe"}, "dedup 'maybe' is not key, content or none"),
        ({"payloadFormat": "xml"}, "payloadFormat 'xml' is not binary or json"),
        ({"onShortWindow": "x"}, "onShortWindow 'x' is not warn or fail"),
        ({"onInvalidRow": "drop"}, "onInvalidRow 'drop' is not fail, skip or sideOutput"),
        ({"jobId": "a b"}, "jobId: job id 'a b' is not valid: use 1 to 128 of"),
        ({"jobId": "a" * 129}, "is not valid: use 1 to 128 of"),
        ({"colour": "red"}, "unknown option 'colour': use addresses, namespace"),
        ({"batchsise": "5"}, "did you mean batchSize?"),
        ({"path": "/data"}, "path '/data' means nothing here"),
        ({"dedupIdColumn": "id"}, "dedupIdColumn is set, and dedup is none"),
        ({"dedupUntil": "ever"}, "dedupUntil 'ever' is not window or acked"),
        ({"dedupUntil": "acked"}, "dedupUntil is acked, and dedup is none"),
        ({"maxInvalidRows": "3"}, "maxInvalidRows allows invalid rows, and onInvalidRow is fail"),
        ({"onInvalidRow": "sideOutput"}, "onInvalidRow=sideOutput needs rejectedRowsPath"),
        ({"rejectedRowsPath": "/r"}, "rejectedRowsPath is for onInvalidRow=sideOutput alone"),
    ],
)
def test_a_wrong_option_is_told_by_name_and_value(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(told)):
        plan_write(REQUIRED | given, COLUMNS_GIVEN)


def test_all_that_is_wrong_with_options_and_columns_is_told_at_once() -> None:
    columns = [
        ("payload", "int"),
        ("PRIORITY", "string"),
        ("colour", "string"),
        ("Topic", "string"),
        ("topic", "string"),
        ("deliver_after", "timestamp_ntz"),
        ("Key", "double"),
    ]
    with pytest.raises(InvalidArgumentError) as raised:
        plan_write({"batchSize": "x", "dedupIdColumn": "key"}, columns)
    for told in (
        "addresses is not set",
        "namespace is not set",
        "batchSize 'x'",
        "column 'payload' is of type int, not binary or string",
        "column 'PRIORITY' is of type string",
        "unknown column 'colour'",
        "column 'topic' is there twice",
        "cast it to timestamp",
        "key column 'Key' is of type double, not string or binary or tinyint or smallint or int or bigint",
    ):
        assert told in raised.value.message


def test_what_is_missing_is_told() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        plan_write(REQUIRED, [])
    assert "column 'payload' is missing" in raised.value.message
    assert "column 'topic' is missing, and no option topic is set" in raised.value.message


def test_extra_columns_are_left_out_when_asked_for() -> None:
    plan = planned(("colour", "string"), ("dedup_id", "string"), dedup="none", ignoreExtraColumns="true")
    assert not plan.has_ids


# ---- which kind of dedup ----


@pytest.mark.parametrize(
    ("columns", "options", "key"),
    [
        ([("dedup_id", "string")], {}, "dedup_id"),
        ([("DEDUP_ID", "bigint")], {"dedup": "key"}, "DEDUP_ID"),
        ([("Order", "binary")], {"dedupIdColumn": "order"}, "Order"),
        ([("order", "int"), ("dedup_id", "string")], {"dedupIdColumn": "order", "ignoreExtraColumns": "true"}, "order"),
        ([("dedup_id", "string")], {"dedup": "content", "ignoreExtraColumns": "true"}, None),
        ([], {"dedup": "content"}, None),
        ([], {"dedup": "none"}, None),
    ],
)
def test_a_key_is_taken_where_there_is_one_and_nothing_else_goes_without_saying(
    columns: list[tuple[str, str]], options: dict[str, str], key: str | None
) -> None:
    plan = planned(*columns, **options)
    assert plan.key_column == key
    assert plan.has_ids == (key is not None or options.get("dedup") == "content")


@pytest.mark.parametrize(
    ("columns", "options", "told"),
    [
        ([], {}, "dedup is not chosen: give each row a key in a column dedup_id"),
        ([], {"dedup": "key"}, "key column 'dedup_id' is missing"),
        ([], {"dedupIdColumn": "order"}, "key column 'order' is missing"),
        ([("dedup_id", "string")], {"dedup": "none"}, "column 'dedup_id' has no meaning with these options"),
        ([("dedup_id", "string")], {"dedup": "content"}, "column 'dedup_id' has no meaning with these options"),
        ([("dedup_id", "struct<a:int>")], {}, "key column 'dedup_id' is of type struct<a:int>"),
    ],
)
def test_a_write_without_a_clear_kind_of_dedup_is_refused(
    columns: list[tuple[str, str]], options: dict[str, str], told: str
) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(told)):
        planned(*columns, **options)


# ---- JSON payloads ----


def test_all_columns_without_a_meaning_make_the_json_and_a_key_of_another_name_too() -> None:
    columns = [("topic", "string"), ("order", "bigint"), ("price", "decimal(10,2)"), ("priority", "int")]
    plan = plan_write({**REQUIRED, "dedup": "key", "dedupIdColumn": "order", "payloadFormat": "json"}, columns)
    assert plan.payload_columns == ("order", "price")
    assert not plan.payload_is_whole


def test_a_nested_column_payload_is_the_json_itself() -> None:
    columns = [("topic", "string"), ("payload", "struct<a:int>")]
    plan = plan_write({**REQUIRED, "payloadFormat": "json"}, columns)
    assert (plan.payload_columns, plan.payload_is_whole) == (("payload",), True)
    with pytest.raises(InvalidArgumentError, match="set payloadFormat=json"):
        plan_write(REQUIRED, columns)


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        (COLUMNS_GIVEN, "column 'payload' is of type binary: with payloadFormat=json it is a struct, map or array"),
        ([("topic", "string")], "payloadFormat=json makes the payload of columns without a meaning of their own"),
    ],
)
def test_json_without_anything_to_make_it_of_is_refused(columns: list[tuple[str, str]], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(told)):
        plan_write({**REQUIRED, "payloadFormat": "json"}, columns)


# ---- invalid rows ----


@pytest.mark.parametrize(
    ("given", "bound"),
    [
        ({}, 0),
        ({"onInvalidRow": "skip"}, None),
        ({"onInvalidRow": "skip", "maxInvalidRows": "7"}, 7),
        ({"onInvalidRow": "sideOutput", "rejectedRowsPath": "/r"}, None),
    ],
)
def test_the_bound_of_invalid_rows_is_none_only_where_rows_may_be_left_out(
    given: dict[str, str], bound: int | None
) -> None:
    assert planned(**REQUIRED | given).invalid_rows_max == bound


# ---- views and documents ----


@pytest.mark.parametrize(
    "given", [{"dedup": "none"}, {"dedup": "content"}, {"dedupIdColumn": "order"}, {"dedup": "key"}]
)
def test_the_schema_of_a_view_that_rows_are_inserted_into_is_one_that_a_write_takes(given: dict[str, str]) -> None:
    assert not is_for_reading(given)
    options = {"addresses": "h:1", "namespace": "jobs", **given}
    columns = [tuple(column.replace("`", "").split()) for column in view_schema(parse_options(options, [])).split(", ")]
    plan = plan_write(options, columns)  # type: ignore[arg-type]
    assert plan.has_ids == (given != {"dedup": "none"})
    assert {name for name, _ in columns} - {"order"} | {"dedup_id"} == set(COLUMNS)


def test_the_table_of_the_documents_has_every_option_with_its_default() -> None:
    table = {name: default for name, default, _ in option_table()}
    assert list(table) == list(OPTIONS)
    assert table["addresses"] == table["namespace"] == "required"
    assert (table["batchSize"], table["onInvalidRow"], table["topic"]) == ("1000", "fail", "none")
