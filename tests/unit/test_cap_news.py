"""Which hosts share caps, and which of them are homes of caps."""

from __future__ import annotations

from unittest.mock import Mock

from foqs.cluster.cap_news import CapCalls, CapNews, LocalCaps

KEYS = [(1, f"t{number}") for number in range(50)]


def test_a_host_that_leaves_is_the_home_of_no_cap_and_has_a_part_in_caps_until_it_is_gone() -> None:
    news = CapNews("a", Mock(spec=CapCalls), Mock(spec=LocalCaps), lambda: 0.0)
    news.members(["a", "b"], ["a", "b"])
    version = news.version
    assert {news.home_of(key) for key in KEYS} == {"a", "b"}
    news.members(["a", "b"], ["b"])
    assert news.version > version
    assert {news.home_of(key) for key in KEYS} == {"b"}
    assert news.hosts_count == 2


def test_hosts_that_all_leave_are_homes_until_they_are_gone() -> None:
    news = CapNews("a", Mock(spec=CapCalls), Mock(spec=LocalCaps), lambda: 0.0)
    news.members(["a", "b"], [])
    assert {news.home_of(key) for key in KEYS} == {"a", "b"}
