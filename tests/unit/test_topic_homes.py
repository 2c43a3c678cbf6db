"""Hosts tell each other of topics: who waits hears of items, wherever they are and whoever is the home."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from itertools import pairwise
from unittest.mock import patch

import pytest
from structlog.testing import capture_logs

from foqs.cluster.homes import interests as topic_interests
from foqs.cluster.homes import topic_homes, topic_reports
from foqs.cluster.homes.directory import OLDER_MS_MIN, Directory
from foqs.cluster.homes.home_table import CHECK_MS, SILENT_CHECKS, HomeTable, home_of
from foqs.cluster.homes.host_interests import INTEREST_MS_MAX
from foqs.cluster.homes.topic_homes import FIND_MS, TopicHomes
from foqs.cluster.homes.topic_reports import TopicReports
from foqs.model.stocks import ANY_TOPIC, Pointer, Reported, Stock, Topic
from tests.support.topic_net import NAMES, STEP_MS, TOPIC, Link, Local, Net, TimedNet, links, put
from tests.support.waiting import PATIENCE_S, until


@pytest.fixture
def timed_net() -> Iterator[TimedNet]:
    net = TimedNet()
    yield net
    net.close()


@asynccontextmanager
async def three_hosts() -> AsyncIterator[Net]:
    net = Net()
    now_s = asyncio.get_running_loop().time
    for name in NAMES:
        net.news[name] = TopicHomes(name, links(net, name), Local(net, name), lambda count: 0, now_s)
    for news in net.news.values():
        await news.start()
        news.members(NAMES, NAMES)
    try:
        yield net
    finally:
        for news in net.news.values():
            await news.stop()


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


async def test_who_does_not_wait_hears_at_once_that_nobody_has_anything() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        wait = net.news["b"].wait({topic_of(home): 1 for home in NAMES})
        await wait.answered()
        assert wait.take() == []
        put(net, "a", Stock(1), topic_of("c"))
        await wait.arrived()
        assert wait.take()[0].host_id == "a", "it would hear of an item that comes later"


async def test_a_call_hears_of_what_one_before_it_was_told_of_and_has_not_fetched() -> None:
    """A call that names many topics fetches one of them. The home keeps the items of the others for this host."""
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        topics = [topic_of(home) for home in NAMES]
        for topic in topics:
            put(net, "a", Stock(2), topic)
        news = net.news["b"]
        wait, told = news.wait(dict.fromkeys(topics, 2)), list[Pointer]()
        while len(told) < len(topics):
            await wait.arrived()
            told += wait.take()
        news.keep_unused(told[1:])
        news.leave(wait)
        assert {one.topic for one in news.wait(dict.fromkeys(topics, 2)).take()} == {one.topic for one in told[1:]}
        assert news.wait(dict.fromkeys(topics, 2)).take() == [], "what was told once more is not told again"


async def test_a_home_that_is_away_is_soon_no_home_for_anybody() -> None:
    async with three_hosts() as net, asyncio.timeout(PATIENCE_S):
        topic = topic_of("c")
        net.cut_off.add("c")
        wait = net.news["b"].wait({topic: 1})
        put(net, "a", Stock(1), topic)
        await wait.arrived()
        assert wait.take()[0].host_id == "a"


def test_a_host_that_does_not_answer_has_one_message_with_hints_on_the_way_and_gets_all_others_together(
    timed_net: TimedNet,
) -> None:
    net = timed_net
    topics = [topic for number in range(100) if home_of(topic := (1, str(number)), NAMES) == "c"]
    wait = net.loop.call(net.news["b"].wait, dict.fromkeys(topics, 1))
    net.pass_ms(STEP_MS)
    net.freeze("b")
    for topic in topics:
        net.put("a", Stock(1), topic)
        net.pass_ms(STEP_MS)
    assert len(topics) > 20
    assert [(sender, waiting, len(hints)) for sender, waiting, hints in net.hints] == [("c", "b", 1)]
    net.thaw("b")
    assert {topic for topic, _ in wait.pointers} == set(topics)
    assert len(net.hints) == 2


SILENT_MS = SILENT_CHECKS * CHECK_MS


def test_a_home_that_is_frozen_is_soon_no_home_for_anybody(timed_net: TimedNet) -> None:
    net, topic = timed_net, topic_of("c")
    net.freeze("c")
    wait = net.loop.call(net.news["b"].wait, {topic: 1})
    net.put("a", Stock(1), topic)
    net.pass_ms(SILENT_MS + STEP_MS)
    net.pass_ms(STEP_MS)
    assert [pointer.host_id for pointer in wait.take()] == ["a"]
    net.pass_ms(10_000)
    assert net.homes("a") == net.homes("b") == ("a", "b"), "for as long as it is silent"
    assert net.news["a"].age_s() == 0, "another one was told in its place"


def test_a_home_that_was_slow_for_once_is_the_home_again_with_its_answer(timed_net: TimedNet) -> None:
    net, topic = timed_net, topic_of("c")
    net.freeze("c")
    net.put("a", Stock(1), topic)
    net.pass_ms(SILENT_MS + STEP_MS)
    assert net.homes("a") == ("a", "b")
    net.thaw("c")
    assert net.homes("a") == tuple(NAMES)
    wait = net.loop.call(net.news["b"].wait, {topic: 1})
    net.pass_ms(STEP_MS)
    assert [pointer.host_id for pointer in wait.take()] == ["a"]


def test_a_home_of_which_but_one_answer_is_late_is_not_suspected() -> None:
    homes = HomeTable()
    homes.live(NAMES)
    slow = homes.call("c")
    for _ in range(10):
        assert not homes.check(slow)
        homes.answered(homes.call("c"))
    assert homes.hosts == tuple(NAMES)
    assert [homes.check(slow) for _ in range(SILENT_CHECKS + 1)] == [False] * SILENT_CHECKS + [True]


def test_a_home_is_suspected_until_the_last_call_that_met_its_silence_has_failed() -> None:
    homes = HomeTable()
    homes.live(NAMES)
    calls = [homes.call("c"), homes.call("c")]
    for call in calls * SILENT_CHECKS:
        homes.check(call)
    assert [homes.failed(call) for call in calls] == [False, True]
    assert homes.hosts == tuple(NAMES)


def test_a_host_that_has_stood_still_itself_suspects_nobody(timed_net: TimedNet) -> None:
    """Its timers ring late, and before it reads what has come meanwhile."""
    net = timed_net
    net.freeze("c")
    net.put("a", Stock(1), topic_of("c"))
    net.loop._now_s += 10 * SILENT_MS / 1000
    net.loop.turn()
    net.loop.move_to(net.loop.time())
    assert net.homes("a") == tuple(NAMES)


def test_the_loop_does_other_work_between_two_portions_of_many_interests(
    timed_net: TimedNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of them are told again within a second, in as few messages as before."""
    net, topics = timed_net, [(1, str(number)) for number in range(9_000)]
    for topic in topics:
        net.loop.call(net.news["b"].wait, {topic: 1})
    net.loop.turn()
    net.seeks.clear()
    work = Counter[int]()
    """How many interests were looked at, or told, in each turn of other work."""
    turns_count = 0

    def other_work() -> None:
        nonlocal turns_count
        turns_count += 1
        if turns_count < 1_000:
            net.loop.call_soon(other_work)

    def noted(count: int) -> int:
        if not work:
            net.loop.call_soon(other_work)
        work[turns_count] += count
        return count

    get, find = HomeTable.get, TopicHomes.find
    monkeypatch.setattr(HomeTable, "get", lambda *at: noted(1) and get(*at))
    monkeypatch.setattr(TopicHomes, "find", lambda at, host_id, some: noted(len(some)) and find(at, host_id, some))
    net.loop.move_to(topic_homes.FIND_MS / 1000)
    told: Counter[Topic] = Counter()
    for _, _, some in net.seeks:
        told.update(some.keys())
    assert told == Counter([topic for topic in topics if home_of(topic, NAMES) != "b"])
    assert max(work.values()) <= topic_interests.INTERESTS_PER_RUN_MAX
    assert len(net.seeks) <= 2 + len(topics) / topic_homes.TOPICS_PER_MESSAGE_MAX


