"""The ledger of a cap home: the tokens of each cap, and the hosts that have a part in it.

Tokens are made only by time and granted ahead: a host that asks when none are left gets the next ones, dated. So one
ask brings a token, however low the cap is, and hosts get theirs in the order of their asks. Nothing here is stored: a
new home begins with one token.

Pure: times are arguments.
"""

from __future__ import annotations

from collections.abc import Set

from foqs.cluster.homes.portions import Portions
from foqs.model import limits
from foqs.model.caps import burst_of
from foqs.model.shared_caps import AHEAD_MS, VALID_MS, VALID_MS_MAX, CapAsk, CapGrant, CapKey

SHORT_MS = 1 * limits.SECOND_MS
"""Time for which a host whose items wait for tokens keeps its part after an ask."""
AGAIN_MS = 100
"""A host that already holds its full part asks again after this time."""
CAPS_OF_HOME_MAX = 200_000
"""Caps that one home knows, for all hosts together; a single host can have twice its even share."""


class _Part:
    """A host that has asked for tokens of a cap, and has not said since that it wants none."""

    __slots__ = ("ahead_count", "ahead_until_s", "share", "short_until_s", "silent_from_s", "weight")

    def __init__(self) -> None:
        self.ahead_count = 0
        """The future tokens that it was granted. Some can be of the present by now."""
        self.ahead_until_s = 0.0
        """The time at which the last of these is of the present, too."""
        self.share = 0.0
        """The rate that it was granted for tokens of its own making, in tokens a second."""
        self.silent_from_s = 0.0
        """The time from which it makes tokens by itself, unless it asks before."""
        self.short_until_s = 0.0
        self.weight = 1


class _Entry:
    __slots__ = ("at_s", "granted", "parts", "rate", "returned_count", "tokens")

    def __init__(self, rate: float, now_s: float) -> None:
        self.rate = rate
        self.tokens = 1.0
        """Below 0 if future tokens are already granted."""
        self.returned_count = 0
        """Returned tokens, which can be used at once although other hosts have future ones."""
        self.at_s = now_s
        self.parts: dict[str, _Part] = {}
        self.granted: dict[str, int] = {}
        """The tokens that each asking host can return, because it was recently granted these."""


