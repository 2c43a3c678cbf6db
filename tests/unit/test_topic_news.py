"""Hosts tell each other of topics: who waits hears of items, wherever they are and whoever is the home."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from unittest.mock import patch

import pytest

from foqs.cluster import topic_news, topic_reports
from foqs.cluster.directory import OLDER_MS_MIN
from foqs.cluster.homes import Reported, home_of
from foqs.cluster.topic_news import TopicNews
from foqs.model.errors import UnavailableError
from foqs.model.stocks import ANY_TOPIC, NO_STOCK, Pointer, Stock, Topic
from tests.support.waiting import PATIENCE_S, until

TOPIC = (1, "mail")
NAMES = ["a", "b", "c"]


class Net:
    """Hosts that reach each other, those that are not cut off."""

    def __init__(self) -> None:
        self.news: dict[str, TopicNews] = {}
        self.stocks: dict[str, dict[Topic, Stock]] = {name: {} for name in NAMES}
        self.cut_off: set[str] = set()
        self.host_ids: Sequence[str] = NAMES
        self.reports_count = 0

    def _at(self, host_id: str) -> TopicNews:
        if host_id in self.cut_off:
            raise UnavailableError(f"{host_id} is away", nothing_done=True)
        return self.news[host_id]


class Homes:
    """The net as one host sees it."""

    def __init__(self, net: Net, me: str) -> None:
        self._net = net
        self._me = me

    @property
    def host_ids(self) -> Sequence[str]:
        return self._net.host_ids

    async def report(self, host_id: str, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
        self._net.reports_count += len(stocks)
        return self._net._at(host_id).reported(self._me, stocks)

    async def seek(self, host_id: str, wishes: Mapping[Topic, int]) -> Sequence[Pointer]:
        return self._net._at(host_id).sought(self._me, wishes)

    async def hint(self, host_id: str, pointers: Sequence[Pointer]) -> None:
        self._net._at(host_id).hinted(pointers)


class Local:
    def __init__(self, net: Net, me: str) -> None:
        self._net = net
        self._me = me

    def stock(self, topic: Topic) -> Stock:
        return self._net.stocks[self._me].get(topic, NO_STOCK)

    def is_waited_for(self, topic: Topic) -> bool:
        return False

    def weight(self, topic: Topic) -> int:
        return 1


@asynccontextmanager
async def three_hosts() -> AsyncIterator[Net]:
    net = Net()
    now_s = asyncio.get_running_loop().time
    for name in NAMES:
        net.news[name] = TopicNews(name, Homes(net, name), Local(net, name), lambda count: 0, now_s)
    for news in net.news.values():
        await news.start()
        news.members(NAMES, NAMES)
    try:
        yield net
    finally:
        for news in net.news.values():
            await news.stop()


def put(net: Net, host: str, stock: Stock, topic: Topic = TOPIC) -> None:
    net.stocks[host][topic] = stock
    net.news[host].changed(topic)


def topic_of(home: str) -> Topic:
    """A topic with this home."""
    return next((1, str(number)) for number in range(1_000) if home_of((1, str(number)), NAMES) == home)


@pytest.mark.parametrize("home", NAMES)
async def test_who_waits_hears_of_an_item_that_comes_to_another_host(home: str) -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        topic = topic_of(home)
        wait = net.news["b"].wait({topic: 1})
        await asyncio.sleep(0)
        put(net, "a", Stock(1, 0, 5), topic)
        await wait.arrived()
        assert wait.take() == [Pointer(topic, "a", Stock(1, 0, 5))]


@pytest.mark.parametrize("home", NAMES)
async def test_who_begins_to_wait_hears_of_what_is_there(home: str) -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        topic = topic_of(home)
        put(net, "a", Stock(7), topic)
        wait = net.news["c"].wait({topic: 3})
        await wait.arrived()
        assert wait.take()[0].host_id == "a"


async def test_a_home_that_is_away_is_soon_no_home_for_anybody() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        topic = topic_of("c")
        net.cut_off.add("c")
        wait = net.news["b"].wait({topic: 1})
        put(net, "a", Stock(1), topic)
        await wait.arrived()
        assert wait.take()[0].host_id == "a"


async def test_a_new_home_is_told_all_that_there_is() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        topic = topic_of("c")
        put(net, "a", Stock(1), topic)
        await until(lambda: len(net.news["c"].directory) > 0)
        for name in ("a", "b"):
            net.news[name].members(["a", "b"], ["a", "b"])
        wait = net.news["b"].wait({topic: 1})
        await wait.arrived()
        assert wait.take()[0].host_id == "a"


async def test_nothing_is_told_to_a_host_that_leaves_and_what_it_has_is_found() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        for news in net.news.values():
            news.members(NAMES, ["a", "b"])
        net.cut_off.add("c")
        put(net, "a", Stock(1), topic_of("c"))
        put(net, "c", Stock(1))
        for topic, holder in ((topic_of("c"), "a"), (TOPIC, "c")):
            wait = net.news["b"].wait({topic: 1})
            await wait.arrived()
            assert wait.take()[0].host_id == holder
        for host, home in (("a", "b"), ("b", "a")):
            assert net.news[host]._home.hosts == ("a", "b"), "it is not even suspected"
            assert home in net.news[host]._home.members


async def test_consumers_hear_of_items_that_should_go_before_those_of_their_host() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        put(net, "a", Stock(1, 0, 0))
        await until(lambda: any(len(news.directory) for news in net.news.values()))
        news = net.news["b"]
        assert news.better([TOPIC]) is None
        news.asked([TOPIC])
        put(net, "b", Stock(1, 0, OLDER_MS_MIN + 1))
        await until(lambda: news.better([TOPIC]) is not None)
        pointer = news.better([TOPIC])
        assert pointer is not None
        assert pointer.host_id == "a"
        news.was_exhausted(pointer)
        assert news.better([TOPIC]) is None


async def test_what_a_waiting_call_is_told_keeps_no_later_call_from_the_items_of_its_own_host() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        put(net, "a", Stock(1_000))
        news = net.news["b"]
        wait = news.wait({TOPIC: 1})
        await wait.arrived()
        assert wait.take()[0].host_id == "a"
        assert news.better([TOPIC]) is None


async def test_a_host_whose_items_go_before_is_forgotten_when_the_home_says_so_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topic_reports, "CHANGE_MS", 1)
    monkeypatch.setattr(topic_news, "POINTER_MS_MAX", 10 * PATIENCE_S * 1_000)
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        news = net.news["b"]
        news.asked([TOPIC])
        put(net, "a", Stock(1, 3))
        await until(lambda: any(TOPIC in host.directory._entries for host in net.news.values()))
        put(net, "b", Stock(1, 7))
        await until(lambda: news.better([TOPIC]) is not None)
        put(net, "b", Stock(1, 3))
        await until(lambda: news.better([TOPIC]) is None)


async def test_what_changes_all_the_time_is_not_reported_all_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_reports, "CHANGE_MS", 60_000)
    async with three_hosts() as net:
        topic = topic_of("c")
        for count in range(1, 50):
            put(net, "a", Stock(count), topic)
            await asyncio.sleep(0.001)
        assert net.reports_count == 2, "the topic, and that the namespace has any"


async def test_the_age_of_news_is_that_of_the_oldest_report_without_a_response() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        is_let_through = asyncio.Event()

        async def hang(host_id: str, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
            await is_let_through.wait()
            return []

        news = net.news["a"]
        assert news.age_s() == 0
        with patch.object(news._homes, "report", hang):
            put(net, "a", Stock(1), topic_of("c"))
            await until(lambda: news.age_s() > 0.02)
            is_let_through.set()
            await until(lambda: news.age_s() == 0)


def test_topics_that_have_other_homes_are_told_in_portions_however_many_there_are() -> None:
    count = 3 * topic_reports.REPORTS_PER_SECOND_MAX
    net = Net()
    topics = [(1, str(number)) for number in range(count)]
    net.stocks["a"] = dict.fromkeys(topics, Stock(1))
    reports = topic_reports.TopicReports(Local(net, "a"), 0.0)
    for topic in topics:
        reports.changed(topic, 0.0)
    told = [set(reports.take_due(float(second))) - {(1, ANY_TOPIC)} for second in range(1, 5)]
    assert set().union(*told) == set(topics)
    reports.tell_all(4.0)
    assert (4.0 - reports.due_since_s(4.0), reports.next_s(4.0)) == (0.0, 4.0 + topic_reports.FLUSH_MS / 1000)
    again = [set(reports.take_due(4.0 + second)) for second in range(1, 5)]
    assert set().union(*again) >= set(topics)
    assert max(map(len, again)) <= topic_reports.REPORTS_PER_SECOND_MAX


def test_few_topics_get_another_home_when_a_host_goes() -> None:
    topics = [(1, f"topic-{number}") for number in range(3_000)]
    before = {topic: home_of(topic, NAMES) for topic in topics}
    counts = [list(before.values()).count(name) for name in NAMES]
    assert min(counts) > 800, counts
    for topic, home in before.items():
        if home != "c":
            assert home_of(topic, ["a", "b"]) == home
