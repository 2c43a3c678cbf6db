"""Defects of quotas: of the book, and of the hosts that have tokens of it."""

from __future__ import annotations

from foqs.host.admission.account import Account, Charge, Lot
from foqs.host.admission.hosted_quota import HostedQuota
from foqs.host.admission.quotas import Quotas
from foqs.model.grants import Ask, GrantBook
from tests.sim.chance import Profile
from tests.sim.planting import in_place_of
from tests.sim.quotas import is_exact

_refund, _put_aside, _move_to = Account.refund, Account._put_aside, GrantBook._move_to


def _has_hosts(profile: Profile) -> bool:
    return is_exact(profile) and bool(profile.host_fault_rate or profile.drain_rate)


@in_place_of(GrantBook, "_granted", is_exact)
def grants_what_is_asked_for(self: GrantBook, host: int, ask: Ask, limit: int, room: int, *, is_scarce: bool) -> int:
    return ask.wanted_count


@in_place_of(GrantBook, "_move_to", is_exact)
def forgets_tokens_with_their_date(self: GrantBook, now_ms: int) -> None:
    _move_to(self, now_ms)
    self._tokens = {date_ms: count for date_ms, count in self._tokens.items() if date_ms > now_ms}


@in_place_of(Account, "_put_aside", is_exact)
def gives_back_what_it_has_spent(self: Account, lot: Lot, now_ms: int) -> None:
    self.in_hand += lot.spent
    lot.left += lot.spent
    _put_aside(self, lot, now_ms)


@in_place_of(Charge, "refund", is_exact)
def gives_back_what_was_let_in(self: Charge, count: int) -> None:
    _refund(self._account, count + 3, self._bucket, self._lot)


@in_place_of(Quotas, "_let_in", _has_hosts)
def lets_in_what_it_alone_has_room_for(self: Quotas, hosted: HostedQuota, count: int, now_ms: int) -> Charge | None:
    """As hosts did when each counted for itself."""
    hosted.account.begin_replay(hosted.limit, 1, now_ms, now_ms)
    return self._replay(hosted, count, now_ms)
