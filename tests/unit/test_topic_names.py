"""The hidden names of groups and of keyed topics, taken apart again."""

from __future__ import annotations

from zlib import crc32

import pytest
from hypothesis import given
from hypothesis import strategies as st

from foqs.model import topic_name
from foqs.model.errors import InvalidArgumentError
from foqs.model.topic_name import (
    base_of,
    bucket_of,
    bucketed,
    check_length,
    described,
    fair,
    fairness_key_of,
    hidden,
    in_group,
    in_sequence,
    is_fair,
    is_hidden,
    is_keyed,
    is_of_group,
    is_ordered,
    key_buckets_of,
    of_topic,
    ordered,
    ordering_key_of,
    parts,
    sequence_named,
    sequence_of,
    without_fairness_key,
)

TEXTS = st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=20)


@given(TEXTS, st.none() | TEXTS, st.none() | TEXTS, st.integers(0, 4_096))
def test_a_name_is_taken_apart_into_its_parts(topic: str, group: str | None, key: str | None, buckets: int) -> None:
    base = hidden(topic, group)
    name = base if key is None else bucketed(base, key, buckets) if buckets else ordered(base, key)
    assert (parts(name), base_of(name)) == ((topic, group or ""), base)
    assert (is_keyed(name), is_of_group(name)) == (key is not None, group is not None)
    assert is_hidden(name) is (key is not None or group is not None)
    has_key, has_bucket = key is not None and not buckets, key is not None and buckets > 0
    assert ordering_key_of(name) == (key if has_key else None)
    assert bucket_of(name) == (f"{crc32((key or '').encode()) % buckets}/{buckets}" if has_bucket else None)
    assert key_buckets_of(name) == (buckets if has_bucket else 0)
    assert sequence_of(name) == sequence_named(ordering_key_of(name), bucket_of(name))
    assert base_of(of_topic(name)) == topic
    assert in_group(of_topic(name), base) == name
    assert not is_hidden(described(name))


@given(TEXTS, st.none() | TEXTS, TEXTS)
def test_the_name_of_a_fairness_key_is_taken_apart_into_its_parts(topic: str, group: str | None, key: str) -> None:
    base = hidden(topic, group)
    name = fair(base, key)
    assert (parts(name), base_of(name), without_fairness_key(name)) == ((topic, group or ""), base, base)
    assert (is_keyed(name), is_fair(name), is_ordered(name), is_hidden(name)) == (True, True, False, True)
    assert (fairness_key_of(name), ordering_key_of(name), bucket_of(name), key_buckets_of(name)) == (key, None, None, 0)
    assert sequence_of(name) == sequence_named(None, None, key)
    assert in_sequence(base, sequence_of(name)) == name
    assert in_group(of_topic(name), base) == name
    assert not is_hidden(described(name))
    other = ordered(base, key)
    assert (without_fairness_key(other), is_fair(other), in_sequence(base, sequence_of(other))) == (other, False, other)


@given(st.lists(TEXTS, min_size=1, max_size=5), TEXTS)
def test_the_keyed_topics_of_a_base_sort_behind_it_and_before_all_that_begin_with_it(
    keys: list[str], more: str
) -> None:
    keyed = [of("t", key) for key in keys for of in (fair, ordered)] + [bucketed("t", keys[0], 8)]
    assert max(["t", *keyed]) < min(hidden("t", "g"), f"t{more}")
    assert sorted(keyed) == sorted(keyed, key=sequence_of)
    assert in_sequence("t", "") < min(keyed)


def test_a_key_whose_name_is_too_long_is_refused_with_the_numbers() -> None:
    check_length(ordered(hidden("t" * 100, "g" * 60), "k" * 93))
    with pytest.raises(InvalidArgumentError, match=r"needs 256 bytes, .* the limit is 255"):
        check_length(ordered(hidden("t" * 100, "g" * 60), "k" * 94))
    fault = topic_name.ordering_key_fault("k" * 129, "t")
    assert fault is not None
    assert "1 to 128 bytes" in fault.message
