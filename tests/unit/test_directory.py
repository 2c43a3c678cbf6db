"""The home of topics: who has items, and who hears of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from foqs.cluster.homes.directory import (
    OLDER_MS_MIN,
    PROMISE_MS,
    STOCK_MS_MAX,
    TOPICS_OF_HOME_MAX,
    Directory,
    best_of,
)
from foqs.cluster.homes.host_interests import INTEREST_MS_MAX, INTEREST_TOPICS_MAX
from foqs.model.aging import PLACE_UNIT_MS
from foqs.model.stocks import NO_STOCK, Pointer, Stock

TOPIC = (1, "mail")


def first(count: int) -> int:
    return 0


def made(choose: Callable[[int], int] = first) -> Directory:
    return Directory(choose)


def test_who_asks_is_told_of_the_host_that_has_items() -> None:
    home = made()
    assert home.report("a", TOPIC, Stock(5, 3, 70), 0.0) == []
    assert home.find("b", TOPIC, 1, 0.1) == Pointer(TOPIC, "a", Stock(5, 3, 70))


def test_nobody_is_told_of_himself() -> None:
    home = made()
    home.report("a", TOPIC, Stock(5), 0.0)
    assert home.find("a", TOPIC, 1, 0.1) is None


def test_who_waits_gets_a_hint_when_there_is_an_item() -> None:
    home = made()
    assert home.find("b", TOPIC, 1, 0.0) is None
    assert home.report("a", TOPIC, Stock(1, 0, 5), 1.0) == [("b", Pointer(TOPIC, "a", Stock(1, 0, 5)))]
    assert home.report("a", TOPIC, Stock(1, 0, 5), 1.1) == [], "a hint ends the interest"


def test_an_interest_that_is_not_repeated_ends() -> None:
    home = made()
    home.find("b", TOPIC, 1, 0.0)
    assert home.report("a", TOPIC, Stock(1), INTEREST_MS_MAX / 1000) == []


def test_as_many_hosts_get_a_hint_as_there_are_items() -> None:
    home = made()
    for host in "bcd":
        home.find(host, TOPIC, 2, 0.0)
    assert [waiting for waiting, _ in home.report("a", TOPIC, Stock(3), 0.1)] == ["b", "c"]


def test_items_that_somebody_was_sent_for_are_not_told_to_others_for_a_while() -> None:
    home = made()
    home.report("a", TOPIC, Stock(2), 0.0)
    assert home.find("b", TOPIC, 2, 0.0) is not None
    assert home.find("c", TOPIC, 1, 0.1) is None
    assert home.find("c", TOPIC, 1, PROMISE_MS / 1000) is not None, "the first one may not have come"


def test_a_report_says_what_is_left_whatever_was_promised() -> None:
    home = made()
    home.report("a", TOPIC, Stock(2), 0.0)
    home.find("b", TOPIC, 2, 0.0)
    home.report("a", TOPIC, Stock(7), 0.1)
    assert home.find("c", TOPIC, 1, 0.1) == Pointer(TOPIC, "a", Stock(7))


def test_the_more_urgent_items_go_first_whatever_their_age() -> None:
    home = made()
    home.report("a", TOPIC, Stock(5, 3, 0), 0.0)
    home.report("b", TOPIC, Stock(1, 2, 90_000), 0.0)
    assert home.find("c", TOPIC, 1, 0.0) == Pointer(TOPIC, "b", Stock(1, 2, 90_000))


def test_of_a_topic_that_ages_the_first_place_counts_and_not_the_priority() -> None:
    home = made()
    urgent, waiting = Stock(5, 0, 90_000, 900), Stock(9, 7, 0, 500)
    home.report("a", TOPIC, urgent, 0.0)
    home.report("b", TOPIC, waiting, 0.0)
    assert home.better("a", TOPIC, urgent, 0.0) == Pointer(TOPIC, "b", waiting)
    assert home.better("b", TOPIC, waiting, 0.0) is None
    assert home.find("c", TOPIC, 1, 0.0) == Pointer(TOPIC, "b", waiting)


def test_places_that_differ_by_less_than_the_age_that_counts_are_as_good() -> None:
    home = made(lambda count: count - 1)
    near = 500 + OLDER_MS_MIN // PLACE_UNIT_MS
    home.report("a", TOPIC, Stock(5, 0, 90_000, near), 0.0)
    home.report("b", TOPIC, Stock(9, 7, 0, 500), 0.0)
    home.report("c", TOPIC, Stock(1, 7, 0, near + 1), 0.0)
    assert home.better("d", TOPIC, Stock(1, 9, 0, near), 0.0) is None
    assert home.better("d", TOPIC, Stock(1, 9, 0, near + 1), 0.0) == Pointer(TOPIC, "b", Stock(9, 7, 0, 500))
    found = home.find("d", TOPIC, 1, 0.0)
    assert found is not None
    assert found.host_id == "b", "the last one of a and b"


def test_a_host_that_knows_of_no_aging_yet_is_compared_by_its_priority() -> None:
    home = made()
    home.report("a", TOPIC, Stock(5, 3, 0), 0.0)
    home.report("b", TOPIC, Stock(5, 0, 0, 900), 0.0)
    assert home.find("c", TOPIC, 1, 0.0) == Pointer(TOPIC, "a", Stock(5, 3, 0))


def test_chance_decides_among_those_that_have_waited_about_as_long() -> None:
    drawn: list[int] = []

    def choose(count: int) -> int:
        drawn.append(count)
        return count - 1

    home = made(choose)
    home.report("a", TOPIC, Stock(9, 3, 0), 0.0)
    home.report("b", TOPIC, Stock(9, 3, OLDER_MS_MIN), 0.0)
    home.report("c", TOPIC, Stock(9, 3, OLDER_MS_MIN + 1), 0.0)
    found = home.find("d", TOPIC, 1, 0.0)
    assert found is not None
    assert (found.host_id, drawn) == ("b", [2])


def test_a_host_hears_of_items_that_should_go_before_its_own() -> None:
    home = made()
    home.report("a", TOPIC, Stock(5, 3, 5_000), 0.0)
    assert home.better("b", TOPIC, Stock(5, 2, 9_999), 0.0) is None, "its own are more urgent"
    assert home.better("b", TOPIC, Stock(5, 3, 5_000 + OLDER_MS_MIN), 0.0) is None, "they are about as old"
    assert home.better("b", TOPIC, Stock(5, 3, 5_001 + OLDER_MS_MIN), 0.0) is not None
    assert home.better("b", TOPIC, Stock(5, 4, 0), 0.0) is not None
    assert home.better("b", TOPIC, NO_STOCK, 0.0) is not None


def test_what_was_not_reported_again_and_whoever_is_gone_is_forgotten() -> None:
    home = made()
    home.report("a", TOPIC, Stock(5), 0.0)
    assert home.find("b", TOPIC, 1, STOCK_MS_MAX / 1000 + 0.1) is None
    home.keep({"a", "b", "c"}, 20.0)
    home.report("a", TOPIC, Stock(5), 20.0)
    assert home.find("c", (1, "waits"), 1, 20.0) is None
    home.keep({"b"}, 20.0)
    assert home.find("b", TOPIC, 1, 20.0) is None
    assert home.better("b", TOPIC, NO_STOCK, 20.0) is None
    assert home.report("b", (1, "waits"), Stock(5), 20.0) == []
    home.report("b", (1, "waits"), NO_STOCK, 20.0)
    home.sweep(10, 20.0 + STOCK_MS_MAX / 1000 + 0.1)
    home.forget_interests(10, 20.0 + STOCK_MS_MAX / 1000 + 0.1)
    assert len(home) == 0


def test_a_host_that_lives_again_is_believed_again() -> None:
    home = made()
    home.keep({"a", "b"}, 0.0)
    home.keep({"b"}, 1.0)
    home.keep({"a", "b"}, 2.0)
    home.report("a", TOPIC, Stock(5), 2.0)
    assert home.find("b", TOPIC, 1, 2.0) is not None


def test_a_host_that_goes_is_forgotten_without_a_look_at_all_topics() -> None:
    home = made()
    home.keep({"a", "b"}, 0.0)

    class Topics(dict[Any, Any]):
        def __iter__(self) -> Any:
            raise AssertionError("there may be 200,000 topics")

        items = keys = values = __iter__

    home._entries = Topics()
    home.keep({"b"}, 1.0)


def test_nothing_is_kept_of_topics_that_nobody_has_or_wants() -> None:
    home = made()
    for number in range(100):
        home.find("a", (1, str(number)), 1, 0.0)
        home.report("b", (2, str(number)), Stock(1), 0.0)
        home.report("b", (2, str(number)), NO_STOCK, 0.0)
    assert len(home) == 100
    assert home.forget_interests(60, INTEREST_MS_MAX / 1000), "there are more"
    assert not home.forget_interests(60, INTEREST_MS_MAX / 1000)
    assert len(home) == 0


@pytest.mark.deep
def test_there_is_a_bound_on_the_topics_of_a_home() -> None:
    """A host that has more of them loses those that it has told first, and nobody else loses any."""
    home = made()
    home.report("b", (1, "of b"), Stock(1), 0.0)
    for number in range(TOPICS_OF_HOME_MAX + 1):
        home.report("a", (1, str(number)), Stock(1), 0.0)
    assert len(home) == TOPICS_OF_HOME_MAX + 1
    assert home.find("b", (1, "0"), 1, 0.0) is None
    assert home.find("b", (1, str(TOPICS_OF_HOME_MAX)), 1, 0.0) is not None
    assert home.find("a", (1, "of b"), 1, 0.0) is not None


def poll(home: Directory, namespace: int, count: int, now_s: float) -> None:
    """A host asks for topics that nobody has and that nobody asks for again."""
    for number in range(count):
        home.find("b", (namespace, f"{now_s}-{number}"), 1, now_s)


def test_items_are_found_however_many_topics_are_asked_for_that_nobody_has() -> None:
    home = made()
    poll(home, 1, TOPICS_OF_HOME_MAX, 0.0)
    home.report("a", (2, "mail"), Stock(5), 0.1)
    assert home.find("c", (2, "mail"), 1, 0.2) is not None


def test_interests_of_one_namespace_leave_room_for_those_of_others() -> None:
    home = made()
    for namespace in (1, 2, 3):
        poll(home, namespace, INTEREST_TOPICS_MAX, 0.0)
    assert len(home) < INTEREST_TOPICS_MAX
    assert home.find("c", (4, "mail"), 1, 0.1) is None
    assert home.report("a", (4, "mail"), Stock(1), 0.2) == [("c", Pointer((4, "mail"), "a", Stock(1)))]


@pytest.mark.deep
def test_an_interest_that_is_told_again_keeps_its_place_however_many_others_come() -> None:
    home = made()
    for second in range(10):
        home.find("c", TOPIC, 1, float(second))
        poll(home, TOPIC[0], INTEREST_TOPICS_MAX, second + 0.5)
        while home.forget_interests(1_000, second + 0.9):
            pass
    assert home.report("a", TOPIC, Stock(1), 10.0) == [("c", Pointer(TOPIC, "a", Stock(1)))]


def test_interests_that_have_ended_are_as_few_as_those_that_come_in_their_time_and_make_room_for_new_ones() -> None:
    home, a_second = made(), INTEREST_TOPICS_MAX // 5
    for second in range(10):
        poll(home, 1, a_second, float(second))
        assert len(home) <= (INTEREST_MS_MAX / 1000 + 1) * a_second
        while home.forget_interests(1_000, second + 0.9):
            pass
    home.find("c", (1, "mail"), 1, 10.0)
    assert home.report("a", (1, "mail"), Stock(1), 10.1) != []


def test_who_waits_for_what_the_only_holder_has_no_more_hears_of_the_next_one() -> None:
    home = made()
    home.report("a", TOPIC, Stock(1), 0.0)
    assert home.find("a", TOPIC, 1, 0.1) is None
    home.report("a", TOPIC, NO_STOCK, 0.2)
    assert home.report("b", TOPIC, Stock(1), 0.3) == [("a", Pointer(TOPIC, "b", Stock(1)))]
    home.report("b", TOPIC, NO_STOCK, 0.4)
    assert len(home) == 0


def test_of_several_topics_the_most_urgent_goes_first() -> None:
    late, soon = Pointer(TOPIC, "a", Stock(1, 5, 0)), Pointer((1, "x"), "b", Stock(1, 4, 9))
    assert best_of([late, soon]) == soon
    assert best_of([]) is None