class CapLedger:
    """The caps whose home this host is. `CapHomes` owns it."""

    def __init__(self) -> None:
        self._entries: dict[CapKey, _Entry] = {}
        self._members: Set[str] = frozenset()
        self._unswept: list[CapKey] = []
        self._portions: Portions[CapKey] = Portions(CAPS_OF_HOME_MAX)
        """The caps that each host has asked about."""

    def __len__(self) -> int:
        return len(self._entries)

    def keep(self, host_ids: Set[str]) -> None:
        """Keep only these hosts: the parts of others end when any host asks for the same cap."""
        self._members = host_ids
        self._portions.has_hosts(len(host_ids))

    def ask(self, host_id: str, ask: CapAsk, rate: float, now_s: float) -> CapGrant | None:
        """Grant a host its tokens of a cap of this rate, or return None if this home knows too many caps."""
        for oldest in self._portions.put(host_id, ask.key):
            self._leave(host_id, oldest)
        entry = self._entries.get(ask.key)
        if entry is None:
            if len(self._entries) >= 2 * CAPS_OF_HOME_MAX and (greediest := self._portions.greediest()) is not None:
                self._leave(*greediest)
            entry = self._entries[ask.key] = _Entry(rate, now_s)
        self._refill(ask.key, entry, now_s)
        entry.granted.setdefault(host_id, 0)
        if rate < entry.rate and entry.tokens < 0:
            # The tokens granted ahead are a span of time; at the lower rate the same number would take longer.
            entry.tokens *= rate / entry.rate
        entry.rate = rate
        self._take_back(entry, host_id, ask.unused_count, now_s)
        if ask.is_for_nothing:
            entry.parts.pop(host_id, None)
            return CapGrant(ask.key, 0, 0.0, 0.0, 0.0)
        part = entry.parts.setdefault(host_id, _Part())
        part.weight = max(1, ask.weight)
        if ask.is_short:
            part.short_until_s = now_s + SHORT_MS / 1000
        grant = self._grant(entry, part, ask, now_s)
        kept_max = int(burst_of(rate)) + int(rate * (AHEAD_MS + VALID_MS) / 1000) + 3
        entry.granted[host_id] = min(kept_max, entry.granted[host_id] + grant.granted_count)
        return grant

    def _leave(self, host_id: str, key: CapKey) -> None:
        """End a host's part in a cap, and forget the cap if no other host has asked for it."""
        self._portions.drop(host_id, key)
        if (entry := self._entries.get(key)) is None:
            return
        entry.parts.pop(host_id, None)
        entry.granted.pop(host_id, None)
        if not entry.granted:
            del self._entries[key]

    def _take_back(self, entry: _Entry, host_id: str, count: int, now_s: float) -> None:
        """Take back tokens that a host has not used: future ones first, which a host returns before others.

        A host can return only granted tokens.
        """
        count = min(count, entry.granted[host_id])
        entry.granted[host_id] -= count
        if count <= 0:
            return
        ahead_count = count  # All tokens of a host that is not known here any more can be future ones.
        part = entry.parts.get(host_id)
        if part is not None:
            ahead_count = min(count, part.ahead_count) if part.ahead_until_s > now_s else 0
            part.ahead_count = 0
        burst = burst_of(entry.rate)
        entry.tokens = min(burst, entry.tokens + ahead_count)
        entry.returned_count = min(int(burst), entry.returned_count + count - ahead_count)
        if entry.tokens >= 0:
            entry.tokens, entry.returned_count = min(burst, entry.tokens + entry.returned_count), 0

    def _grant(self, entry: _Entry, part: _Part, ask: CapAsk, now_s: float) -> CapGrant:
        rate = entry.rate
        short_weight = sum([other.weight for other in entry.parts.values() if other.short_until_s > now_s])
        if part.short_until_s <= now_s:
            short_weight += part.weight
        ahead_count = max(1, int(rate * AHEAD_MS / 1000 * part.weight / short_weight))
        # One more, so that the next token is on its way while the last one is being used.
        # Grants that were lost on their way must not use up more future tokens than hosts can hold.
        debt_max = rate * AHEAD_MS / 1000 + 2 * len(entry.parts)
        left_count = int(entry.tokens + debt_max)
        count = max(0, min(ask.wanted_count, ahead_count + 1 - ask.held_count, left_count))
        if entry.returned_count:
            after_s, count = 0.0, min(count, entry.returned_count)
            entry.returned_count -= count
        else:
            after_s = max(0.0, (count - entry.tokens) / rate) if count else 0.0
            entry.tokens -= count
        if after_s > 0:
            part.ahead_count = count + (part.ahead_count if part.ahead_until_s > now_s else 0)
            part.ahead_until_s = now_s + after_s
        valid_s = max(VALID_MS, min(VALID_MS_MAX, 1000 / rate)) / 1000
        ends_s = after_s + valid_s if count else AGAIN_MS / 1000
        weight = sum([other.weight for other in entry.parts.values()])
        others_share = sum([other.share for other in entry.parts.values() if other is not part])
        part.share = max(0.0, min(rate * part.weight / weight, rate - others_share))
        part.silent_from_s = max(part.silent_from_s, now_s + ends_s)
        return CapGrant(ask.key, count, after_s * 1000, ends_s * 1000, part.share)

    def _refill(self, key: CapKey, entry: _Entry, now_s: float) -> None:
        """Add the tokens made since the last time, less the ones that hosts without contact have made themselves."""
        for host_id in [one for one in entry.parts if one not in self._members]:
            del entry.parts[host_id]
        for host_id in [one for one in entry.granted if one not in self._members]:
            del entry.granted[host_id]
            self._portions.drop(host_id, key)
        since_s = entry.at_s
        if now_s <= since_s:
            return
        made = entry.rate * (now_s - since_s)
        for part in entry.parts.values():
            made -= part.share * max(0.0, now_s - max(since_s, part.silent_from_s))
        entry.at_s = now_s
        entry.tokens = min(burst_of(entry.rate), entry.tokens + max(0.0, made))

    def sweep(self, count: int, now_s: float) -> None:
        """Check up to `count` caps, in turn, and forget full ones in which no host has a part."""
        if not self._unswept:
            self._unswept = list(self._entries)
        some, self._unswept = self._unswept[:count], self._unswept[count:]
        for key in some:
            entry = self._entries.get(key)
            if entry is None or entry.tokens + entry.rate * (now_s - entry.at_s) < burst_of(entry.rate):
                continue  # It cannot be full.
            self._refill(key, entry, now_s)
            if not entry.parts and entry.tokens >= burst_of(entry.rate):
                for host_id in entry.granted:
                    self._portions.drop(host_id, key)
                del self._entries[key]
