"""What a quota lets in around outages of the meta database and steps of its clock, against a plain list of it all."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given, settings
from hypothesis import strategies as st

from foqs.host.admission.account import REPLAY_PERCENT, Account, Charge
from foqs.model.grants import BUCKET_MS, HOLD_MS, QUOTA_WINDOW_MS, STEP_MS, Ask, GrantBook
from tests.support.quota_cluster import HOSTS_COUNT, LIMIT, START_MS, QuotaCluster

_REPEATABLE = settings(derandomize=True, database=None, max_examples=100)

HOSTS = st.integers(0, HOSTS_COUNT - 1)
CALM = st.one_of(
    st.tuples(st.just("pass"), st.sampled_from([1, 40, 130, 650, 2_100, 9_000, 31_000])),
    st.tuples(st.just("enqueue"), HOSTS, st.integers(1, 60)),
    st.tuples(st.just("give back"), st.integers(0, 50), st.integers(1, 40)),
    st.tuples(st.just("get"), HOSTS, st.integers(1, 120)),
    st.tuples(st.just("ask"), HOSTS, st.integers(0, 120)),
    st.tuples(st.sampled_from(["answer", "drop", "refuse"]), HOSTS),
)
LOSSES = st.tuples(st.just("lose"), HOSTS)
STEPS_BACK = st.tuples(st.just("step back"), st.integers(STEP_MS // BUCKET_MS + 1, 100).map(lambda at: at * BUCKET_MS))
OUTAGES = st.one_of(
    st.tuples(st.just("go away")),
    st.tuples(st.just("come back"), st.lists(st.integers(0, HOLD_MS // 3 - 1), min_size=3, max_size=3)),
)


def run(steps: Sequence[tuple]) -> QuotaCluster:
    cluster = QuotaCluster()
    for step in steps:
        _do(cluster, step)
        cluster.check()
    return cluster


def _do(cluster: QuotaCluster, step: tuple) -> None:
    match step:
        case ("pass", by_ms):
            cluster.go_on(by_ms)
        case ("enqueue", host, count):
            cluster.enqueue(cluster.hosts[host], count)
        case ("give back", at, count):
            cluster.refund(at, count)
        case ("get", host, count):
            cluster.ask(cluster.hosts[host], count)
            cluster.answer(cluster.hosts[host])
            cluster.enqueue(cluster.hosts[host], min(count, 50))
        case ("ask", host, count):
            cluster.ask(cluster.hosts[host], count)
        case ("answer", host):
            cluster.answer(cluster.hosts[host])
        case ("refuse", host):
            cluster.refuse(cluster.hosts[host])
        case ("drop", host):
            cluster.drop(cluster.hosts[host])
        case ("lose", host):
            cluster.lose(cluster.hosts[host])
        case ("step back", by_ms):
            cluster.step_back(by_ms)
        case ("go away",):
            cluster.go_away()
        case ("come back", pauses_ms):
            cluster.come_back(pauses_ms)


_SAME_DATE_IN_TWO_ERAS = [
    ("ask", 0, 50), ("answer", 0), ("enqueue", 0, 50), ("step back", 8_000), ("pass", 100),
    ("ask", 2, 0), ("answer", 2), ("drop", 2), ("pass", 7_900), ("ask", 1, 60), ("answer", 1),
    ("ask", 0, 0), ("answer", 0), ("give back", 0, 40), ("ask", 0, 0), ("answer", 0),
    ("pass", 5_000), ("enqueue", 1, 60), ("pass", 58_500),
]  # fmt: skip
"""What was given back after a step of the clock, of tokens whose date has come for others since."""
_REFUSED_WITH_TOKENS = [("ask", 0, 100), ("answer", 0), ("enqueue", 0, 5), ("drop", 0), ("refuse", 0)]


@_REPEATABLE
@example(_SAME_DATE_IN_TWO_ERAS)
@given(st.lists(st.one_of(CALM, CALM, CALM, LOSSES, STEPS_BACK), min_size=10, max_size=60))
def test_no_step_of_the_clock_lets_in_more_than_the_limit_or_makes_the_book_forget_what_was_let_in(
    steps: list[tuple],
) -> None:
    assert run(steps).worst_minute() <= LIMIT


@_REPEATABLE
@given(st.lists(st.one_of(CALM, CALM, LOSSES, OUTAGES), min_size=10, max_size=60))
def test_no_outage_lets_in_more_than_the_limit_and_the_allowance(steps: list[tuple]) -> None:
    assert run(steps).worst_minute() <= LIMIT * (100 + REPLAY_PERCENT) // 100


@_REPEATABLE
@example(_REFUSED_WITH_TOKENS)
@given(st.lists(CALM, min_size=5, max_size=40))
def test_without_losses_nothing_is_lost_and_nothing_is_given_back_twice(steps: list[tuple]) -> None:
    """Half a minute at most, so that no date of a token matters."""
    short = [step for step in steps if step[0] != "give back" and (step[0] != "pass" or step[1] < 1_000)]
    cluster = run(short)
    cluster.settle()
    cluster.check()
    cluster.check_settled()


@_REPEATABLE
@given(
    st.lists(st.tuples(st.integers(0, 9_000), st.integers(1, 9)), min_size=1, max_size=12),
    st.integers(0, 3_000),
    st.booleans(),
)
def test_what_was_let_in_without_tokens_counts_for_a_minute_from_when_it_came_and_no_longer(
    calls: list[tuple[int, int]], told_after_ms: int, is_lost_once: bool
) -> None:
    account, now_ms = Account(1), 1_000_000
    account.begin_replay(LIMIT, 1, now_ms, now_ms)
    came: list[tuple[int, int]] = []
    for pause_ms, count in calls:
        now_ms += pause_ms
        if isinstance(account.replay(count, now_ms), Charge):
            came.append((now_ms, count))
    now_ms += told_after_ms
    if is_lost_once:
        account.make_ask(LIMIT, 0, 0, now_ms, was_away=True)
        account.fail()
    book = GrantBook(1)
    told_ms = now_ms
    book.ask(1, account.make_ask(LIMIT, 0, 0, now_ms, was_away=True), LIMIT, START_MS + now_ms)
    packed = book.pack()
    for at_ms in sorted({edge for one, _ in came for edge in (one + QUOTA_WINDOW_MS, one + QUOTA_WINDOW_MS + 301)}):
        if at_ms < told_ms:
            continue
        later = GrantBook.unpack(packed)
        later.ask(2, Ask(), LIMIT, START_MS + at_ms)
        least = sum([count for one, count in came if one > at_ms - QUOTA_WINDOW_MS])
        most = sum([count for one, count in came if one > at_ms - QUOTA_WINDOW_MS - 3 * BUCKET_MS])
        assert least <= later.count <= most


def test_after_an_outage_a_host_that_was_idle_gets_nothing_before_all_have_told() -> None:
    """The first to ask has nothing to tell; what another one let in meanwhile is told after it."""
    cluster = QuotaCluster()
    idle, busy, third = cluster.hosts
    cluster.ask(busy, LIMIT)
    cluster.answer(busy)
    cluster.enqueue(busy, LIMIT * 9 // 10)
    cluster.go_on(QUOTA_WINDOW_MS * 2 // 3)
    cluster.go_away()
    cluster.go_on(QUOTA_WINDOW_MS // 2)
    cluster.enqueue(busy, LIMIT * 9 // 10)
    cluster.away_since_ms = None
    for host in cluster.hosts:
        host.has_told = False
    for host in (idle, third, busy):
        cluster.ask(host, LIMIT)
        cluster.answer(host)
        cluster.enqueue(host, LIMIT // 2)
    cluster.go_on(HOLD_MS)
    for host in (idle, third):
        cluster.ask(host, LIMIT // 2)
        cluster.answer(host)
        cluster.enqueue(host, LIMIT // 2)
    assert cluster.worst_minute() <= LIMIT * (100 + REPLAY_PERCENT) // 100


@_REPEATABLE
@given(st.integers(1, LIMIT), st.lists(st.integers(1, 60), min_size=1, max_size=20))
def test_while_the_book_holds_a_host_that_takes_itself_for_alone_lets_in_no_more_than_the_room(
    told_count: int, calls: list[int]
) -> None:
    """Others let in items without tokens, and have told since."""
    book, account, now_ms = GrantBook(1), Account(1), 1_000_000
    book.ask(2, Ask(spent=[(0, told_count)], was_away=True), LIMIT, START_MS + now_ms)
    ask = account.make_ask(LIMIT, 5, 5, now_ms, was_away=True)
    account.take(ask, book.ask(1, ask, LIMIT, START_MS + now_ms), now_ms)
    account.begin_replay(LIMIT, 1, now_ms, now_ms)
    let_in = sum([count for count in calls if isinstance(account.replay(count, now_ms + 1), Charge)])
    assert told_count + let_in <= LIMIT