def test_a_home_forgets_interests_that_have_ended_within_a_second_and_does_other_work_meanwhile(
    timed_net: TimedNet, monkeypatch: pytest.MonkeyPatch
) -> None:
    net, home = timed_net, timed_net.news["a"]
    left_counts = list[int]()
    """How many topics are known in each turn of other work."""

    def other_work() -> None:
        left_counts.append(len(home.directory))
        if left_counts[-1]:
            net.loop.call_soon(other_work)

    forget = Directory.forget_interests

    def begun(directory: Directory, count: int, now_s: float) -> bool:
        if directory is home.directory and not left_counts:
            other_work()
        return forget(directory, count, now_s)

    # Of two namespaces: one alone may not have all places of a host.
    home.find("b", {(number % 2, str(number)): 1 for number in range(20_000)})
    net.loop.move_to(INTEREST_MS_MAX / 1000 - 0.1)
    assert len(home.directory) == 20_000
    monkeypatch.setattr(Directory, "forget_interests", begun)
    net.loop.move_to((INTEREST_MS_MAX + topic_homes.FIND_MS) / 1000)
    assert len(home.directory) == 0
    gone_counts = [before - after for before, after in pairwise(left_counts)]
    assert max(gone_counts) == topic_homes.INTERESTS_FORGOTTEN_AT_ONCE


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
    monkeypatch.setattr(topic_homes, "POINTER_MS_MAX", 10 * PATIENCE_S * 1_000)
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

        async def hang(link: Link, stocks: Mapping[Topic, Reported]) -> Sequence[Pointer]:
            await is_let_through.wait()
            return []

        news = net.news["a"]
        assert news.age_s() == 0
        with patch.object(Link, "report", hang):
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
    told = [_told_in_a_second(reports, float(second)) - {(1, ANY_TOPIC)} for second in range(1, 5)]
    assert set().union(*told) == set(topics)
    reports.report_all(5.0)
    assert (5.0 - reports.due_since_s(5.0), reports.next_s(5.0)) == (0.0, 5.0 + topic_reports.FLUSH_MS / 1000)
    again = [_told_in_a_second(reports, 5.0 + second) for second in range(1, 5)]
    assert set().union(*again) >= set(topics)
    # After a second without reports there may be as many at once, and as many again in the next second.
    assert max(map(len, again)) <= 2 * topic_reports.REPORTS_PER_SECOND_MAX


