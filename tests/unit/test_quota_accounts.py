"""What hosts do with their tokens, against a list of everything that was let in and not given back."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from foqs.host.admission.account import Account, Charge
from foqs.model.grants import QUOTA_WINDOW_MS, Ask, Grant, GrantBook
from tests.support.quota_cluster import START_MS, LetIn, worst_minute

LIMIT = 100


@dataclass
class Host:
    number: int
    clock_ms: int
    """Its clock less the true time."""
    account: Account = field(default_factory=lambda: Account(1))
    asked: tuple[int, Ask] | None = None
    """An ask that is under way, and when it was made by the host's clock."""
    answer: Grant | None = None


class Cluster:
    """Hosts with clocks of their own, and a book; asks and their answers take their time, or get lost."""

    def __init__(self) -> None:
        self.now_ms = 10_000
        self.book = GrantBook(1)
        self.hosts = [Host(number, number * 123_456) for number in range(3)]
        self.let_in: list[LetIn] = []

    def spend(self, host: Host, count: int) -> None:
        host.account.arrived_count += count
        charge = host.account.spend(count, self.now_ms + host.clock_ms)
        if charge is not None:
            self.let_in.append(LetIn(self.now_ms, count, charge))

    def refund(self, at: int, count: int) -> None:
        one = self.let_in[at % len(self.let_in)]
        count = min(count, one.count)
        one.count -= count
        one.charge.refund(count)

    def ask(self, host: Host, waiting_count: int) -> None:
        if host.asked is None:
            now_ms = self.now_ms + host.clock_ms
            ask = host.account.make_ask(LIMIT, waiting_count, min(waiting_count, 5), now_ms, was_away=False)
            host.asked = (now_ms, ask)

    def reach(self, host: Host) -> None:
        """The ask is done by the book."""
        if host.asked is not None and host.answer is None:
            host.answer = self.book.ask(host.number, host.asked[1], LIMIT, START_MS + self.now_ms)

    def answer(self, host: Host) -> None:
        if host.asked is not None and host.answer is not None:
            host.account.take(host.asked[1], host.answer, host.asked[0])
            host.asked = host.answer = None

    def lose(self, host: Host) -> None:
        """The ask was done or not, and the host will never know."""
        if host.asked is not None:
            host.account.fail()
            host.asked = host.answer = None


HOSTS = st.integers(0, 2)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("pass"), st.sampled_from([1, 40, 100, 599, 600, 2_100, 9_000, 58_000, 60_000])),
        st.tuples(st.just("spend"), HOSTS, st.integers(1, 40)),
        st.tuples(st.just("give back"), st.integers(0, 50), st.integers(1, 40)),
        st.tuples(st.just("ask"), HOSTS, st.integers(0, 80)),
        st.tuples(st.sampled_from(["reach", "answer", "lose", "drop"]), HOSTS),
        st.tuples(st.just("asked at once"), HOSTS, st.integers(1, 80)),
    ),
    max_size=100,
)


def run(steps: list[tuple]) -> Cluster:
    cluster = Cluster()
    for step in steps:
        match step:
            case ("pass", by_ms):
                cluster.now_ms += by_ms
            case ("spend", host, count):
                cluster.spend(cluster.hosts[host], count)
            case ("give back", at, count) if cluster.let_in:
                cluster.refund(at, count)
            case ("ask", host, count):
                cluster.ask(cluster.hosts[host], count)
            case ("reach", host):
                cluster.reach(cluster.hosts[host])
            case ("answer", host):
                cluster.answer(cluster.hosts[host])
            case ("lose", host):
                cluster.lose(cluster.hosts[host])
            case ("drop", number):
                host = cluster.hosts[number]
                host.account.drop_tokens(cluster.now_ms + host.clock_ms)
            case ("asked at once", number, count):
                host = cluster.hosts[number]
                cluster.ask(host, count)
                cluster.reach(host)
                cluster.answer(host)
                cluster.spend(host, min(count, 40))
    return cluster


@given(STEPS)
def test_no_minute_has_more_than_the_limit_whatever_is_late_lost_or_given_back(steps: list[tuple]) -> None:
    assert worst_minute(run(steps).let_in) <= LIMIT


