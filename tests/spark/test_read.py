"""`spark.read.format("foqs")` in a real session, against a real host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql.datasource import EqualTo, GreaterThan, In, IsNotNull, StringContains, StringStartsWith
from pyspark.sql.types import StructType

from foqs import Client, NewItem
from foqs.model.calls import ItemState
from foqs.model.errors import InvalidArgumentError
from foqs.spark.read_options import ReadOptions
from foqs.spark.reader import FilteringReader, Wanted
from foqs.spark.rows import READ_COLUMNS, READ_SCHEMA
from tests.support.spark_rows import load

pytestmark = [pytest.mark.database]

PUSHDOWN = "spark.sql.python.filterPushdown.enabled"


def test_columns_are_pruned_by_a_schema_and_payloads_by_an_option(
    spark: Any, address: str, namespace: str, states: dict[str, str]
) -> None:
    rows = load(spark, address, namespace, "state string, id string").collect()
    assert {(row.state, row.id) for row in rows} >= {("dead", states["dead"]), ("leased", states["leased"])}
    assert len(rows[0]) == 2
    without = load(spark, address, namespace, includePayload="false")
    assert {row.payload for row in without.collect()} == {None}
    assert load(spark, address, namespace).count() == len(states)


@pytest.mark.parametrize("splits", ["1", "7"])
def test_many_items_come_each_once_in_splits_and_again_with_a_second_action(
    spark: Any, address: str, namespace: str, client: Client, splits: str
) -> None:
    for first in range(0, 6_000, 1_000):
        client.enqueue_many(namespace, [NewItem(f"t{n % 3}", b"%d" % n) for n in range(first, first + 1_000)])
    frame = load(spark, address, namespace, splitsPerShard=splits, pageSize="900")
    counts = Counter(int(row.payload) for row in frame.select("payload").collect())
    assert len(counts) == 6_000
    assert set(counts.values()) == {1}
    client.enqueue(namespace, "t0", b"later")
    assert frame.count() == 6_000, "the plan of the frame is from before"
    by_topic = {row.topic: row["count"] for row in frame.groupBy("topic").count().collect()}
    assert by_topic == {"t0": 2_000, "t1": 2_000, "t2": 2_000}


def test_an_empty_namespace_is_an_empty_frame(spark: Any, address: str, namespace: str) -> None:
    assert load(spark, address, namespace).collect() == []
    assert load(spark, address, namespace).count() == 0


def test_a_view_is_read_by_sql(spark: Any, address: str, namespace: str, states: dict[str, str]) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW dead USING foqs OPTIONS "
              f"(addresses '{address}', namespace '{namespace}', state 'dead')")  # fmt: skip
    [row] = spark.sql("SELECT id, string(payload) AS payload FROM dead WHERE topic = 't'").collect()
    assert (row.id, row.payload) == (states["dead"], "dead")


@pytest.fixture
def pushing(spark: Any) -> Iterator[None]:
    spark.conf.set(PUSHDOWN, "true")
    yield
    spark.conf.set(PUSHDOWN, "false")


def test_filters_are_served_with_pushdown_and_give_the_same_rows(
    spark: Any, address: str, namespace: str, states: dict[str, str], pushing: None
) -> None:
    for condition, wanted in (
        ("state = 'dead'", {"dead"}),
        ("state IN ('dead', 'ready') AND topic = 't'", {"dead", "ready"}),
        ("topic LIKE 'oth%'", {"other"}),
        ("topic = 't' AND priority > 0", {"ready"}),
        ("topic = 't' OR state = 'ready'", set(states)),
        ("state = 'none'", set()),
        ("topic = 't' AND topic = 'other'", set()),
        ("payload IS NOT NULL AND lease_ms IS NULL", set(states)),
    ):
        frame = load(spark, address, namespace, pushdown="true").where(condition)
        assert {row.id for row in frame.collect()} == {states[name] for name in wanted}, condition


def test_without_the_option_filters_are_sparks(
    spark: Any, address: str, namespace: str, states: dict[str, str], pushing: None
) -> None:
    frame = load(spark, address, namespace).where("state = 'dead'")
    assert [row.id for row in frame.collect()] == [states["dead"]]


def reader_of(**options: Any) -> FilteringReader:
    schema = StructType.fromDDL(READ_SCHEMA)
    return FilteringReader(ReadOptions(addresses="h:1", namespace="ns", pushes_filters=True, **options), schema)


@pytest.mark.usefixtures("spark")
def test_what_is_not_served_exactly_is_yielded_back() -> None:
    reader = reader_of()
    served = [IsNotNull(("state",)), EqualTo(("state",), "dead"), StringStartsWith(("topic",), "ma")]
    others = [
        GreaterThan(("priority",), 1),
        StringContains(("topic",), "x"),
        EqualTo(("id",), "0-1"),
        IsNotNull(("payload",)),
        In(("topic",), tuple(f"ma{n}" for n in range(501))),
    ]
    assert list(reader.pushFilters([*served, *others])) == others
    assert reader.wanted == Wanted(frozenset({ItemState.DEAD}), None, "ma")


@pytest.mark.parametrize(
    ("options", "filters", "wanted"),
    [
        ({}, [EqualTo(("topic",), "a"), In(("topic",), ("a", "b"))], Wanted(topics=frozenset({"a"}))),
        ({"topics": frozenset({"a", "b"})}, [EqualTo(("topic",), "c")], Wanted(topics=frozenset())),
        ({"topics": frozenset({"mail", "b"})}, [StringStartsWith(("topic",), "m")], Wanted(topics=frozenset({"mail"}))),
        ({"topic_prefix": "ma"}, [StringStartsWith(("topic",), "m")], Wanted(topic_prefix="ma")),
        ({"topic_prefix": "m"}, [StringStartsWith(("topic",), "ma")], Wanted(topic_prefix="ma")),
        ({"topic_prefix": "ma"}, [StringStartsWith(("topic",), "n")], Wanted(topics=frozenset())),
        ({"topic_prefix": "ma"}, [EqualTo(("topic",), "news")], Wanted(topics=frozenset())),
        ({"topic_prefix": "ma"}, [EqualTo(("topic",), "mail")], Wanted(topics=frozenset({"mail"}))),
        ({}, [EqualTo(("topic",), "")], Wanted(topics=frozenset())),
        ({}, [EqualTo(("topic",), "\n")], Wanted(topics=frozenset())),
        ({"states": frozenset({ItemState.DEAD})}, [EqualTo(("state",), "ready")], Wanted(states=frozenset())),
    ],
)
@pytest.mark.usefixtures("spark")
def test_filters_narrow_what_the_options_say(options: dict[str, Any], filters: list[Any], wanted: Wanted) -> None:
    reader = reader_of(**options)
    assert list(reader.pushFilters(filters)) == []
    assert reader.wanted == wanted
    if wanted.is_nothing:
        assert reader.partitions() == []
        assert list(reader.read(None)) == []  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "schema", "told"),
    [
        ({"namespace": "nobody"}, None, "nobody"),
        ({"addresses": "127.0.0.1:1"}, None, "no host of addresses=127.0.0.1:1 answers"),
        ({"state": "done"}, None, "state 'done'"),
        ({"dedup": "none"}, "id string", "unknown option 'dedup' of a read"),
        ({}, "id bigint", "column id is of type string, not bigint"),
        ({}, "size int", "unknown column 'size'"),
    ],
)
def test_what_is_wrong_is_told_before_a_task_starts(
    spark: Any, address: str, namespace: str, options: dict[str, str], schema: str | None, told: str
) -> None:
    wrong = {"addresses": address, "namespace": namespace, **options}
    reader = spark.read.format("foqs").options(**wrong)
    with pytest.raises(PySparkException) as caught:
        (reader.schema(schema) if schema else reader).load().collect()
    assert told in str(caught.value)
    assert "Job aborted" not in str(caught.value)


@pytest.mark.usefixtures("spark")
def test_every_column_is_documented() -> None:
    assert all(meaning for _, meaning, _ in READ_COLUMNS.values())
    with pytest.raises(InvalidArgumentError):
        FilteringReader(ReadOptions(addresses="h:1", namespace="ns"), StructType.fromDDL("nothing string"))
