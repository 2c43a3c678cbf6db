"""Caps on deliveries: tokens, one for each item that is delivered."""

from __future__ import annotations

import math
from typing import Protocol

CAP_BURST_MS = 100
"""A cap that was not used gives at once what it gives in this time."""
CAP_BURST_ITEMS_MIN = 2
"""It gives at least so many items, so that none is lost to the time that a claim takes."""

SHARED_BURST_MS = 700
"""Where hosts share a cap, tokens of this time may be in their hands; they are used late, but all are counted."""
SHARED_BURST_ITEMS = 2
"""Further tokens for each host: one in hand, and one that is being used."""

_ALMOST = 1e-9
"""Sums of many small parts of a token fall short of a whole one by less than this."""


class TokenSource(Protocol):
    """Where the tokens of a cap come from.

    `TokenBucket` makes them of time alone. `SharedCap` has what the home of a cap gives to several hosts.
    """

    @property
    def is_asking(self) -> bool:
        """Another host was just asked for tokens: also a call that does not wait should wait for what it says."""

    def take(self, count: int, now_s: float) -> int:
        """Take up to `count` tokens, and hold them. Returns how many there were."""

    def spend(self, count: int, now_s: float) -> None:
        """Count so many of the held tokens as used."""

    def unspend(self, count: int, now_s: float) -> None:
        """Take back so many tokens that were used for deliveries which have reached nobody."""

    def give_back(self, count: int, now_s: float) -> None:
        """Take back so many of the held tokens, which are not needed now."""

    def count(self, now_s: float) -> int:
        """How many there are."""

    def wait_s(self, now_s: float) -> float:
        """How long it takes until there is a token; infinite if nobody knows: then the dispatcher is told of it."""

    def weigh(self, weight: int) -> None:
        """Note how much waits on this host: where hosts share a cap, it gets its part of the tokens by that."""


class Cap(TokenSource, Protocol):
    """A token source that a topic or a namespace keeps until it has another cap."""

    @property
    def rate(self) -> float: ...

    def at_rate(self, rate: float, now_s: float) -> Cap:
        """The cap of another rate that takes its place; what this one is given back goes to that."""

    def end(self, now_s: float) -> None:
        """Note that there is no such cap any more."""


class TokenBucket:
    """Tokens at a rate: in any time t no more than rate * t + burst are spent.

    What is held counts against the burst, so a claim that takes long lets no more through at its end.
    """

    __slots__ = ("_at_s", "_heir", "_held_count", "_tokens", "burst", "is_asking", "rate")

    def __init__(self, rate: float, now_s: float, tokens: float = 1.0, held_count: int = 0) -> None:
        """`rate` is in items a second, and above 0. There are so many tokens at once, and others that are held."""
        self.rate = rate
        self.is_asking = False
        self.burst = burst_of(rate)
        self._tokens = tokens
        self._held_count = held_count
        self._at_s = now_s
        self._heir: TokenBucket | None = None
        """The one that has taken its place: it gets what comes back late."""

    def at_rate(self, rate: float, now_s: float) -> TokenBucket:
        """A bucket of another rate with what was saved up here, as far as that allows; what is held comes later."""
        self._refill(now_s)
        other = self._heir = TokenBucket(rate, now_s)
        other._tokens = min(self._tokens, other.burst)
        return other

    def end(self, now_s: float) -> None:
        """Note nothing: nobody else has a part in it."""

    def take(self, count: int, now_s: float) -> int:
        self._refill(now_s)
        granted = min(count, int(self._tokens + _ALMOST))
        self._tokens -= granted
        self._held_count += granted
        return granted

    def spend(self, count: int, now_s: float) -> None:
        self._refill(now_s)  # While these were held there was no room for as many.
        self._held_count -= count

    def unspend(self, count: int, now_s: float) -> None:
        if self._heir is not None:
            self._heir.unspend(count, now_s)
            return
        self._refill(now_s)
        self._tokens = max(self._tokens, min(self._tokens + count, self.burst - self._held_count))

    def give_back(self, count: int, now_s: float) -> None:
        self._refill(now_s)
        self._held_count -= count
        if self._heir is not None:
            self._heir.unspend(count, now_s)
            return
        self._tokens = min(self._tokens + count, max(0.0, self.burst - self._held_count))

    def count(self, now_s: float) -> int:
        self._refill(now_s)
        return int(self._tokens + _ALMOST)

    def wait_s(self, now_s: float) -> float:
        self._refill(now_s)
        return 0.0 if self._tokens >= 1 - _ALMOST else (1 - self._tokens) / self.rate

    def weigh(self, weight: int) -> None:
        """Note nothing: all tokens of the bucket are this host's."""

    def _refill(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self._at_s = now_s
            room = self.burst - self._held_count
            if self._tokens < room:
                self._tokens = min(room, self._tokens + elapsed_s * self.rate)


def shared_burst_of(rate: float, hosts_count: int) -> float:
    """The burst of a cap that several hosts share: the tokens that all of them can have in hand, in items."""
    return burst_of(rate) + rate * SHARED_BURST_MS / 1000 + SHARED_BURST_ITEMS * hosts_count


def burst_of(rate: float) -> float:
    """The items that a cap lets through at once after it was not used."""
    return max(float(CAP_BURST_ITEMS_MIN), rate * CAP_BURST_MS / 1000)


NEVER_S = math.inf
"""A wait that no time ends."""
