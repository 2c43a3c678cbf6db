"""The topics of the console: their order, filters and judgements."""

from __future__ import annotations

import random
import re
import time
from fnmatch import fnmatchcase

import pytest

from foqs.console.charts import rate_charts, wait_chart
from foqs.console.policies_known import PoliciesKnown
from foqs.console.sparks import spark_of
from foqs.console.topic_filter import FILTER_CHARS_MAX, parsed_filter
from foqs.console.topic_index import ORDERS, ROWS_PER_PAGE, TopicIndex
from foqs.console.topic_row import Movement
from foqs.model.calls import TopicStats
from foqs.model.errors import InvalidArgumentError
from foqs.model.event_history import History, HistoryRow
from foqs.model.event_log import BOUNDS_MS
from foqs.model.policy import TopicPolicy, TopicPolicyEntry
from foqs.model.topic_rates import RatesPage, TopicRates

NOW_MS = 1_000_000_000
PLAIN = TopicPolicy()


def stats(topic: str, ready: int = 0, *, dead: int = 0, oldest_ms: int = 0, **rates: float) -> TopicStats:
    found = TopicStats(topic, ready, 0, 0, dead, 0, NOW_MS - oldest_ms if ready else 0)
    found.rates = TopicRates(topic, **rates) if rates else None
    return found


def index_of(*rows: TopicStats, policy: TopicPolicy = PLAIN) -> TopicIndex:
    index = TopicIndex()
    for row in rows:
        index.take(row, policy, None, NOW_MS)
    index.finish_round(NOW_MS, [])
    return index


@pytest.mark.parametrize(
    ("row", "policy", "movement", "words"),
    [
        (stats("t"), PLAIN, Movement.EMPTY, "empty"),
        (stats("t", dead=3), PLAIN, Movement.RESTING, "nothing is ready"),
        (stats("t", 5, oldest_ms=3_000), PLAIN, Movement.MOVING, "moving"),
        (stats("t", 5, oldest_ms=840_000), PLAIN, Movement.STUCK, "not moving: the oldest waits for 14 min"),
        (stats("t", 5, oldest_ms=90_000, delivered_1min=0.1, delivered_15min=50.0), PLAIN,
         Movement.STUCK, "not moving"),
        (stats("t", 5, oldest_ms=90_000, delivered_1min=40.0, delivered_15min=50.0, enqueued_1min=60.0), PLAIN,
         Movement.GROWING, "more comes in than is delivered: oldest 1 min"),
        (stats("t", 5, oldest_ms=90_000, delivered_1min=49.0, enqueued_1min=60.0),
         TopicPolicy(deliveries_per_second_max=50), Movement.CAPPED, "capped at 50/s: 5 wait, 1 min"),
        (stats("t", 5, oldest_ms=90_000), TopicPolicy(dequeue_paused=True, reason="rain"),
         Movement.PAUSED, "paused: rain"),
        (stats("t", 5, oldest_ms=1, delivered_1min=10.0, failed_1min=9.7), PLAIN, Movement.FAILING,
         "97% of attempts fail, 9.7/s"),
    ],
)  # fmt: skip
def test_a_topic_is_judged_by_its_counts_rates_and_policy(
    row: TopicStats, policy: TopicPolicy, movement: Movement, words: str
) -> None:
    (found,) = index_of(row, policy=policy).rows.values()
    assert found.movement is movement
    assert found.why(NOW_MS).startswith(words)


def many(count: int) -> TopicIndex:
    chance = random.Random(7)
    areas = ("pay", "mail", "orders", "img")
    rows = [
        stats(f"{areas[at % 4]}.eu-{at % 3}.c{at:05}", chance.randrange(500), dead=chance.choice((0, 0, 0, 5)),
              oldest_ms=chance.randrange(300_000))
        for at in range(count)
    ]  # fmt: skip
    return index_of(*rows)


@pytest.mark.parametrize("order", [sign + key for key in ORDERS for sign in ("", "-")])
def test_pages_are_the_sorted_rows(order: str) -> None:
    index = many(1_000)
    key = ORDERS[order.removeprefix("-")]
    wanted = sorted(map(key, index.rows.values()), reverse=order.startswith("-"))
    found = [
        key(row)
        for first in range(0, 1_000, ROWS_PER_PAGE)
        for row in index.page(parsed_filter(""), order, first, NOW_MS).rows
    ]
    assert found == wanted


@pytest.mark.parametrize(
    "glob", ["pay*", "*eu-1*", "*.c0001*", "*", "pay.eu-0.c00000", "*0", "p*y*0*", "**", "[a]*", "mail"]
)
def test_globs_are_those_of_names(glob: str) -> None:
    index = many(300)
    found = index.page(parsed_filter(glob), "name", 0, NOW_MS).found
    names = {row.name for row in index.rows.values()}
    wanted = {name for name in names if fnmatchcase(name, glob.replace("[", "[[]"))} if "*" in glob else {
        name for name in names if glob in name
    }  # fmt: skip
    assert {row.name for row in found} == wanted


