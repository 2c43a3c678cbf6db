"""Defects around the meta database: of locks that outlive hosts, of rounds that are slow, and of quotas in an outage.

They are one line each, and a property or a short story finds each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from foqs.cluster.members.dead_hosts import DeadHosts
from foqs.cluster.members.host_watch import HOST_WATCH_GAP_MS_MAX, HostSign, HostWatch
from foqs.host.admission.account import Account, Lot
from foqs.model.errors import UnavailableError
from foqs.model.grants import Ask, Grant, GrantBook
from foqs.model.namespace import Namespace, NamespaceSettings
from foqs.testing.fake_meta import FakeMeta, memory_meta
from foqs.testing.fake_quotas import FakeQuotas
from tests.unit import test_quota_outages

_make_ask, _take, _fail, _ask = Account.make_ask, Account.take, Account.fail, GrantBook.ask
_asking = FakeQuotas.asking


def _leaves_the_locks_of_the_dead(self: DeadHosts, host_id: str) -> None:
    return None


def _fails_a_whole_ask_for_one_book(
    self: FakeQuotas, host_name: str, asks: Mapping[int, Ask], *, waits: bool
) -> Generator[float | None, None, Any]:
    answers = yield from _asking(self, host_name, asks, waits=waits)
    if any(isinstance(answer, UnavailableError) for answer in answers.values()):
        raise UnavailableError("lock wait timeout exceeded")
    return answers


class ByProperty(NamedTuple):
    """A defect that the property shows, and which it is not there without."""

    target: Any
    name: str
    replacement: Callable[..., Any]
    shows: Callable[[], None]

    def plant(self) -> Any:
        return patch.object(self.target, self.name, self.replacement)


def _gives_back_tokens_of_any_era(self: Account, lot: Lot, count: int) -> None:
    if count:
        self._returned[lot.date_ms] = self._returned.get(lot.date_ms, 0) + count


def _tells_replays_too_old(self: Account, *arguments: Any, **named: Any) -> Ask:
    ask = _make_ask(self, *arguments, **named)
    return ask._replace(spent=[(age_ms + 400, count) for age_ms, count in ask.spent])


def _tells_replays_too_young(self: Account, *arguments: Any, **named: Any) -> Ask:
    ask = _make_ask(self, *arguments, **named)
    return ask._replace(spent=[(max(0, age_ms - 400), count) for age_ms, count in ask.spent])


def _tells_replays_as_if_they_came_now(self: Account, *arguments: Any, **named: Any) -> Ask:
    ask = _make_ask(self, *arguments, **named)
    return ask._replace(spent=[(0, count) for _, count in ask.spent])


def _grants_at_once_after_an_outage(self: GrantBook, host: int, ask: Ask, limit: int, now_ms: int) -> Grant:
    return _ask(self, host, ask._replace(was_away=False), limit, now_ms)


def _replays_past_the_hold(self: Account, ask: Ask, grant: Grant, asked_ms: int) -> None:
    """It lets in what it did a minute ago, whatever others have told since."""
    _take(self, ask, grant, asked_ms)
    self._held_max = 1 << 31


def _forgets_replays_whose_ask_failed(self: Account) -> None:
    self._reporting = []


def _gives_refused_tokens_back_twice(self: Account, ask: Ask) -> None:
    _fail(self)
    for date_ms, count in ask.returned:
        self._returned[date_ms] = self._returned.get(date_ms, 0) + 2 * count


def _loses_refused_tokens(self: Account, ask: Ask) -> None:
    _fail(self)


def _has_gaps_wherever_rounds_are_slow(self: HostWatch) -> float:
    return HOST_WATCH_GAP_MS_MAX / 1000


def _slow_rounds_are_seen() -> None:
    """Within ten times the time that it may take."""
    watch, now_s = HostWatch(), 0.0
    for _ in range(100):
        watch.saw(now_s, now_s + 0.6, {"other": HostSign(1, 1)})
        now_s += 1.1
    assert watch.is_dead("other", -1.0, now_s)


_STEPS_OF_A_CLOCK = (
    test_quota_outages.test_no_step_of_the_clock_lets_in_more_than_the_limit_or_makes_the_book_forget_what_was_let_in
)
_ALONE = test_quota_outages.test_while_the_book_holds_a_host_that_takes_itself_for_alone_lets_in_no_more_than_the_room
_NOTHING_TWICE = test_quota_outages.test_without_losses_nothing_is_lost_and_nothing_is_given_back_twice
_AGES = test_quota_outages.test_what_was_let_in_without_tokens_counts_for_a_minute_from_when_it_came_and_no_longer
_IDLE = test_quota_outages.test_after_an_outage_a_host_that_was_idle_gets_nothing_before_all_have_told


def _with_a_locked_book() -> tuple[FakeMeta, list[int]]:
    """Two namespaces, and the book of the first is that of a host that hangs."""
    meta = memory_meta(lambda: 1_700_000_000_000)
    numbers = [1, 2]
    for number in numbers:
        meta.reach().tables.namespaces[f"n{number}"] = Namespace(number, f"n{number}", NamespaceSettings(), 0)
    sessions = meta.reach().sessions
    assert sessions.lock(sessions.begin("dead#1"), ("quota", 1))
    return meta, numbers


def _one_book_fails_no_other() -> None:
    meta, numbers = _with_a_locked_book()
    try:
        answers = meta.quotas.ask("a", dict.fromkeys(numbers, Ask(1)))
    except UnavailableError as error:
        raise AssertionError("the whole ask fails") from error
    assert [isinstance(answers[number], Grant) for number in numbers] == [False, True]


def _locks_of_the_dead_end() -> None:
    meta, numbers = _with_a_locked_book()
    dead = DeadHosts(cast(Any, meta.hosts), lambda host_id: True, lambda: 0.0)
    dead.found(["dead#1"])
    dead.tidy()
    assert all(isinstance(one, Grant) for one in meta.quotas.ask("a", dict.fromkeys(numbers, Ask(1))).values())


BY_PROPERTY: dict[str, ByProperty] = {
    "leaves the locks of the dead": ByProperty(
        DeadHosts, "_end_sessions", _leaves_the_locks_of_the_dead, _locks_of_the_dead_end
    ),
    "fails a whole ask for one book": ByProperty(
        FakeQuotas, "asking", _fails_a_whole_ask_for_one_book, _one_book_fails_no_other
    ),
    "gives back tokens of any era": ByProperty(Account, "_return", _gives_back_tokens_of_any_era, _STEPS_OF_A_CLOCK),
    "tells replays too old": ByProperty(Account, "make_ask", _tells_replays_too_old, _AGES),
    "tells replays too young": ByProperty(Account, "make_ask", _tells_replays_too_young, _AGES),
    "tells replays as if they came now": ByProperty(Account, "make_ask", _tells_replays_as_if_they_came_now, _AGES),
    "forgets replays whose ask failed": ByProperty(Account, "fail", _forgets_replays_whose_ask_failed, _AGES),
    "grants at once after an outage": ByProperty(GrantBook, "ask", _grants_at_once_after_an_outage, _IDLE),
    "replays past the hold": ByProperty(Account, "take", _replays_past_the_hold, _ALONE),
    "gives refused tokens back twice": ByProperty(Account, "refused", _gives_refused_tokens_back_twice, _NOTHING_TWICE),
    "loses refused tokens": ByProperty(Account, "refused", _loses_refused_tokens, _NOTHING_TWICE),
    "has gaps wherever rounds are slow": ByProperty(
        HostWatch, "_gap_s_max", _has_gaps_wherever_rounds_are_slow, _slow_rounds_are_seen
    ),
}
