"""Accounts of some hosts and the book of their quota, held against a plain list of all that was let in.

The meta database may be away, its clock may be stepped back, and asks may be refused, late or lost. It holds what
docs/decisions/0032-dated-tokens.md promises: `check` after each step, and `worst_minute` at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from foqs.host.admission.account import Account, Charge
from foqs.model.grants import BUCKET_MS, QUOTA_WINDOW_MS, Ask, Grant, GrantBook

LIMIT = 300
HOSTS_COUNT = 3
START_MS = 1_700_000_000_000
_SLACK_MS = 2 * BUCKET_MS
_NEVER_MS = -10_000_000


@dataclass
class LetIn:
    at_ms: int
    count: int
    charge: Charge


def worst_minute(let_in: Sequence[LetIn]) -> int:
    """The most that any minute let in."""
    return max(
        [sum([one.count for one in let_in if end.at_ms - QUOTA_WINDOW_MS < one.at_ms <= end.at_ms]) for end in let_in],
        default=0,
    )


@dataclass
class Host:
    number: int
    clock_ms: int
    """Its clock less the true time."""
    account: Account = field(default_factory=lambda: Account(1))
    has_told: bool = True
    """The book knows of the last outage from it."""


class Asked(NamedTuple):
    host: Host
    at_ms: int
    ask: Ask
    answer: Grant | None


class QuotaCluster:
    """The steps are named by what happens. Times are true ones, in milliseconds."""

    def __init__(self) -> None:
        self.now_ms = 1_000_000
        self.step_ms = 0
        """By how much the clock of the meta database was stepped back."""
        self.book = GrantBook(1)
        self.hosts = [Host(number, number * 123_456) for number in range(HOSTS_COUNT)]
        self.let_in: list[LetIn] = []
        self.away_since_ms: int | None = None
        self.under_way: dict[int, Asked] = {}

    # --- steps ---

    def go_on(self, by_ms: int) -> None:
        self.now_ms += by_ms

    def enqueue(self, host: Host, count: int) -> None:
        """Let in by tokens, or without while the book is away or holds."""
        account, now_ms = host.account, self.now_ms + host.clock_ms
        account.arrived_count += count
        charge: Charge | int | None = account.spend(count, now_ms)
        if charge is None and (self.away_since_ms is not None or account.holds(now_ms)):
            since_ms = now_ms if self.away_since_ms is None else self.away_since_ms + host.clock_ms
            account.begin_replay(LIMIT, HOSTS_COUNT, since_ms, now_ms)
            charge = account.replay(count, now_ms)
        if isinstance(charge, Charge):
            self.let_in.append(LetIn(self.now_ms, count, charge))

    def refund(self, at: int, count: int) -> None:
        """Some of what was let in was a duplicate, or had no room."""
        if self.let_in:
            one = self.let_in[at % len(self.let_in)]
            count = min(count, one.count)
            one.count -= count
            one.charge.refund(count)

    def drop(self, host: Host) -> None:
        host.account.drop_tokens(self.now_ms + host.clock_ms)

    def ask(self, host: Host, waiting_count: int) -> None:
        """The ask comes to the book; its answer is under way, or the meta database is away."""
        if host.number in self.under_way:
            return
        at_ms = self.now_ms + host.clock_ms
        ask = host.account.make_ask(LIMIT, waiting_count, min(waiting_count, 5), at_ms, was_away=not host.has_told)
        if self.away_since_ms is not None:
            host.account.fail()
            return
        answer = self.book.ask(host.number, ask, LIMIT, START_MS + self.now_ms - self.step_ms)
        host.has_told = True
        self.under_way[host.number] = Asked(host, at_ms, ask, answer)

    def refuse(self, host: Host) -> None:
        """Another session is at the book: certainly nothing was done."""
        if host.number not in self.under_way:
            at_ms = self.now_ms + host.clock_ms
            host.account.refused(host.account.make_ask(LIMIT, 5, 5, at_ms, was_away=False))

    def answer(self, host: Host) -> None:
        if (asked := self.under_way.pop(host.number, None)) is not None and asked.answer is not None:
            host.account.take(asked.ask, asked.answer, asked.at_ms)

    def lose(self, host: Host) -> None:
        """The host will never know that its ask was done."""
        if self.under_way.pop(host.number, None) is not None:
            host.account.fail()

    def step_back(self, by_ms: int) -> None:
        """The clock of the meta database is stepped back. What is under way comes before."""
        for host in self.hosts:
            self.answer(host)
        self.step_ms += by_ms

    def go_away(self) -> None:
        """The meta database is away: what is under way is lost."""
        if self.away_since_ms is None:
            for host in self.hosts:
                self.lose(host)
            self.away_since_ms = self.now_ms

    def come_back(self, pauses_ms: list[int]) -> None:
        """It is back, and each host asks it within the hold, after others."""
        if self.away_since_ms is None:
            return
        self.away_since_ms = None
        for host in self.hosts:
            host.has_told = False
        for host, pause_ms in zip(self.hosts, pauses_ms, strict=True):
            self.go_on(pause_ms)
            self.ask(host, 3)
            self.answer(host)

    # --- what must hold ---

    def count_since(self, since_ms: int) -> int:
        return sum([one.count for one in self.let_in if one.at_ms > since_ms])

    def check(self) -> None:
        """The book has all that was let in within a minute, but what hosts have not told it yet."""
        if self.away_since_ms is not None:
            return
        untold_count = sum([host.account._unreported_count for host in self.hosts])
        told = [asked.ask for asked in self.under_way.values()]
        assert self.known_count() + untold_count >= self.count_since(self.now_ms - QUOTA_WINDOW_MS), told

    def known_count(self) -> int:
        """The tokens in the book, as a host would find them."""
        copy = GrantBook.unpack(self.book.pack())
        copy.ask(99, Ask(), LIMIT, START_MS + self.now_ms - self.step_ms)
        return copy.count

    def settle(self) -> None:
        """All hosts give back all that they have in hand, and tell all."""
        for host in self.hosts:
            self.answer(host)
            self.drop(host)
            at_ms = self.now_ms + host.clock_ms
            ask = host.account.make_ask(LIMIT, 0, 0, at_ms, was_away=False)._replace(wanted_count=0)
            answer = self.book.ask(host.number, ask, LIMIT, START_MS + self.now_ms - self.step_ms)
            host.account.take(ask, answer, at_ms)

    def check_settled(self) -> None:
        """And it has nothing else: what was let in leaves a minute after it, or after the date of its token."""
        most = self.count_since(self.now_ms - QUOTA_WINDOW_MS - _SLACK_MS)
        assert self.known_count() <= most, "tokens are lost"

    def worst_minute(self) -> int:
        return worst_minute(self.let_in)
