"""The share of each namespace of the topics with rates and of the series of a host."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from foqs.host.metrics.rate_table import RateTable
from foqs.host.metrics.shares import Shares
from foqs.model.topic_rates import SLOT_MS, UNKNOWN

START_MS = 1_700_000_000_000


class Table:
    """A table whose rounds take some topics of several namespaces."""

    def __init__(self, topics_max: int = 100, series_max: int = 100) -> None:
        self.table = RateTable(topics_max, series_max)
        self._rounds_count = 0
        self.round({})

    def round(self, topics: Mapping[int, Mapping[str, int]]) -> None:
        """Do a round with the events of each topic, by namespace and name."""
        at_ms = self._rounds_count * SLOT_MS
        self._rounds_count += 1
        self.table.begin(START_MS + at_ms, at_ms / 1000)
        for namespace, events in topics.items():
            for name, count in events.items():
                self.table.add((namespace, name), (count, count, 0, 0) if count else None, 1)
        for _ in self.table.fold(7):
            pass

    def names(self, namespace: int) -> set[str]:
        return set(self.table.names(namespace))

    def with_series(self, namespace: int) -> set[str]:
        first, last = self.table.slots()
        return {name for name in self.names(namespace) if self.table.series((namespace, name), first, last)}


def named(count: int, events: int = 1) -> dict[str, int]:
    return {f"t{number:03}": events for number in range(count)}


def test_a_namespace_that_fills_the_table_gives_way_to_the_topics_of_another_one() -> None:
    one = Table(topics_max=100)
    one.round({1: named(500)})
    assert len(one.names(1)) == 100
    one.round({1: named(500), 2: named(30)})
    assert (one.names(2), len(one.names(1))) == (set(named(30)), 70)
    measured = one.table.measured((2, "t029"))
    assert measured is not None
    assert measured.rates[0] > 0


def test_topics_of_equal_shares_are_not_taken_from_each_other() -> None:
    one, order = Table(topics_max=100, series_max=40), [1, 2, 3]
    found: list[dict[int, tuple[set[str], set[str]]]] = []
    for _ in range(5):
        one.round({namespace: named(500) for namespace in order})
        found.append({namespace: (one.names(namespace), one.with_series(namespace)) for namespace in (1, 2, 3)})
        order.reverse()
    assert found == found[:1] * 5
    assert sorted(len(names) for names, _ in found[0].values()) == [33, 33, 34]
    assert sorted(len(series) for _, series in found[0].values()) == [13, 13, 14]


def test_a_new_topic_beyond_the_share_of_its_namespace_takes_none_from_others() -> None:
    one = Table(topics_max=10)
    one.round({1: named(5), 2: named(5)})
    one.round({2: {"more": 1_000_000}})
    assert (one.names(1), one.names(2)) == (set(named(5)), set(named(5)))


def test_busy_topics_of_one_namespace_do_not_keep_the_series_from_a_calm_one() -> None:
    one = Table(series_max=10)
    one.round({1: named(50, events=900)})
    assert len(one.with_series(1)) == 10
    one.round({1: named(50, events=900), 2: named(3)})
    for _ in range(5):
        one.round({1: named(50, events=900), 2: named(3)})
        assert (one.with_series(2), len(one.with_series(1))) == (set(named(3)), 7)
    first, last = one.table.slots()
    series = one.table.series((2, "t000"), first, last)
    assert series is not None
    assert [count for count in series[0] if count != UNKNOWN][-3:] == [1, 1, 1]


def test_a_busier_topic_takes_the_series_of_a_still_one_of_its_own_namespace() -> None:
    one = Table(series_max=4)
    for _ in range(3):
        one.round({1: named(2), 2: named(2)})
    for _ in range(30):
        one.round({1: {**named(2), "busy": 900}, 2: named(2)})
    assert (one.with_series(2), len(one.with_series(1))) == (set(named(2)), 2)
    assert "busy" in one.with_series(1)


ROUNDS = st.lists(
    st.dictionaries(
        st.integers(1, 4), st.dictionaries(st.sampled_from(list(named(9))), st.integers(0, 50), max_size=9), max_size=4
    ),
    max_size=150,
)


@given(ROUNDS, st.integers(1, 12), st.integers(1, 6))
@settings(max_examples=100, deadline=None)
def test_whatever_comes_the_bounds_hold_and_who_is_refused_has_a_share(
    rounds: list[dict[int, dict[str, int]]], topics_max: int, series_max: int
) -> None:
    one = Table(topics_max, series_max)
    for topics in rounds:
        one.round(topics)
        rows = {namespace: one.names(namespace) for namespace in range(1, 5)}
        series = {namespace: one.with_series(namespace) for namespace in range(1, 5)}
        assert sum(map(len, rows.values())) == len(one.table) <= topics_max
        assert sum(map(len, series.values())) <= series_max
        for namespace, events in topics.items():
            moving = {name for name, count in events.items() if count}
            if not moving <= rows[namespace]:
                assert len(rows[namespace]) >= max(map(len, rows.values())) - 1
            if not (moving & rows[namespace]) <= series[namespace]:
                assert len(series[namespace]) >= max(map(len, series.values())) - 1


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=200))
@settings(deadline=None)
def test_shares_are_those_of_a_plain_count(steps: list[tuple[int, bool]]) -> None:
    shares, plain = Shares(), Counter[int]()
    for namespace, is_more in steps:
        if is_more or not plain[namespace]:
            shares.add(namespace)
            plain[namespace] += 1
        else:
            shares.remove(namespace)
            plain[namespace] -= 1
        most = max(plain.values())
        for one in range(5):
            assert shares.of(one) == plain[one]
            giving = shares.giving_way_to(one)
            if giving is None:
                assert most - plain[one] < 2
            else:
                assert plain[giving] == most >= plain[one] + 2