def _told_in_a_second(reports: topic_reports.TopicReports, from_s: float) -> set[tuple[int, str]]:
    """The topics that were reported before the next second, none of the reports too long for a turn of the loop."""
    now_s, told = from_s, set[tuple[int, str]]()
    while now_s < from_s + 0.999:
        some = reports.take_due(now_s)
        assert len(some) <= topic_reports.REPORTS_AT_ONCE_MAX
        told.update(some)
        next_s = reports.next_s(now_s)
        if next_s is None:
            break
        now_s = next_s
    return told


def test_few_topics_get_another_home_when_a_host_goes() -> None:
    topics = [(1, f"topic-{number}") for number in range(3_000)]
    before = {topic: home_of(topic, NAMES) for topic in topics}
    counts = [list(before.values()).count(name) for name in NAMES]
    assert min(counts) > 800, counts
    for topic, home in before.items():
        if home != "c":
            assert home_of(topic, ["a", "b"]) == home


def test_a_defect_in_one_round_ends_neither_reports_nor_interests(timed_net: TimedNet) -> None:
    topic = topic_of("c")
    with (
        patch.object(TopicReports, "take_due", side_effect=RuntimeError("of reports")),
        patch.object(Directory, "sweep", side_effect=RuntimeError("of what is repeated")),
        capture_logs() as logs,
    ):
        timed_net.put("a", Stock(1, 0, 5), topic)
        timed_net.pass_ms(FIND_MS + 100)
    assert {log["event"] for log in logs} == {"host_defect"}
    wait = timed_net.loop.call(timed_net.news["b"].wait, {topic: 1})
    timed_net.pass_ms(FIND_MS + 100)
    assert wait.pointers[topic, "a"].stock.ready_count == 1
