"""Caps on deliveries: tokens, one for each item that is delivered."""

from __future__ import annotations

import math
from typing import Protocol

CAP_BURST_MS = 100
"""Burst of a cap that was idle, in milliseconds of its rate."""
CAP_BURST_ITEMS_MIN = 2
"""The smallest burst, in items, so that no token is lost during the time that a claim takes."""

SHARED_BURST_MS = 700
"""Tokens of a shared cap that hosts can hold, in milliseconds of its rate. They are used late, but all are counted."""
SHARED_BURST_ITEMS = 2
"""Further tokens for each host: one in hand, and one in use."""

_ALMOST = 1e-9
"""Sums of many small parts of a token fall short of a whole token by less than this."""


class TokenSource(Protocol):
    """A source of the tokens of a cap.

    `TokenBucket` makes them from time alone. `SharedCap` holds the tokens that the home of a cap grants to several
    hosts.
    """

    @property
    def is_asking(self) -> bool:
        """True while an ask for tokens is under way to another host: even a call that does not wait should await its
        answer.
        """

    def take(self, count: int, now_s: float) -> int:
        """Take up to `count` tokens, and hold them. Returns the number taken."""

    def spend(self, count: int, now_s: float) -> None:
        """Count held tokens as used."""

    def unspend(self, count: int, now_s: float) -> None:
        """Take back used tokens whose deliveries have reached no consumer."""

    def refund(self, count: int, now_s: float) -> None:
        """Take back held tokens, which are not needed now."""

    def count(self, now_s: float) -> int:
        """Return the number of tokens."""

    def wait_s(self, now_s: float) -> float:
        """Return the time until a token exists. It is infinite if that is unknown; the source then notifies the
        dispatcher.
        """

    def weigh(self, weight: int) -> None:
        """Note how much waits on this host. Hosts that share a cap divide its tokens by these weights."""


class Cap(TokenSource, Protocol):
    """A token source that a topic or a namespace keeps until its cap changes."""

    @property
    def rate(self) -> float: ...

    def at_rate(self, rate: float, now_s: float) -> Cap:
        """Return the cap of another rate that replaces this one. Tokens that return to this one are passed on to it."""

    def end(self, now_s: float) -> None:
        """Note that the cap no longer exists."""

    def left_s(self, now_s: float) -> float:
        """Return the same as `wait_s`, but 0 if that is unknown because no item needed a token. It changes nothing."""


class TokenBucket:
    """Tokens at a rate: in any time t no more than rate * t + burst are spent.

    Held tokens count against the burst, so that the end of a long claim lets no more items through.
    """

    __slots__ = ("_at_s", "_heir", "_held_count", "_tokens", "burst", "is_asking", "rate")

    def __init__(self, rate: float, now_s: float, tokens: float = 1.0, held_count: int = 0) -> None:
        """Start with `tokens` free ones and `held_count` held ones. `rate` is in items a second, and above 0."""
        self.rate = rate
        self.is_asking = False
        self.burst = burst_of(rate)
        self._tokens = tokens
        self._held_count = held_count
        self._at_s = now_s
        self._heir: TokenBucket | None = None
        """The bucket that has replaced this one. It gets the tokens that return late."""

    def at_rate(self, rate: float, now_s: float) -> TokenBucket:
        """Return a bucket of another rate with the tokens saved up here, up to its burst. Held tokens follow when they
        return.
        """
        self._refill(now_s)
        other = self._heir = TokenBucket(rate, now_s)
        other._tokens = min(self._tokens, other.burst)
        return other

    def end(self, now_s: float) -> None:
        """Note nothing, because no other host shares the bucket."""

    def take(self, count: int, now_s: float) -> int:
        self._refill(now_s)
        granted = min(count, int(self._tokens + _ALMOST))
        self._tokens -= granted
        self._held_count += granted
        return granted

    def spend(self, count: int, now_s: float) -> None:
        self._refill(now_s)  # Held tokens left less room for new ones.
        self._held_count -= count

    def unspend(self, count: int, now_s: float) -> None:
        if self._heir is not None:
            self._heir.unspend(count, now_s)
            return
        self._refill(now_s)
        self._tokens = max(self._tokens, min(self._tokens + count, self.burst - self._held_count))

    def refund(self, count: int, now_s: float) -> None:
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

    def left_s(self, now_s: float) -> float:
        elapsed_s = max(0.0, now_s - self._at_s)
        tokens = max(self._tokens, min(self.burst - self._held_count, self._tokens + elapsed_s * self.rate))
        return 0.0 if tokens >= 1 - _ALMOST else (1 - tokens) / self.rate

    def weigh(self, weight: int) -> None:
        """Note nothing, because all tokens of the bucket are this host's."""

    def _refill(self, now_s: float) -> None:
        elapsed_s = now_s - self._at_s
        if elapsed_s > 0:
            self._at_s = now_s
            room = self.burst - self._held_count
            if self._tokens < room:
                self._tokens = min(room, self._tokens + elapsed_s * self.rate)


def shared_burst_of(rate: float, hosts_count: int) -> float:
    """Return the burst of a cap that several hosts share: the tokens that all hosts together can hold, in items."""
    return burst_of(rate) + rate * SHARED_BURST_MS / 1000 + SHARED_BURST_ITEMS * hosts_count


def burst_of(rate: float) -> float:
    """Return the number of items that a cap lets through at once after it was idle."""
    return max(float(CAP_BURST_ITEMS_MIN), rate * CAP_BURST_MS / 1000)


NEVER_S = math.inf
"""An endless wait."""
