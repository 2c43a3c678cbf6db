"""Which hosts share caps, and which of them are homes of caps."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from foqs.cluster.homes import cap_homes
from foqs.cluster.homes.cap_homes import CapHomes, LocalCaps
from foqs.cluster.homes.cap_ledger import CapLedger
from foqs.cluster.homes.home_table import home_of
from foqs.model import shared_caps
from foqs.model.errors import UnavailableError
from foqs.model.shared_caps import CapAsk, CapGrant, CapKey, SharedCap
from foqs.testing.manual_loop import ManualLoop
from tests.support.waiting import until

KEYS = [(1, f"t{number}") for number in range(50)]


def test_a_host_that_leaves_is_the_home_of_no_cap_and_has_a_part_in_caps_until_it_is_gone() -> None:
    news = CapHomes("a", Mock(), Mock(spec=LocalCaps), lambda: 0.0)
    news.members(["a", "b"], ["a", "b"])
    version = news.version
    assert {news.home_of(key) for key in KEYS} == {"a", "b"}
    news.members(["a", "b"], ["b"])
    assert news.version > version
    assert {news.home_of(key) for key in KEYS} == {"b"}
    assert news.hosts_count == 2


def test_hosts_that_all_leave_are_homes_until_they_are_gone() -> None:
    news = CapHomes("a", Mock(), Mock(spec=LocalCaps), lambda: 0.0)
    news.members(["a", "b"], [])
    assert {news.home_of(key) for key in KEYS} == {"a", "b"}


class SlowHome:
    """A home that answers when it is told to, by a ledger of its own."""

    def __init__(self) -> None:
        self.ledger = CapLedger()
        self.ledger.keep(frozenset("ab"))
        self.answers = asyncio.Event()
        self.asks: list[CapAsk] = []

    async def ask(self, asks: Sequence[CapAsk]) -> Sequence[CapGrant]:
        self.asks += asks
        found = [self.ledger.ask("a", ask, ask.rate, asyncio.get_running_loop().time()) for ask in asks]
        await self.answers.wait()
        return [grant for grant in found if grant is not None]


async def test_tokens_that_come_too_late_go_back_with_the_next_question_and_no_low_cap_waits_for_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cap_homes, "ASK_MS_MAX", 1)
    monkeypatch.setattr(shared_caps, "RETRY_MS", 1)
    now_s, home = asyncio.get_running_loop().time, SlowHome()
    news = CapHomes("a", cast(Any, lambda host_id: home), Mock(spec=LocalCaps), now_s)
    await news.start()
    news.members(["a", "b"], ["b"])
    cap = SharedCap((1, "t"), 0.0001, now_s(), news)
    assert cap.take(1, now_s()) == 0
    await until(lambda: len(home.asks) >= 3)
    monkeypatch.setattr(cap_homes, "ASK_MS_MAX", 1_000)
    home.answers.set()
    await until(lambda: cap.take(1, now_s()) == 1)
    assert any(ask.unused_count for ask in home.asks)
    await news.stop()


class Hosts:
    """Hosts that share caps over a network, in virtual time; one named c joins later."""

    def __init__(self, names: str, rate: float) -> None:
        self.loop = ManualLoop()
        self.rate = rate
        self.answer_s = dict.fromkeys(names, 0.001)
        """How long the answers that a host gets are on their way."""
        self.failed: dict[str, Callable[[], Exception]] = {}
        """What the asks of a host raise that reach nobody."""
        self.lost: dict[str, Callable[[], Exception]] = {}
        """What the asks of a host raise that have arrived, in place of the answer."""
        self.asks: list[tuple[str, str, CapAsk]] = []
        """The asks that have arrived, with the host that asked and its home."""
        self.news = {name: self.loop.call(self._new, name) for name in names}
        for news in self.news.values():
            self.loop.create_task(news.start())
        self.loop.turn()
        self.members(names.replace("c", ""))

    def close(self) -> None:
        for news in self.news.values():
            self.loop.create_task(news.stop())
        self.loop.turn()
        self.loop.close()

    def _new(self, name: str) -> CapHomes:
        local = Mock(spec=LocalCaps)
        local.cap_rate.side_effect = lambda key: self.rate
        return CapHomes(name, partial(self._peer, name), local, self.loop.time)

    def _peer(self, name: str, home: str) -> Any:
        return SimpleNamespace(ask=partial(self._ask, name, home))

    async def _ask(self, name: str, home: str, asks: Sequence[CapAsk]) -> Sequence[CapGrant]:
        if name in self.failed:
            raise self.failed[name]()
        self.asks += [(name, home, ask) for ask in asks]
        grants = self.news[home].asked(name, asks)
        await asyncio.sleep(self.answer_s[name])
        if name in self.lost:
            raise self.lost[name]()
        return grants

    def members(self, names: str) -> None:
        for news in self.news.values():
            self.loop.call(news.members, names, names)

    def cap(self, name: str, key: CapKey) -> SharedCap:
        return SharedCap(key, self.rate, self.loop.time(), self.news[name])

    def rest(self, seconds: float) -> None:
        until_s = self.loop.time() + seconds
        while (left_s := until_s - self.loop.time()) > 1e-9:
            self.loop.move_to(self.loop.time() + min(0.005, left_s))

    def use(self, cap: SharedCap, seconds: float) -> float:
        """Take all tokens that there are for so long. Returns how many a second these were."""
        steps_count, used_count = round(seconds / 0.02), 0
        for _ in range(steps_count):
            taken = self.loop.call(cap.take, 5, self.loop.time())
            cap.spend(taken, self.loop.time())
            used_count += taken
            self.rest(0.02)
        return used_count / seconds

    def home_by_members(self, homes: dict[str, str]) -> CapKey:
        """A key whose home is the given one for each of these memberships."""
        for key in [(1, f"t{number}") for number in range(1_000)]:
            if all(home_of(key, tuple(names)) == home for names, home in homes.items()):
                return key
        raise AssertionError(homes)


NewHosts = Callable[[str, float], Hosts]


@pytest.fixture
def new_hosts() -> Iterator[NewHosts]:
    made: list[Hosts] = []

    def make(names: str, rate: float) -> Hosts:
        made.append(Hosts(names, rate))
        return made[-1]

    yield make
    for hosts in made:
        hosts.close()


def test_a_home_that_is_one_again_keeps_nothing_for_a_host_that_used_the_cap_before(new_hosts: NewHosts) -> None:
    hosts = new_hosts("abcg", 100.0)
    key = hosts.home_by_members({"abg": "a", "abcg": "c"})
    cap = hosts.cap("b", key)
    assert hosts.use(cap, 2) == pytest.approx(100, rel=0.2)
    hosts.members("abcg")
    assert hosts.use(cap, 2) == pytest.approx(100, rel=0.2)
    hosts.rest(3)
    hosts.members("abg")
    hosts.rest(3)
    assert hosts.use(hosts.cap("g", key), 3) == pytest.approx(100, rel=0.2)
    hosts.rest(30)
    hosts.news["a"].ledger.sweep(1_000, hosts.loop.time())
    hosts.news["a"].ledger.sweep(1_000, hosts.loop.time())
    assert len(hosts.news["a"].ledger) == 0


def test_a_former_home_that_is_not_reached_is_told_again_that_a_host_has_no_part_in_its_cap(
    new_hosts: NewHosts,
) -> None:
    hosts = new_hosts("abcg", 100.0)
    key = hosts.home_by_members({"abg": "a", "abcg": "c"})
    cap = hosts.cap("b", key)
    hosts.use(cap, 1)
    hosts.failed["b"] = lambda: UnavailableError("cut")
    hosts.members("abcg")
    hosts.rest(3)
    hosts.failed.clear()
    hosts.rest(1)
    hosts.members("abg")
    assert hosts.use(hosts.cap("g", key), 3) == pytest.approx(100, rel=0.2)


def test_a_host_that_uses_a_cap_no_more_when_its_rate_changes_keeps_nothing_from_the_others(
    new_hosts: NewHosts,
) -> None:
    hosts = new_hosts("abg", 100.0)
    key = hosts.home_by_members({"abg": "a"})
    cap = hosts.cap("b", key)
    hosts.use(cap, 1)
    hosts.rate = 50.0
    hosts.loop.call(cap.at_rate, 50.0, hosts.loop.time())
    hosts.rest(5)
    assert hosts.use(hosts.cap("g", key), 3) == pytest.approx(50, rel=0.2)


def test_a_host_that_is_told_late_of_its_tokens_keeps_nothing_from_the_others(new_hosts: NewHosts) -> None:
    hosts = new_hosts("abg", 100.0)
    key = hosts.home_by_members({"abg": "a"})
    cap = hosts.cap("b", key)
    hosts.use(cap, 1)
    hosts.answer_s["b"] = 0.45
    hosts.use(cap, 0.6)
    hosts.rest(3)
    hosts.answer_s["b"] = 0.001
    hosts.rest(3)
    assert hosts.use(hosts.cap("g", key), 3) == pytest.approx(100, rel=0.2)


def test_a_question_whose_answer_came_too_late_leaves_nothing_at_the_home_when_the_host_wants_no_more(
    new_hosts: NewHosts,
) -> None:
    hosts = new_hosts("abg", 100.0)
    key = hosts.home_by_members({"abg": "a"})
    hosts.answer_s["b"] = 0.7
    cap = hosts.cap("b", key)
    assert hosts.loop.call(cap.take, 1, hosts.loop.time()) == 0
    hosts.rest(1)
    hosts.answer_s["b"] = 0.001
    hosts.rest(3)
    assert hosts.use(hosts.cap("g", key), 3) == pytest.approx(100, rel=0.2)


def test_a_host_whose_cap_changes_while_the_home_is_not_reached_goes_on_with_its_share(new_hosts: NewHosts) -> None:
    hosts = new_hosts("ab", 100.0)
    key = hosts.home_by_members({"ab": "a"})
    cap = hosts.cap("b", key)
    hosts.use(cap, 2)
    hosts.failed["b"] = lambda: UnavailableError("cut")
    assert hosts.use(cap, 3) > 0
    cap = hosts.loop.call(cap.at_rate, 50.0, hosts.loop.time())
    hosts.rest(1)
    assert 20 <= hosts.use(cap, 4) <= 55


def test_a_defect_of_one_cap_ends_the_asking_for_no_other(new_hosts: NewHosts, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = new_hosts("ab", 100.0)
    broken = hosts.cap("b", hosts.home_by_members({"ab": "a"}))
    monkeypatch.setattr(CapHomes, "_ask_all", Mock(side_effect=RuntimeError("of a cap")))
    assert hosts.use(broken, 0.5) == 0
    monkeypatch.undo()
    assert hosts.use(hosts.cap("b", (1, "other")), 2) == pytest.approx(100, rel=0.2)


def leave(unused_count: int) -> CapAsk:
    return CapAsk((1, "t"), 10.0, 0, 0, unused_count, 1, is_short=False)


def test_tokens_that_were_given_back_are_not_given_back_again_with_later_ones(new_hosts: NewHosts) -> None:
    hosts = new_hosts("ab", 10.0)
    hosts.answer_s["a"] = 0.3
    hosts.loop.call(hosts.news["a"].left, "b", leave(3))
    hosts.rest(0.3)
    for _ in range(2):
        hosts.loop.call(hosts.news["a"].left, "b", leave(1))
    hosts.rest(2)
    assert [ask.unused_count for _, _, ask in hosts.asks] == [3, 2]


@pytest.mark.parametrize("answer_s", [0.001, 60.0], ids=["lost", "late"])
def test_tokens_are_not_given_back_again_when_the_answer_of_the_former_home_is_lost(
    new_hosts: NewHosts, answer_s: float
) -> None:
    hosts = new_hosts("ab", 10.0)
    hosts.lost["a"], hosts.answer_s["a"] = lambda: UnavailableError("no answer"), answer_s
    hosts.loop.call(hosts.news["a"].left, "b", leave(3))
    hosts.rest(1)
    hosts.lost.clear()
    hosts.answer_s["a"] = 0.001
    hosts.rest(2)
    assert len(hosts.asks) > 1, "the former home is told again that the host has no part in the cap"
    assert [ask.unused_count for _, _, ask in hosts.asks] == [3] + [0] * (len(hosts.asks) - 1)


def test_tokens_that_certainly_reached_no_former_home_are_given_back_once_it_is_reached(new_hosts: NewHosts) -> None:
    hosts = new_hosts("ab", 10.0)
    hosts.failed["a"] = lambda: UnavailableError("cut", nothing_done=True)
    with capture_logs() as logs:
        for count in (3, 4):
            hosts.loop.call(hosts.news["a"].left, "b", leave(count))
            hosts.rest(1)
    assert [log["event"] for log in logs] == ["cap_home_not_reached"]
    hosts.failed.clear()
    hosts.rest(1)
    assert [ask.unused_count for _, _, ask in hosts.asks] == [7]


def test_a_former_home_that_is_home_again_gets_the_tokens_with_the_next_ask(new_hosts: NewHosts) -> None:
    hosts = new_hosts("ab", 10.0)
    key = hosts.home_by_members({"ab": "b"})
    hosts.failed["a"] = lambda: UnavailableError("cut", nothing_done=True)
    hosts.loop.call(hosts.news["a"].left, "b", leave(3)._replace(key=key))
    cap = hosts.cap("a", key)
    hosts.loop.call(cap.take, 1, hosts.loop.time())
    hosts.rest(0.02)
    hosts.failed.clear()
    hosts.rest(2)
    assert sum([ask.unused_count for _, _, ask in hosts.asks if ask.key == key]) >= 3


def test_a_late_answer_of_a_former_home_keeps_it_not_from_learning_that_a_host_has_left(new_hosts: NewHosts) -> None:
    hosts = new_hosts("abcg", 100.0)
    key = hosts.home_by_members({"abg": "a", "abcg": "c"})
    cap = hosts.cap("b", key)
    hosts.use(cap, 1)
    hosts.answer_s["b"] = 0.1
    arrived_count = len(hosts.asks)
    while len(hosts.asks) == arrived_count:
        hosts.use(cap, 0.02)
    hosts.failed["b"] = lambda: UnavailableError("cut")
    hosts.members("abcg")
    hosts.loop.call(cap.take, 1, hosts.loop.time())
    hosts.rest(0.2)
    hosts.failed.clear()
    arrived_count = len(hosts.asks)
    hosts.rest(1)
    of_a = [ask for name, home, ask in hosts.asks[arrived_count:] if (name, home) == ("b", "a")]
    assert [ask.is_for_nothing for ask in of_a] == [True]


@pytest.mark.parametrize(
    ("nothing_done", "returned_count"), [(True, 3), (False, 0)], ids=["reached nobody", "unknown outcome"]
)
def test_a_cap_that_is_set_again_returns_the_tokens_of_a_leave_in_flight_that_reaches_nobody(
    new_hosts: NewHosts, nothing_done: bool, returned_count: int
) -> None:
    hosts = new_hosts("ab", 10.0)
    key = hosts.home_by_members({"ab": "b"})
    cut = asyncio.Event()

    async def asks_until_cut(asks: Sequence[CapAsk]) -> Sequence[CapGrant]:
        if all(ask.unused_count for ask in asks) and not cut.is_set():
            await cut.wait()
            raise UnavailableError("cut", nothing_done=nothing_done)
        return await hosts._ask("a", "b", asks)

    hosts.news["a"]._peer = lambda home: cast(Any, SimpleNamespace(ask=asks_until_cut))
    hosts.loop.call(hosts.news["a"].left, "b", leave(3)._replace(key=key))
    hosts.rest(0.02)
    cap = hosts.cap("a", key)
    hosts.loop.call(cap.take, 1, hosts.loop.time())
    hosts.rest(0.1)
    hosts.loop.call(cut.set)
    hosts.rest(2)
    assert sum([ask.unused_count for _, _, ask in hosts.asks if ask.key == key]) >= returned_count
    assert sum([ask.unused_count for _, _, ask in hosts.asks if ask.key == key]) <= returned_count + 2
