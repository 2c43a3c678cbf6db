"""What a host reports of its topics: which of them consumers here want, and how many names it keeps to know that."""

from __future__ import annotations

from foqs.cluster.homes.asked_topics import ASKED_MS, ASKED_TOPICS_MAX
from foqs.cluster.homes.topic_reports import CHANGE_MS, FLUSH_MS, TopicReports
from foqs.model import limits
from foqs.model.stocks import ANY_TOPIC, NO_STOCK, Stock, Topic

TOPIC = (1, "mail")
TURNS_MS = 2 * ASKED_MS


class Local:
    """A host with ready items of some topics, on which no call waits."""

    def __init__(self) -> None:
        self.stocks: dict[Topic, Stock] = {}

    def stock(self, topic: Topic) -> Stock:
        return self.stocks.get(topic, NO_STOCK)

    def is_waited_for(self, topic: Topic) -> bool:
        return False

    def weight(self, topic: Topic) -> int:
        return 1


def names(first: int, count: int) -> dict[Topic, None]:
    return {(1, f"reply-{number}"): None for number in range(first, first + count)}


def is_wanted(reports: TopicReports, local: Local, topic: Topic, now_s: float) -> bool:
    """What the report of the first ready items of a topic says."""
    local.stocks[topic] = Stock(1)
    reports.changed(topic, now_s)
    return reports.take_due(now_s + 0.1)[topic].is_wanted


def test_the_first_report_of_a_topic_that_consumers_have_asked_for_says_so_and_later_ones_no_more() -> None:
    local, other = Local(), (2, "mail")
    reports = TopicReports(local, 0.0)
    reports.asked({TOPIC: None, other: None}, 0.0)
    reports.refresh_any(ASKED_MS / 1000 - 0.2)
    assert is_wanted(reports, local, TOPIC, ASKED_MS / 1000 - 0.2)
    for second in range(TURNS_MS // 1000 + 1):
        reports.refresh_any(float(second))
    assert not is_wanted(reports, local, other, TURNS_MS / 1000)


def test_the_names_that_consumers_ask_for_are_bounded_and_gone_soon_after_the_last_call() -> None:
    reports, count = TopicReports(Local(), 0.0), 0
    for second in range(20):
        for call in range(30):
            reports.asked(names(count, limits.DEQUEUE_TOPICS_MAX), second + call / 30)
            count += limits.DEQUEUE_TOPICS_MAX
            assert len(reports._asked) <= 2 * (ASKED_TOPICS_MAX + limits.DEQUEUE_TOPICS_MAX)
        reports.refresh_any(second + 1.0)
    for second in range(20, 21 + TURNS_MS // 1000):
        reports.refresh_any(float(second))
    assert len(reports._asked) == 0


def test_of_too_many_names_those_that_are_asked_for_all_the_time_are_known() -> None:
    local = Local()
    reports = TopicReports(local, 0.0)
    for call in range(100):
        reports.asked(names(call * 1_000, 1_000), call / 100)
        reports.asked({TOPIC: None}, call / 100)
    assert is_wanted(reports, local, TOPIC, 1.0)


def test_who_has_items_of_any_topic_is_asked_for_every_second_for_as_long_as_consumers_want_any() -> None:
    local, any_topic = Local(), (1, ANY_TOPIC)
    reports = TopicReports(local, 0.0)
    assert not reports.asked_any((1, ANY_TOPIC), 0.0), "there is nothing to report"
    assert not is_wanted(reports, local, TOPIC, 0.1)
    assert reports.asked_any((2, ANY_TOPIC), 0.3) is False
    reports.refresh_any(0.5)
    assert reports.take_due(0.6)[any_topic].is_wanted
    reports.refresh_any(1.5)
    assert reports.take_due(1.6)[any_topic].is_wanted
    for second in (2.5, 3.5, 4.5):
        reports.refresh_any(second)
        reports.take_due(second + 0.1)
    assert reports.asked_any((1, ANY_TOPIC), 5.0), "those who come anew hear at once who has some"
    assert reports.take_due(5.1)[any_topic].is_wanted
    assert not reports.asked_any((1, ANY_TOPIC), 5.2)


def test_what_is_looked_for_every_second_does_not_grow_with_the_names_that_were_asked_for() -> None:
    reports = TopicReports(Local(), 0.0)
    reports.asked(names(0, limits.DEQUEUE_TOPICS_MAX), 0.0)
    reports.asked_any((1, ANY_TOPIC), 0.0)
    assert list(reports._asked_any) == [(1, ANY_TOPIC)]


def due(reports: TopicReports, now_s: float) -> dict[Topic, int]:
    return {topic: reported.stock.ready_count for topic, reported in reports.take_due(now_s).items() if topic[1]}


def changes(reports: TopicReports, local: Local, stock: Stock, now_s: float) -> None:
    local.stocks[TOPIC] = stock
    reports.changed(TOPIC, now_s)


def test_items_that_come_after_others_have_pulled_all_are_reported_at_once() -> None:
    local = Local()
    reports = TopicReports(local, 0.0)
    for number in range(100):
        now_s = number * 0.05
        changes(reports, local, Stock(1), now_s)
        assert due(reports, now_s + FLUSH_MS / 1000) == {TOPIC: 1}, "twenty items a second, and each is pulled"
        changes(reports, local, NO_STOCK, now_s + 0.005)
        reports.pulled(TOPIC, 1, now_s + 0.006)


def test_an_item_that_came_before_the_last_one_was_pulled_is_reported_when_that_is() -> None:
    local = Local()
    reports = TopicReports(local, 0.0)
    changes(reports, local, Stock(1), 0.0)
    assert due(reports, 0.01) == {TOPIC: 1}
    changes(reports, local, Stock(2), 0.01)
    local.stocks[TOPIC] = Stock(1)
    assert reports.pulled(TOPIC, 1, 0.015)
    assert due(reports, 0.02) == {TOPIC: 1}


def test_while_others_know_of_items_that_are_left_changes_wait() -> None:
    local = Local()
    reports = TopicReports(local, 0.0)
    changes(reports, local, Stock(100), 0.0)
    assert due(reports, 0.01) == {TOPIC: 100}
    for number in range(9):
        changes(reports, local, Stock(91 - number), 0.01 + number / 100)
        assert not reports.pulled(TOPIC, 10, 0.01 + number / 100)
        assert due(reports, 0.015 + number / 100) == {}


def test_that_nothing_is_left_is_reported_with_the_changes_and_once() -> None:
    local = Local()
    reports = TopicReports(local, 0.0)
    changes(reports, local, Stock(1), 0.0)
    assert due(reports, 0.01) == {TOPIC: 1}
    changes(reports, local, NO_STOCK, 0.011)
    assert not reports.pulled(TOPIC, 1, 0.012)
    assert due(reports, 0.1) == {}
    assert due(reports, 0.011 + CHANGE_MS / 1000) == {TOPIC: 0}
    assert due(reports, 1.0) == {}