def test_words_of_a_filter_all_hold() -> None:
    index = many(300)
    found = index.page(parsed_filter("pay*  ready>100 dead=0 oldest>1m", ["dead", "nonsense"]), "name", 0, NOW_MS)
    assert found.topics_count == 0, "one has dead letters or not"
    found = index.page(parsed_filter("pay* ready>=100 oldest<=60s"), "name", 0, NOW_MS)
    wanted = [
        row for row in index.rows.values()
        if row.name.startswith("pay") and row.ready >= 100 and NOW_MS - row.oldest_at_ms <= 60_000
    ]  # fmt: skip
    assert found.topics_count == len(wanted) > 0
    assert (found.items_count, found.dead_count) == (sum(row.items for row in wanted), sum(row.dead for row in wanted))
    with pytest.raises(InvalidArgumentError, match="501 characters"):
        parsed_filter("x" * (FILTER_CHARS_MAX + 1))


def test_no_filter_takes_long_on_a_hostile_name() -> None:
    index = index_of(stats("a" * 255))
    began_s = time.perf_counter()
    index.page(parsed_filter("*a" * 120 + "*b"), "name", 0, NOW_MS)
    assert time.perf_counter() - began_s < 1


def test_only_a_lone_prefix_is_one() -> None:
    assert parsed_filter("pay*").prefix == "pay"
    assert parsed_filter("*").prefix == ""
    for text in ("pay", "*pay", "p*y*", "pay* dead>1", "a* b*", ""):
        assert parsed_filter(text).prefix is None, text
    assert parsed_filter("pay*", ["dead"]).prefix is None


def test_a_row_that_a_round_does_not_bring_goes_unless_parts_were_missing() -> None:
    index = index_of(stats("a"), stats("b"))
    index.take(stats("a", 3), PLAIN, None, NOW_MS)
    index.finish_round(NOW_MS, ["shard 2"])
    assert set(index.rows) == {"a", "b"}
    assert index.missing == ["shard 2"]
    index.take(stats("a", 4), PLAIN, None, NOW_MS)
    index.finish_round(NOW_MS + 5, [])
    assert [(row.name, row.ready) for row in index.rows.values()] == [("a", 4)]
    assert index.quick_counts()["items"] == 1
    assert index.sums()["ready"] == 4


def test_groups_of_a_topic_are_rows_of_their_own() -> None:
    one, other = stats("a", 1), stats("a", 2)
    other.group = "mails"
    index = index_of(one, other)
    assert sorted((row.name, row.group, row.ready) for row in index.rows.values()) == [("a", "", 1), ("a", "mails", 2)]


def test_the_longest_prefix_and_the_own_policy_hold() -> None:
    known = PoliciesKnown([
        TopicPolicyEntry(topic="pay", is_prefix=True, weight=2),
        TopicPolicyEntry(topic="pay.eu", is_prefix=True, weight=3),
        TopicPolicyEntry(topic="pay.eu.x", weight=4), TopicPolicyEntry(topic="pay.eu.x", group="g", weight=5),
    ])  # fmt: skip
    weights = [
        known.policy_of(*one).weight
        for one in (("mail",), ("pay",), ("pay.e",), ("pay.eu.y",), ("pay.eu.x",), ("pay.eu.x", "g"))
    ]
    assert weights == [1, 2, 2, 3, 4, 5]


def test_a_spark_has_its_points_in_the_box_and_leaves_unknown_slots_out() -> None:
    assert spark_of(None) is None
    assert spark_of([-1, 5]) is None
    found = spark_of([-1, 10, 20, -1, 15] * 40)
    assert found is not None
    assert found.label == "ready in 15 minutes: 10 to 15"
    for x, y in (point.split(",") for point in found.line.split()):
        assert 0 <= float(x) <= 96
        assert 0 <= float(y) <= 22
    assert re.fullmatch(r"0,22 .* 96,22", found.area)


def test_charts_are_rates_and_have_words_and_a_table() -> None:
    row = TopicRates("t")
    row.enqueued_series, row.ended_series, row.failed_series = [100, 200, -1], [10, 20, 30], [0, 0, 5]
    row.ready_series = [5, 6, 7]
    rates, ready = rate_charts(RatesPage([row], 60_000, 10_000), row)
    assert [line.values for line in rates.lines] == [[10.0, 20.0, None], [1.0, 2.0, 3.0], [0.0, 0.0, 0.5]]
    assert rates.summary == "Items a second, now: in 20, out 3.0, failed 0.5"
    assert rates.table[0] == ["00:01:20", "–", "3.0", "0.5"]
    assert ready.summary == "Ready, now: now 7"
    assert rate_charts(RatesPage([]), TopicRates("t")) == []


def test_waits_are_the_bounds_of_their_buckets() -> None:
    zeros = [0] * (len(BOUNDS_MS) + 1)
    first, second = list(zeros), list(zeros)
    first[0], first[3] = 99, 1
    second[-1] = 4
    rows = [HistoryRow("t", 60_000, wait_buckets=first), HistoryRow("t", 120_000, wait_buckets=second)]
    chart = wait_chart(History(rows, 1, 0))
    assert chart is not None
    assert [list(line.values) for line in chart.lines] == [
        [BOUNDS_MS[0] / 1_000, BOUNDS_MS[-1] / 1_000], [BOUNDS_MS[0] / 1_000, BOUNDS_MS[-1] / 1_000]
    ]  # fmt: skip
    assert wait_chart(History(rows[:1], 1, 0)) is None
