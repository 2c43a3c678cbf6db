"""Hosts share a cap: its home grants tokens to those that deliver, and all together keep to it."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from random import Random

import pytest

from foqs.cluster.homes.cap_ledger import CapLedger
from foqs.model.caps import NEVER_S, shared_burst_of
from foqs.model.shared_caps import RETRY_MS, VALID_MS, CapAsk, CapGrant, CapKey, SharedCap

KEY = (7, "t")
STEP_S = 0.01


class Cluster:
    """Hosts that ask one home without delay, in steps of 10 ms."""

    def __init__(self, names: str = "ab", rate: float = 10.0) -> None:
        self.now_s = 100.0
        self.version = 0
        self.rate = rate
        self.home = names[0]
        self.ledger = CapLedger()
        self.ledger.keep(frozenset(names))
        self.hosts_count = len(names)
        self.wanted: dict[SharedCap, None] = {}
        self.cut_off: set[str] = set()
        self.is_old = False
        self.asks_count = 0
        self.caps = {name: SharedCap(KEY, rate, self.now_s, self) for name in names}
        self.used: Counter[str] = Counter()
        self.used_at: list[float] = []

    def home_of(self, key: CapKey) -> str:
        return self.home

    def wants(self, cap: SharedCap) -> None:
        self.wanted[cap] = None

    def left(self, home: str, ask: CapAsk) -> None:
        """Nobody else is home of it here."""

    def name_of(self, cap: SharedCap) -> str:
        return next(name for name, one in self.caps.items() if one is cap)

    def turn(self) -> None:
        """Ask all that is wanted."""
        for cap in self.caps.values():
            if not cap.is_asking and cap.check_s(self.now_s) <= self.now_s and cap.lapse(self.now_s):
                cap.is_asking = True
                self.wants(cap)
        wanted, self.wanted = self.wanted, {}
        for cap in wanted:
            name, ask = self.name_of(cap), cap.ask()
            self.asks_count += 1
            if name in self.cut_off:
                cap.missed(self.now_s)
            elif self.is_old:
                cap.unaided(self.now_s)
            else:
                grant = self.ledger.ask(name, ask, self.rate, self.now_s)
                assert grant is not None
                cap.granted(grant, self.now_s, self.now_s)

    def use(self, name: str, count: int = 1_000) -> int:
        """Deliver up to so many items there."""
        cap = self.caps[name]
        taken = cap.take(count, self.now_s)
        if not taken:
            cap.wait_s(self.now_s)
        cap.spend(taken, self.now_s)
        self.used[name] += taken
        self.used_at += [self.now_s] * taken
        return taken

    def run(self, seconds: float, wants: Callable[[str], int] = lambda name: 1_000) -> None:
        for _ in range(round(seconds / STEP_S)):
            self.now_s += STEP_S
            for name in self.caps:
                count = wants(name)
                if count:
                    self.use(name, count)
            self.turn()

    def level(self, rate: float = 0.0) -> float:
        """The most that was delivered beyond the rate, in any time."""
        level = worst = 0.0
        at_s = 0.0
        for now_s in self.used_at:
            level = max(0.0, level - (rate or self.rate) * (now_s - at_s)) + 1
            at_s = now_s
            worst = max(worst, level)
        return worst


@pytest.mark.parametrize("rate", [0.33, 1, 5, 40, 1_000])
@pytest.mark.parametrize("names", ["ab", "abcd"])
def test_all_hosts_together_deliver_at_the_rate_of_the_cap(rate: float, names: str) -> None:
    cluster = Cluster(names, rate)
    cluster.run(60)
    assert cluster.used.total() == pytest.approx(60 * rate, rel=0.03, abs=2 + len(names))
    assert cluster.level() <= shared_burst_of(rate, len(names))


@pytest.mark.parametrize("rate", [0.33, 40, 1_000])
def test_a_cap_is_parted_evenly_between_hosts_that_all_want_more(rate: float) -> None:
    cluster = Cluster("abcd", rate)
    cluster.run(60)
    assert max(cluster.used.values()) <= 1.2 * min(cluster.used.values()) + 2


def test_a_token_whose_delivery_reached_nobody_is_used_again_where_the_item_is() -> None:
    cluster = Cluster("ab", 0.001)
    cluster.run(1, lambda name: int(name == "a"))
    cluster.run(5)
    assert cluster.used.total() == 1, "the next one is made in a quarter of an hour"
    cluster.caps["a"].unspend(1, cluster.now_s)
    cluster.run(1)
    assert cluster.used == {"a": 2, "b": 0}
    cluster.run(10)
    assert cluster.used.total() == 2


@pytest.mark.parametrize("rate", [0.33, 5, 40, 400])
@pytest.mark.parametrize("late_s", [0.0, 0.2, 3.0])
def test_deliveries_that_reach_nobody_cost_a_cap_nothing_and_lift_it_by_nothing(rate: float, late_s: float) -> None:
    cluster = Cluster("ab", rate)
    rng = Random(rate)
    lost: deque[tuple[float, str]] = deque()
    used_before: Counter[str] = Counter()
    lost_count = 0
    while cluster.now_s < 160:
        cluster.run(STEP_S)
        for name, count in (cluster.used - used_before).items():
            for _ in range(count):
                if rng.random() < 0.3:
                    lost.append((cluster.now_s + late_s, name))
        used_before = cluster.used.copy()
        while lost and lost[0][0] <= cluster.now_s:
            _, name = lost.popleft()
            cluster.caps[name].unspend(1, cluster.now_s)
            lost_count += 1
    seen_count = cluster.used.total() - lost_count
    assert seen_count <= 60 * rate + shared_burst_of(rate, 2) + len(lost)
    assert seen_count >= 0.93 * 60 * rate - 3


def test_a_host_that_the_home_has_forgotten_gives_back_no_token_before_its_time() -> None:
    """One that was taken for dead still has the token of the time to come that it was granted."""
    ledger = CapLedger()
    ledger.keep(frozenset("ab"))

    def ask(name: str, wanted: int = 0, held: int = 0, unused: int = 0) -> CapGrant:
        grant = ledger.ask(name, CapAsk(KEY, 0.001, wanted, held, unused, 1, is_short=True), 0.001, 100.0)
        assert grant is not None
        return grant

    assert ask("a", wanted=1).after_ms == 0
    assert ask("a", wanted=1).after_ms > 0
    ledger.keep(frozenset("b"))
    assert ask("b", wanted=1).after_ms > 0
    ledger.keep(frozenset("ab"))
    assert ask("a", wanted=1, unused=1).after_ms > 0


def test_what_one_host_does_not_need_goes_to_the_others() -> None:
    cluster = Cluster("ab", 100)
    cluster.run(20, lambda name: 1_000 if name == "a" else int(cluster.used["b"] < 10 * (cluster.now_s - 100)))
    assert cluster.used["b"] == pytest.approx(200, rel=0.05)
    assert cluster.used["a"] == pytest.approx(1_800, rel=0.05)


def test_parts_of_a_cap_are_by_the_weight_of_what_waits() -> None:
    cluster = Cluster("ab", 200)
    cluster.caps["a"].weigh(3)
    cluster.run(30)
    assert cluster.used["a"] / cluster.used["b"] == pytest.approx(3, rel=0.25)


def test_a_cap_that_was_not_used_lets_only_its_burst_through() -> None:
    cluster = Cluster("abcd", 20)
    cluster.run(2)
    cluster.run(60, lambda name: 0)
    before = cluster.used.total()
    cluster.run(0.5)
    assert cluster.used.total() - before <= 0.5 * 20 + shared_burst_of(20, 0)


def test_nobody_is_asked_while_nothing_is_delivered() -> None:
    cluster = Cluster("abcd", 20)
    cluster.run(5)
    cluster.run(5, lambda name: 0)
    before = cluster.asks_count
    cluster.run(60, lambda name: 0)
    assert cluster.asks_count == before
    cluster.ledger.sweep(10, cluster.now_s)
    assert len(cluster.ledger) == 0


def test_a_topic_that_waits_for_its_token_costs_one_question_for_each() -> None:
    cluster = Cluster("ab", 0.2)
    cluster.run(100)
    assert cluster.asks_count <= 2 * cluster.used.total() + 10


def test_tokens_that_were_not_used_in_time_are_there_again() -> None:
    cluster = Cluster("ab", 0.1)
    cluster.caps["a"].wait_s(cluster.now_s)
    cluster.turn()
    assert cluster.caps["a"].count(cluster.now_s) == 1
    cluster.run(10.5, lambda name: 0)
    assert cluster.caps["a"].count(cluster.now_s) == 0
    for _ in range(2):
        assert cluster.use("b", 1) == 0
        cluster.turn()
        assert cluster.use("b", 1) == 1


def test_a_token_that_was_not_used_in_time_is_there_again_at_once_though_the_next_one_was_granted_ahead() -> None:
    cluster = Cluster("ab", 0.0001)
    cap = cluster.caps["a"]
    assert not cap.take(1, cluster.now_s)
    cluster.turn()
    assert cap.take(1, cluster.now_s) == 1
    grant = cluster.ledger.ask("a", cap.ask(), 0.0001, cluster.now_s)
    cap.refund(1, cluster.now_s)
    assert grant is not None
    cap.granted(grant, cluster.now_s, cluster.now_s)
    cluster.wanted.clear()
    assert cap.in_hand_count == 2, "one for now, and one of 10,000 s later"
    cluster.run(11, lambda name: 0)
    assert cap.wait_s(cluster.now_s) == NEVER_S, "its home is asked"
    cluster.turn()
    assert cap.take(1, cluster.now_s) == 1


def test_a_token_that_came_late_is_there_again_at_once_though_the_next_one_was_granted_ahead() -> None:
    cluster = Cluster("ab", 0.0001)
    cap = cluster.caps["a"]
    assert not cap.take(1, cluster.now_s)
    late = cluster.ledger.ask("a", cap.ask(), 0.0001, cluster.now_s)
    cap.missed(cluster.now_s)
    cluster.wanted.clear()
    cluster.run(RETRY_MS / 1000 + 0.1, lambda name: 0)
    assert 0 < cap.wait_s(cluster.now_s) < NEVER_S, "the one of 10,000 s later"
    assert late is not None
    cap.came_late(late, cluster.now_s)
    assert cap.wait_s(cluster.now_s) == NEVER_S, "its home is asked"
    cluster.turn()
    assert cap.take(1, cluster.now_s) == 1


def test_a_token_that_ends_while_the_next_one_is_on_its_way_is_there_again_at_once() -> None:
    cluster = Cluster("ab", 0.0001)
    cap = cluster.caps["a"]
    assert not cap.take(1, cluster.now_s)
    cluster.turn()
    assert cap.take(1, cluster.now_s) == 1
    ahead = cluster.ledger.ask("a", cap.ask(), 0.0001, cluster.now_s)
    cluster.now_s += 11
    cap.refund(1, cluster.now_s)
    assert ahead is not None
    cap.granted(ahead, cluster.now_s, cluster.now_s)
    assert cap.wait_s(cluster.now_s) == NEVER_S, "its home is asked"
    cluster.turn()
    assert cap.take(1, cluster.now_s) == 1


def test_a_host_that_cannot_reach_the_home_goes_on_with_its_last_share() -> None:
    cluster = Cluster("ab", 40)
    cluster.run(10)
    cluster.cut_off.add("b")
    cluster.run(5)
    before = cluster.used.copy()
    cluster.run(60)
    assert cluster.used["b"] - before["b"] == pytest.approx(60 * 20, rel=0.1)
    assert cluster.used.total() - before.total() == pytest.approx(60 * 40, rel=0.1)
    assert cluster.level() <= shared_burst_of(40, 2)


def test_a_host_that_never_reached_the_home_delivers_nothing_that_has_a_cap() -> None:
    cluster = Cluster("ab", 40)
    cluster.cut_off.add("b")
    cluster.run(10)
    assert cluster.used["b"] == 0
    assert cluster.used["a"] == pytest.approx(400, rel=0.05)
    cluster.cut_off.clear()
    before = cluster.used["b"]
    cluster.run(10)
    assert cluster.used["b"] - before == pytest.approx(200, rel=0.1)


def test_the_share_of_a_host_that_is_cut_off_is_given_to_nobody_until_it_is_dead() -> None:
    cluster = Cluster("ab", 40)
    cluster.run(10)
    cluster.cut_off.add("b")
    cluster.run(2)
    before = cluster.used.copy()
    cluster.run(10)
    assert cluster.used["a"] - before["a"] == pytest.approx(200, rel=0.1)
    cluster.ledger.keep(frozenset("a"))
    before = cluster.used.copy()
    cluster.run(10, lambda name: 1_000 if name == "a" else 0)
    assert cluster.used["a"] - before["a"] == pytest.approx(400, rel=0.1)


def test_a_share_ends_with_the_home_that_gave_it() -> None:
    cluster = Cluster("ab", 40)
    cluster.run(5)
    cluster.cut_off.add("b")
    cluster.run(2)
    cluster.home, cluster.version, cluster.ledger = "c", 1, CapLedger()
    cluster.run(VALID_MS / 1000 + 0.1)
    before = cluster.used["b"]
    cluster.run(5)
    assert cluster.used["b"] == before


def test_all_shares_together_are_the_cap_at_most() -> None:
    cluster = Cluster("abcd", 100)
    shares: dict[str, float] = {}
    keep = cluster.ledger.ask

    def ask(host_id: str, ask: CapAsk, rate: float, now_s: float) -> CapGrant | None:
        grant = keep(host_id, ask, rate, now_s)
        assert grant is not None
        shares[host_id] = grant.share
        assert sum(shares.values()) <= 100 + 1e-6
        return grant

    cluster.ledger.ask = ask  # type: ignore[method-assign]
    for names in ("a", "abcd", "cd", "d"):
        cluster.run(3, lambda name, names=names: 1_000 if name in names else 0)  # type: ignore[misc]
        assert shares[names[-1]] == pytest.approx(100 / len(names), rel=0.05)


def test_a_home_of_an_older_build_leaves_each_host_an_equal_part() -> None:
    cluster = Cluster("abcd", 40)
    cluster.is_old = True
    cluster.run(30)
    assert all(used == pytest.approx(300, rel=0.05) for used in cluster.used.values())
    cluster.is_old = False
    cluster.run(RETRY_MS / 1000 + 1)
    cluster.used.clear()
    cluster.run(10, lambda name: 1_000 if name == "a" else 0)
    assert cluster.used["a"] == pytest.approx(400, rel=0.1)


def test_a_host_that_is_alone_asks_nobody_and_has_the_whole_cap() -> None:
    cluster = Cluster("ab", 40)
    cluster.hosts_count, cluster.version = 1, 1
    cluster.run(10, lambda name: 1_000 if name == "a" else 0)
    assert cluster.asks_count == 0
    assert cluster.used["a"] == pytest.approx(400, rel=0.05)
    cluster.hosts_count, cluster.version = 2, 2
    cluster.run(10)
    assert cluster.used.total() == pytest.approx(800, rel=0.05)


def test_another_rate_takes_hold_at_once() -> None:
    cluster = Cluster("ab", 40)
    cluster.run(5)
    cluster.rate = 4.0
    cluster.caps = {name: cap.at_rate(4.0, cluster.now_s) for name, cap in cluster.caps.items()}
    before = cluster.used.total()
    cluster.run(10)
    assert cluster.used.total() - before <= 40 + shared_burst_of(4, 2)


@pytest.mark.parametrize(("rate", "lower"), [(40, 4.0), (1_000, 2.0), (1_000, 1.0), (1_000, 0.1)])
def test_after_a_much_lower_rate_was_set_nothing_waits_for_longer_than_that_rate_takes(
    rate: float, lower: float
) -> None:
    """What was granted ahead is some time of the cap, and not so many tokens of whatever it may be later."""
    cluster = Cluster("ab", rate)
    cluster.run(5)
    cluster.rate = lower
    cluster.caps = {name: cap.at_rate(lower, cluster.now_s) for name, cap in cluster.caps.items()}
    before = cluster.used.total()
    cluster.run(2 / lower + 2)
    assert cluster.used.total() > before
    cluster.run(18 / lower)
    assert 15 <= cluster.used.total() - before <= 20 + 2 * lower + shared_burst_of(lower, 2)


def test_who_asks_how_long_to_wait_is_told_when_the_next_token_may_be_used() -> None:
    cluster = Cluster("ab", 0.5)
    assert cluster.caps["a"].take(1, cluster.now_s) == 0
    assert cluster.caps["a"].wait_s(cluster.now_s) == NEVER_S, "nobody knows until the home has answered"
    cluster.turn()
    assert cluster.use("a", 1) == 1
    cluster.turn()
    assert cluster.caps["a"].wait_s(cluster.now_s) == pytest.approx(2, abs=0.05)
    assert math.isinf(cluster.caps["b"].wait_s(cluster.now_s))
    cluster.turn()
    assert cluster.caps["b"].wait_s(cluster.now_s) == pytest.approx(4, abs=0.05), "each host has its turn"


@pytest.mark.parametrize("rate", [0.1, 1, 40])
def test_grants_that_were_lost_on_their_way_delay_a_cap_by_no_more_than_hosts_may_have_in_hand(rate: float) -> None:
    cluster = Cluster("ab", rate)
    lost = CapAsk(KEY, rate, 100, 0, 0, 1, True)
    for _ in range(200):  # The home is slow: it hears of questions when nobody waits for the answer any more.
        cluster.now_s += RETRY_MS / 1000
        cluster.ledger.ask("b", lost, rate, cluster.now_s)
    before_s = cluster.now_s
    while not cluster.used["a"] and cluster.now_s < before_s + 3_600:
        cluster.run(1)
    assert cluster.now_s - before_s <= shared_burst_of(rate, 2) / rate + 2


def test_no_tokens_that_are_given_back_are_taken_for_tokens_in_hand() -> None:
    """Whoever asks how long to wait would go by them, and the home would not be asked meanwhile."""
    cluster = Cluster("ab", 0.5)
    cluster.use("a", 1)
    cluster.turn()
    assert cluster.use("a", 1) == 1
    cap = cluster.caps["a"]
    cap.refund(0, cluster.now_s)
    cap.unspend(0, cluster.now_s)
    assert cap.wait_s(cluster.now_s) == NEVER_S
    assert cap.is_asking


@pytest.mark.parametrize("rate", [0.005, 0.01, 0.02, 5.0])
def test_a_rate_that_is_touched_takes_no_token_that_is_in_hand(rate: float) -> None:
    cluster = Cluster("ab", 0.01)
    cluster.run(1, lambda name: int(name == "a"))
    cluster.run(3)
    assert cluster.used.total() == 1
    cluster.caps["a"].unspend(1, cluster.now_s)
    cluster.rate = rate
    cluster.caps = {name: cap.at_rate(rate, cluster.now_s) for name, cap in cluster.caps.items()}
    assert cluster.use("a", 1) == 1, "the next one is made in 100 s"


def test_a_rate_that_is_touched_again_and_again_lets_nothing_more_through_and_stops_nothing() -> None:
    cluster = Cluster("ab", 2.0)
    for number in range(60):
        cluster.run(1.0)
        cluster.rate = 2.0 + number % 2 / 100
        cluster.caps = {name: cap.at_rate(cluster.rate, cluster.now_s) for name, cap in cluster.caps.items()}
    assert cluster.used.total() == pytest.approx(120, abs=12)
    assert cluster.level(2.01) <= shared_burst_of(2.01, 2)


def test_of_a_much_lower_rate_only_what_that_gives_at_once_is_kept_in_hand() -> None:
    cluster = Cluster("ab", 1_000.0)
    cluster.run(1)
    cap = cluster.caps["a"].at_rate(0.01, cluster.now_s)
    assert cap.in_hand_count <= 2


def test_what_comes_back_to_a_cap_after_another_one_took_its_place_is_that_ones() -> None:
    cluster = Cluster("ab", 0.01)
    cluster.run(2, lambda name: 0)
    before = cluster.caps["a"]
    assert before.take(1, cluster.now_s) == 0
    cluster.turn()
    assert before.take(1, cluster.now_s) == 1
    cluster.caps["a"] = before.at_rate(0.02, cluster.now_s)
    before.refund(1, cluster.now_s)
    assert cluster.caps["a"].count(cluster.now_s) == 1


def test_the_tokens_of_a_cap_that_is_taken_away_go_back_to_its_home() -> None:
    cluster = Cluster("ab", 0.01)
    told: list[CapAsk] = []
    cluster.left = lambda home, ask: told.append(ask)  # type: ignore[method-assign]
    cluster.run(2, lambda name: 0)
    cap = cluster.caps["b"]
    assert cap.take(1, cluster.now_s) == 0
    cluster.turn()
    assert cap.take(1, cluster.now_s) == 1
    cap.end(cluster.now_s)
    cap.refund(1, cluster.now_s)
    assert sum(ask.unused_count for ask in told) == 1
    assert all(ask.is_for_nothing for ask in told)
