"""Which policy holds for a topic: its own word, field by field, over that of the longest prefix."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.model import limits
from foqs.model.errors import InvalidArgumentError
from foqs.model.namespace import SettingsTable
from foqs.model.policies import Prefixes
from foqs.model.policy import (
    FIELDS,
    NO_POLICY,
    NOTHING_SAID,
    OwnPolicy,
    TopicPolicyEntry,
    TriState,
    place_of,
    policy_page,
)
from foqs.model.policy_book import NamedChange, PolicyBook, PolicyCounts

NAMES = st.text("ab*é\U0001f600", min_size=1, max_size=5)
VALUES: dict[str, st.SearchStrategy[Any]] = {
    "enqueue_paused": st.booleans(),
    "dequeue_paused": st.booleans(),
    "reason": st.sampled_from(["", "why", "how"]),
    "deliveries_per_second_max": st.sampled_from([0.0, 1.0, 7.0]),
    "weight": st.sampled_from([1, 2, 3]),
    "depth_max": st.sampled_from([0, 5]),
    "dead_letter_on_expiry": st.sampled_from(TriState),
}
CHANGES = st.fixed_dictionaries({}, optional=VALUES)
STEPS = st.lists(st.tuples(NAMES, st.booleans(), CHANGES), max_size=25)


class Oracle:
    """A plain reading of the rule: it keeps the words of operators by field, and looks at all prefixes for a topic."""

    def __init__(self) -> None:
        self.topics: dict[str, dict[str, Any]] = {}
        self.prefixes: dict[str, dict[str, Any]] = {}

    def of_prefixes(self, name: str, but: str = "") -> dict[str, Any]:
        found = [one for one in self.prefixes if name.startswith(one) and one != but]
        return {**defaults(), **self.prefixes[max(found, key=len)]} if found else defaults()

    def holds(self, name: str) -> dict[str, Any]:
        return {**self.of_prefixes(name), **self.topics.get(name, {})}

    def change(self, name: str, is_prefix: bool, changes: Mapping[str, Any]) -> None:
        some = self.prefixes if is_prefix else self.topics
        words = some.pop(name, {})
        base = self.of_prefixes(name)
        for field, value in changes.items():
            words.pop(field, None)
            if value != base[field] or (is_prefix and value != defaults()[field]):
                words[field] = value
        if words:
            some[name] = words


def defaults() -> dict[str, Any]:
    return {field: getattr(NO_POLICY, field) for field in FIELDS}


def values_of(policy: Any) -> dict[str, Any]:
    return {field: getattr(policy, field) for field in FIELDS}


@settings(max_examples=300)
@given(STEPS, st.lists(NAMES, min_size=1, max_size=10))
def test_a_topic_has_its_own_words_over_those_of_the_longest_prefix(steps: list[Any], others: list[str]) -> None:
    oracle, table = Oracle(), SettingsTable()
    topics: dict[str, OwnPolicy] = {}
    prefixes: dict[str, OwnPolicy] = {}
    names = {*others, *[name for name, _, _ in steps]}
    for name, is_prefix, changes in steps:
        before = {one: table.policy(1, one) for one in names}
        book = PolicyBook("n", topics, prefixes, PolicyCounts())
        told = book.change(NamedChange(name, is_prefix, SimpleNamespace(**changes)))
        oracle.change(name, is_prefix, changes)
        topics = stored({**topics, **book.topics_changed})
        prefixes = stored({**prefixes, **book.prefixes_changed})
        table.replace_policies({1: topics} if topics else {}, {1: prefixes} if prefixes else {})
        assert {one: values_of(table.policy(1, one)) for one in names} == {one: oracle.holds(one) for one in names}
        assert {one: set(own.own_fields) for one, own in topics.items()} == {
            one: set(words) for one, words in oracle.topics.items()
        }
        assert values_of(told) == ({**defaults(), **oracle.prefixes.get(name, {})} if is_prefix else oracle.holds(name))
        pausing = table.enqueue_pauses(1)
        paused = {one for one in names if oracle.holds(one)["enqueue_paused"]}
        assert paused == {one for one in names if pausing is not None and pausing.of(one).enqueue_paused}
        limiting = table.depth_limits(1)
        limited = {one for one in names if oracle.holds(one)["depth_max"]}
        assert limited == {one for one in names if limiting is not None and limiting.of(one).depth_max}
        changed = {one for one in names if values_of(before[one]) != oracle.holds(one)}
        assert changed <= told_of(table, names)


def stored(some: Mapping[str, OwnPolicy]) -> dict[str, OwnPolicy]:
    return {name: own for name, own in some.items() if own != NOTHING_SAID}


def told_of(table: SettingsTable, names: set[str]) -> set[str]:
    """The topics that the dispatcher is told of. Takes them out, as it does."""
    prefixes = [prefix for _, prefix in table.prefix_changes]
    told = {name for _, name in table.policy_changes} | {one for one in names if one.startswith(tuple(prefixes))}
    table.prefix_changes.clear()
    table.policy_changes.clear()
    return told


@settings(max_examples=300)
@given(st.sets(NAMES, max_size=12), NAMES)
def test_the_longest_prefix_is_found(prefixes: set[str], name: str) -> None:
    expected = max([one for one in prefixes if name.startswith(one)], key=len, default=None)
    assert Prefixes(prefixes).longest(name) == expected


def test_what_has_not_changed_is_the_same_object_and_is_told_to_nobody() -> None:
    table = SettingsTable()
    topics = {"a/1": OwnPolicy(weight=2), "b": OwnPolicy(weight=3)}
    table.replace_policies({1: topics}, {1: {"a/": OwnPolicy(dequeue_paused=True)}})
    table.policy_changes.clear()
    table.prefix_changes.clear()
    kept = table.policy(1, "a/1")
    assert (kept.weight, kept.dequeue_paused) == (2, True)
    added = {"a/": table.prefix_policies[1]["a/"], "c": OwnPolicy(weight=5)}
    table.replace_policies(table.policies, {1: added})
    assert table.policy(1, "a/1") is kept
    assert (list(table.policy_changes), list(table.prefix_changes)) == ([], [(1, "c")])
    table.replace_policies({}, {})
    assert table.policy(1, "a/1") is NO_POLICY
    assert list(table.policy_changes) == [(1, "a/1"), (1, "b")]
    assert list(table.prefix_changes) == [(1, "c"), (1, "a/"), (1, "c")]


def test_a_longer_prefix_holds_as_a_whole_also_one_of_defaults() -> None:
    book = PolicyBook("n", {}, {}, PolicyCounts())

    def change(name: str, is_prefix: bool, **changes: Any) -> TopicPolicyEntry:
        return book.change(NamedChange(name, is_prefix, SimpleNamespace(**changes)))

    change("a", True, dequeue_paused=True, weight=4)
    inner = change("a/", True, dequeue_paused=False)
    assert inner.own_fields == ("dequeue_paused",)
    assert change("a/1", False) == TopicPolicyEntry(topic="a/1")
    assert change("a/1", False, weight=4).weight == 4
    change("a", True, dequeue_paused=False, weight=1)
    assert book.prefixes_changed["a"] == NOTHING_SAID
    assert change("a/", True, dequeue_paused=False).own_fields == ()
    assert book.prefixes_changed["a/"] == NOTHING_SAID


def test_a_bad_change_changes_nothing_and_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "TOPIC_PREFIX_POLICIES_MAX", 1)
    book = PolicyBook("n", {}, {}, PolicyCounts())
    with pytest.raises(InvalidArgumentError, match="weight 0"):
        book.change(NamedChange("a", True, SimpleNamespace(weight=0, dequeue_paused=True)))
    assert not book.prefixes_changed
    book.change(NamedChange("a", True, SimpleNamespace(weight=2)))
    with pytest.raises(InvalidArgumentError, match=r"1 prefixes .* limit is 1"):
        book.change(NamedChange("b", True, SimpleNamespace(weight=2)))
    book.change(NamedChange("b", False, SimpleNamespace(weight=2)))


@settings(max_examples=200)
@given(st.sets(st.tuples(st.booleans(), NAMES), max_size=12), st.integers(1, 4))
def test_tokens_of_pages_tell_a_prefix_from_a_topic(keys: set[tuple[bool, str]], limit: int) -> None:
    entries = sorted([TopicPolicyEntry(topic=name, is_prefix=is_prefix) for is_prefix, name in keys],
                     key=lambda one: (not one.is_prefix, one.topic))  # fmt: skip
    got: list[TopicPolicyEntry] = []
    token = ""
    while True:
        is_after_prefix, name = place_of(token)
        rest = [one for one in entries if (one.is_prefix and is_after_prefix and one.topic > name)
                or (not one.is_prefix and (is_after_prefix or one.topic > name))]  # fmt: skip
        page = policy_page(rest[: limit + 1], limit)
        got += page.policies
        token = page.next_page_token
        if not token:
            break
    assert got == entries
