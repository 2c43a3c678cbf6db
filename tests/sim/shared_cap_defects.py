"""Defects of caps that hosts share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foqs.cluster.homes.cap_homes import CapHomes
from foqs.cluster.homes.cap_ledger import CapLedger
from foqs.host.dispatch.tokens import Tokens
from foqs.model.shared_caps import CapGrant, CapKey, SharedCap
from tests.sim.planting import in_place_of

_grant = CapLedger._grant


@in_place_of(CapHomes, "home_of")
def takes_itself_for_the_home_of_every_cap(self: CapHomes, key: CapKey) -> str:
    return self._me


@in_place_of(CapHomes, "members")
def lets_the_whole_cap_through_itself(self: CapHomes, host_ids: Sequence[str], homes: Sequence[str]) -> None:
    return None


@in_place_of(CapLedger, "_grant")
def grants_tokens_that_are_not_there(self: CapLedger, entry: Any, *arguments: Any) -> CapGrant:
    entry.tokens = 1_000.0
    return _grant(self, entry, *arguments)


@in_place_of(CapLedger, "_grant")
def gives_a_host_more_than_its_part(self: CapLedger, entry: Any, part: Any, ask: Any, now_s: float) -> CapGrant:
    shorts = [(other, other.short_until_s) for other in entry.parts.values() if other is not part]
    for other, _ in shorts:
        other.short_until_s = 0.0
    grant = _grant(self, entry, part, ask, now_s)
    for other, until_s in shorts:
        other.short_until_s = until_s
    return grant


@in_place_of(CapHomes, "_watch")
def never_asks_again(self: CapHomes, cap: SharedCap) -> None:
    return None


@in_place_of(Tokens, "fed")
def does_not_serve_what_has_waited_for_tokens(self: Tokens, namespace: int, name: str) -> None:
    return None
