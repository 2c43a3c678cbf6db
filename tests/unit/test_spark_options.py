"""What options a write may have, without Spark."""

from __future__ import annotations

import re

import pytest

from foqs.model.errors import InvalidArgumentError
from foqs.spark.options import WriteOptions, option_table, parse_write_options

REQUIRED = {"addresses": "h:1", "namespace": "jobs", "dedup": "none"}


def test_names_are_taken_in_any_case() -> None:
    options = parse_write_options({**REQUIRED, "batchsize": "10", "MAXINFLIGHT": "2", "ignoreExtraColumns": "TRUE"})
    assert options == WriteOptions(
        addresses="h:1", namespace="jobs", batch_items=10, calls_in_flight=2, ignores_extra_columns=True
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
        ({"ignoreExtraColumns": "yes"}, "neither true nor false"),
        ({"dedup": "content"}, "dedup=content is not supported yet"),
        ({"dedup": "maybe"}, "dedup 'maybe' is not none, key or content"),
        ({"jobId": "7"}, "jobid is not supported yet: leave it out"),
        ({"colour": "red"}, "unknown option 'colour': use addresses, namespace"),
        ({"path": "/data"}, "path '/data' means nothing here"),
    ],
)
def test_a_wrong_option_is_told_by_name_and_value(given: dict[str, str], told: str) -> None:
    with pytest.raises(InvalidArgumentError, match=re.escape(told)):
        parse_write_options(REQUIRED | given)


def test_all_that_is_wrong_is_told_at_once() -> None:
    with pytest.raises(InvalidArgumentError) as raised:
        parse_write_options({"batchSize": "x"})
    message = raised.value.message
    assert all(
        part in message for part in ("dedup is not set", "addresses is not set", "namespace is not set", "batchSize")
    )


def test_the_table_of_the_documents_has_every_option() -> None:
    names = [name for name, _, _ in option_table()]
    assert names[:3] == ["addresses", "namespace", "dedup"]
    assert len(names) == len(set(names)) == 9