@given(STEPS)
def test_the_book_keeps_what_was_let_in_and_all_else_comes_back(steps: list[tuple]) -> None:
    """Within a minute in which no answer is lost."""
    cluster = run([step for step in steps if step[0] in ("spend", "asked at once", "drop")])
    for host in cluster.hosts:
        host.account.drop_tokens(cluster.now_ms + host.clock_ms)
        assert host.account.in_hand == 0
        now_ms = cluster.now_ms + host.clock_ms
        ask = host.account.make_ask(LIMIT, 0, 0, now_ms, was_away=False)._replace(wanted_count=0)
        host.asked = (now_ms, ask)
        cluster.reach(host)
        cluster.answer(host)
    assert cluster.book.count == sum([one.count for one in cluster.let_in])


@given(st.lists(st.tuples(st.integers(0, 20_000), st.integers(1, 9), st.booleans()), max_size=40), st.integers(1, 3))
def test_what_is_replayed_is_what_the_minute_before_had(calls: list[tuple[int, int, bool]], hosts_count: int) -> None:
    account, now_ms = Account(1), 1_000_000
    let_in: list[tuple[int, int]] = []
    account.take(Ask(60), GrantBook(1).ask(1, Ask(60), LIMIT, START_MS), now_ms)
    while account.spend(7, now_ms) is not None:
        let_in.append((now_ms, 7))
    used = sum([count for _, count in let_in])
    account.begin_replay(LIMIT, hosts_count, now_ms, now_ms)
    assert account.in_hand == 0, "tokens would come on top of it"
    most = LIMIT if hosts_count == 1 else max(used, LIMIT * 5 // (100 * hosts_count))
    for pause_ms, count, is_given_back in calls:
        now_ms += pause_ms
        charge = account.replay(count, now_ms)
        if isinstance(charge, Charge):
            if is_given_back:
                charge.refund(count)
            else:
                let_in.append((now_ms, count))
        else:
            assert isinstance(account.replay(count, now_ms + charge), Charge), "the wait is true"
            return
        window = [one for at_ms, one in let_in if now_ms - QUOTA_WINDOW_MS < at_ms]
        assert sum(window) <= most


def held(book: GrantBook, account: Account, now_ms: int) -> Account:
    """One that the book has told of its hold."""
    ask = account.make_ask(LIMIT, 0, 0, now_ms, was_away=True)
    account.take(ask, book.ask(1, ask, LIMIT, START_MS + now_ms), now_ms)
    assert account.holds(now_ms)
    return account


@given(st.integers(0, LIMIT), st.integers(0, LIMIT), st.integers(1, 3))
def test_a_host_lets_in_during_the_hold_only_what_the_book_had_room_for(
    others_count: int, own_count: int, hosts_count: int
) -> None:
    """Another one told what it let in while it was cut off; this one has the rest at most, also if it is alone now."""
    book, account, now_ms = GrantBook(1), Account(1), 1_000_000
    book.ask(2, Ask(spent=[(1_000, others_count)], was_away=True), LIMIT, START_MS + now_ms)
    account.begin_replay(LIMIT, 1, now_ms, now_ms)
    if own_count:
        assert isinstance(account.replay(own_count, now_ms), Charge)
    untold = Account(1)
    for one in (account, untold):
        held(book, one, now_ms)
    room = max(0, LIMIT - others_count - own_count)
    untold.begin_replay(LIMIT, hosts_count, now_ms, now_ms)
    for one in (account, untold):
        let_in = 0
        while isinstance(one.replay(1, now_ms), Charge):
            let_in += 1
        assert let_in <= room
        if one is account or hosts_count == 1:
            assert let_in == room, "a host that is alone has all of it"


def test_a_host_that_is_alone_goes_on_during_the_hold_as_its_own_minute_passes() -> None:
    book, account, now_ms = GrantBook(1), Account(1), 1_000_000
    account.begin_replay(LIMIT, 1, now_ms, now_ms)
    let_in = 0
    for _ in range(2 * QUOTA_WINDOW_MS // 1_000):
        now_ms += 1_000
        held(book, account, now_ms)
        while isinstance(account.replay(1, now_ms), Charge):
            let_in += 1
    assert let_in >= 2 * LIMIT
