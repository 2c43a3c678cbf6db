"""What options a read may have, without Spark."""

from __future__ import annotations

import pytest
from hypothesis import example, given, strategies

from foqs.model.calls import ItemState
from foqs.model.errors import InvalidArgumentError
from foqs.spark.credentials import Credentials
from foqs.spark.jobs.frame_reading import read_options_of
from foqs.spark.read_options import (
    ReadOptions,
    is_for_reading,
    parse_read_options,
    read_option_table,
    topics_text,
)
from foqs.spark.rows import READ_COLUMNS, check_read_columns

REQUIRED = {"addresses": "h:1", "namespace": "jobs"}


def test_names_are_taken_in_any_case() -> None:
    given = {
        "STATE": "Dead, leased",
        "topics": '["a", "b", "a"]',
        "splitspershard": "8",
        "includePayload": "FALSE",
        "pageSize": "10",
        "retryTimeoutMs": "5",
        "pushdown": "true",
    }
    assert parse_read_options({**REQUIRED, **given}) == ReadOptions(
        addresses="h:1",
        namespace="jobs",
        states=frozenset({ItemState.DEAD, ItemState.LEASED}),
        topics=frozenset({"a", "b"}),
        splits_per_shard=8,
        includes_payload=False,
        page_items=10,
        retry_timeout_ms=5,
        pushes_filters=True,
    )
    assert parse_read_options({**REQUIRED, "topicPrefix": "m"}).topic_prefix == "m"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"addresses": "h:0"}, "'h:0' is not an address"),
        ({"namespace": "a b"}, "namespace name 'a b' is not valid"),
        ({"state": "done"}, "state 'done' is not one of ready, delayed, leased, dead"),
        ({"state": " "}, "state is empty"),
        ({"topics": "[]"}, "topics is empty"),
        ({"topics": "a,b"}, 'topics \'a,b\' is not a list of names in JSON, such as ["mails", "orders"]'),
        ({"topics": '["a", 1]'}, "is not a list of names in JSON"),
        ({"topics": "[" * 100_000}, "is not a list of names in JSON"),
        ({"topics": topics_text(map(str, range(501)))}, "501 topics, over the limit of 500"),
        ({"topicPrefix": ""}, "topicPrefix is empty"),
        ({"topics": '["a"]', "topicPrefix": "a"}, "topics and topicPrefix exclude each other"),
        ({"splitsPerShard": "0"}, "splitsPerShard '0' is not a whole number within 1..64"),
        ({"splitsPerShard": "65"}, "splitsPerShard '65'"),
        ({"pageSize": "1001"}, "pageSize '1001' is not a whole number within 1..1000"),
        ({"includePayload": "1"}, "includePayload '1' is neither true nor false"),
        ({"pushdown": "yes"}, "pushdown 'yes'"),
        ({"topic": "a"}, "unknown option 'topic' of a read (did you mean topics?)"),
        ({"dedup": "none"}, "unknown option 'dedup' of a read"),
        ({"path": "/x"}, "call load() without one"),
    ],
)
def test_what_is_wrong_is_told(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_read_options({**REQUIRED, **given})
    assert told in caught.value.message


@given(names=strategies.sets(strategies.text(min_size=1, max_size=20), min_size=1, max_size=5))
@example(names={"a,b", " a", "a ", '["a"]', "\\", '"'})
def test_every_name_of_a_topic_comes_through_the_options_of_a_job_as_it_was(names: set[str]) -> None:
    options = read_options_of({"topics": tuple(names), "namespace": "jobs", "addresses": "h:1", "topic_prefix": None})
    assert parse_read_options(options).topics == names


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidArgumentError) as caught:
        parse_read_options({"state": "x", "pageSize": "x"})
    for told in ("addresses is not set", "namespace is not set", "state 'x'", "pageSize 'x'"):
        assert told in caught.value.message


def test_options_of_writes_are_told_from_those_of_reads() -> None:
    assert is_for_reading({**REQUIRED, "STATE": "dead"})
    assert not is_for_reading({**REQUIRED, "dedup": "none"})


def test_each_option_has_a_row_in_the_documentation() -> None:
    rows = read_option_table()
    assert [default for _, default, _ in rows[:2]] == ["required", "required"]
    own = ReadOptions.__dataclass_fields__.keys() - {"credentials"}
    assert len(rows) == len(own) + len(Credentials.__dataclass_fields__)
    assert ("state", "all") in [(name, default) for name, default, _ in rows]


def test_columns_that_a_read_cannot_have_are_told() -> None:
    assert check_read_columns([(name, kind) for name, (kind, _, _) in READ_COLUMNS.items()]) == list(READ_COLUMNS)
    with pytest.raises(InvalidArgumentError) as caught:
        check_read_columns([("id", "bigint"), ("topic", "string"), ("size", "int")])
    assert "column id is of type string, not bigint; unknown column 'size'" in caught.value.message
