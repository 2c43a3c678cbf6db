"""A cap that several hosts share, from the side of one host: it asks the home of the cap for tokens ahead of need.

Every topic and namespace with a cap has one home among the living hosts (foqs/cluster/homes/cap_homes.py), which makes
all of its tokens. A grant is a few tokens that are valid from some moment on, and for a short time. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from foqs.model.caps import NEVER_S, TokenBucket, burst_of

CapKey = tuple[int, str]
"""The number of a namespace and the name of a topic, which is empty for the cap of the namespace."""

AHEAD_MS = 300
"""A host asks for the tokens of this time at most, including the tokens that it holds."""
VALID_MS = 400
"""Validity of a token. The time in which the cap makes one token counts instead, if it is longer."""
VALID_MS_MAX = 10_000
RETRY_MS = 500
"""Pause before a home that was unreachable, or that grants no tokens, is asked again."""


class CapAsk(NamedTuple):
    """The ask of a host to the home of a cap. A host that wants no tokens has no part in the cap until its next ask."""

    key: CapKey
    rate: float
    """The cap as the host knows it. The home uses it while it knows none itself."""
    wanted_count: int
    held_count: int
    """Tokens that the host has, used for claims or not."""
    unused_count: int
    """Tokens that expired unused since the last ask."""
    weight: int
    is_short: bool
    """True if items have waited for tokens since the last ask."""

    @property
    def is_for_nothing(self) -> bool:
        """True if the host has no part in the cap from then on."""
        return self.wanted_count <= 0 and not self.held_count


class CapGrant(NamedTuple):
    key: CapKey
    granted_count: int
    after_ms: float
    """Start of the tokens' validity, counted from the response."""
    ends_ms: float
    """End of the tokens' validity, counted from the ask. A host without tokens asks again then."""
    share: float
    """Tokens a second that the host makes itself from then on if it cannot reach the home."""


class HomesOfCaps(Protocol):
    """The homes of caps, as a shared cap asks them; foqs.cluster.homes.cap_homes.CapHomes is the real one."""

    @property
    def version(self) -> int:
        """A number that changes with every change of the living hosts."""

    @property
    def hosts_count(self) -> int: ...

    def home_of(self, key: CapKey) -> str: ...

    def wants(self, cap: SharedCap) -> None:
        """Ask the cap's home for tokens soon."""

    def left(self, home: str, ask: CapAsk) -> None:
        """Release this host's part at the former home, by this ask for nothing."""


class SharedCap:
    """A TokenSource whose tokens come from the home of the cap.

    A single host makes all tokens itself. A host whose home is unreachable continues with the share from the home's
    last answer, or without tokens if it has no share. A share belongs to one home and ends when the cap gets another.
    """

    __slots__ = (
        "_again_s",
        "_asked",
        "_batches",
        "_has_part",
        "_held_count",
        "_homes",
        "_is_lost",
        "_is_short",
        "_is_used",
        "_own",
        "_share",
        "_target",
        "_target_max",
        "_until_s",
        "_unused_count",
        "_version",
        "heir",
        "home",
        "is_asking",
        "is_over",
        "key",
        "rate",
        "watched_s",
        "weight",
    )  # fmt: skip

    def __init__(self, key: CapKey, rate: float, now_s: float, homes: HomesOfCaps) -> None:
        self.key = key
        self.rate = rate
        self.weight = 1
        self.home = ""
        """The home that answered last, or whose answer is expected."""
        self.is_asking = False
        """True if an ask is under way, or will be sent soon."""
        self.watched_s = NEVER_S
        """The time at which `CapHomes` checks it."""
        self.is_over = False
        """True if another cap has replaced it, or the cap no longer exists."""
        self.heir: SharedCap | None = None
        """The cap that has replaced it, which gets the tokens that return late."""
        self._until_s = now_s
        """The end of the last token's validity."""
        self._again_s = now_s
        """The time before which its home is not asked."""
        self._asked: CapAsk | None = None
        """The ask under way."""
        self._is_short = False
        """True if a claim has waited for a token since the last ask."""
        self._homes = homes
        self._own: TokenBucket | None = None
        """The source of tokens while no home grants any."""
        self._batches: list[tuple[float, float, int]] = []
        """Tokens in hand: start and end of their validity, and their count."""
        self._held_count = 0
        self._target = 1
        """The number of tokens to have in hand: doubled when it was not enough, reduced when tokens expired unused."""
        self._target_max = max(1, int(rate * AHEAD_MS / 1000))
        self._unused_count = 0
        self._share = 0.0
        self._has_part = False
        """True if the home can have a share reserved for this host, until it gets an ask for nothing."""
        self._is_lost = False
        """True if the home did not answer the last ask."""
        self._is_used = False
        """True if tokens were taken since the last ask."""
        self._version = -1
        self._follow(now_s)

    def check_s(self, now_s: float) -> float:
        """Return the time of its next check, at which its home can be asked again, or some of its tokens have ended."""
        if self._again_s > now_s:
            return self._again_s
        if self._unused_count:
            return now_s
        return min([until_s for _, until_s, _ in self._batches], default=self._until_s)

    @property
    def is_to_ask(self) -> bool:
        """True if its home must get an ask even if no claim uses the cap."""
        return self._has_part or self._unused_count > 0

    @property
    def in_hand_count(self) -> int:
        """The number of tokens that are valid now or later, and not in use."""
        return sum([count for _, _, count in self._batches])

    # ---- TokenSource ----

    def at_rate(self, rate: float, now_s: float) -> SharedCap:
        """Return the cap of another rate that replaces this one, with its part of the cap and its tokens.

        The new cap keeps as many of the tokens as its burst allows. The others return to the home.
        """
        self._follow(now_s)
        self.is_over = True
        other = self.heir = SharedCap(self.key, rate, now_s, self._homes)
        other.weight = self.weight
        if self._homes.hosts_count < 2:
            other._own = self._own.at_rate(rate, now_s) if self._own is not None else other._own
            return other
        other._has_part, other._is_used, other._until_s = self._has_part, self._is_used, self._until_s
        other._share = self._share * min(1.0, rate / self.rate)
        if self._own is not None:
            own_rate = other._share or rate / self._homes.hosts_count
            other._own, other._is_lost = self._own.at_rate(own_rate, now_s), self._is_lost
        other._inherit(self._batches, self._unused_count, now_s)
        if other.is_to_ask:
            other._ask_soon(now_s)
        return other

    def _inherit(self, batches: Sequence[tuple[float, float, int]], unused_count: int, now_s: float) -> None:
        """Take over the tokens of the cap before. Tokens that are not valid yet were made at its rate, and return to
        the home.
        """
        room = int(burst_of(self.rate))
        for from_s, until_s, count in batches:
            kept_count = min(count, room) if from_s <= now_s < until_s else 0
            if kept_count:
                self._batches.append((from_s, until_s, kept_count))
            room -= kept_count
            unused_count += count - kept_count
        self._unused_count = unused_count

    def end(self, now_s: float) -> None:
        """End the cap. Its home gets the tokens, in case the cap is set again."""
        self._follow(now_s)
        self.is_over = True
        unused_count = self._unused_count + self.in_hand_count
        if self._has_part or unused_count:
            self._leave(unused_count)
        self._batches, self._unused_count, self._has_part = [], 0, False

    def _pass_on(self, count: int, now_s: float) -> None:
        """Pass on tokens that return after the end."""
        if self.heir is not None:
            self.heir.unspend(count, now_s)
        else:
            self._leave(count)

    def _leave(self, unused_count: int) -> None:
        """Release this host's part at the home, and report unused tokens."""
        if self._homes.hosts_count >= 2:
            nothing = CapAsk(self.key, self.rate, 0, 0, unused_count, self.weight, is_short=False)
            self._homes.left(self.home, nothing)

    def take(self, count: int, now_s: float) -> int:
        self._follow(now_s)
        self._is_used = True
        if self._own is not None:
            granted = self._own.take(count, now_s)
            if self._is_lost:
                self._ask_soon(now_s)
        else:
            granted = self._take_granted(count, now_s)
        self._held_count += granted
        return granted

    def spend(self, count: int, now_s: float) -> None:
        self._held_count -= count
        if self._own is not None:
            self._own.spend(count, now_s)

    def unspend(self, count: int, now_s: float) -> None:
        if self.is_over:
            self._pass_on(count, now_s)
            return
        self._follow(now_s)
        if self._own is not None:
            self._own.unspend(count, now_s)
            return
        # The items that these tokens were for are on this host again. But they can be many, and of any age.
        room = int(burst_of(self.rate)) + self._target_max - self.in_hand_count if self._until_s > now_s else 0
        kept_count = max(0, min(count, room))
        if kept_count:
            self._batches.append((now_s, self._until_s, kept_count))
        if kept_count < count:
            self._note_unused(count - kept_count, now_s)
            self._ask_soon(now_s)

    def refund(self, count: int, now_s: float) -> None:
        if not count:
            return  # An empty batch would look like tokens in hand.
        self._held_count -= count
        if self.is_over:
            self._pass_on(count, now_s)
            return
        if self._own is not None:
            self._own.refund(count, now_s)
        elif self._until_s > now_s:
            self._batches.append((now_s, self._until_s, count))
        else:
            self._note_unused(count, now_s)
            self._ask_soon(now_s)

    def count(self, now_s: float) -> int:
        self._follow(now_s)
        if self._own is not None:
            return self._own.count(now_s)
        self._drop_old(now_s)
        return sum([count for from_s, _, count in self._batches if from_s <= now_s])

    def wait_s(self, now_s: float) -> float:
        """Return the seconds until a token exists. If none is in hand the home is asked; its answer ends the wait."""
        self._follow(now_s)
        if self._own is not None:
            return self._own.wait_s(now_s)
        self._drop_old(now_s)
        if self._batches:
            return max(0.0, min([from_s for from_s, _, _ in self._batches]) - now_s)
        self._is_short = True
        self._ask_soon(now_s)
        return NEVER_S

    def left_s(self, now_s: float) -> float:
        if self._own is not None:
            return self._own.left_s(now_s)
        dates = [from_s for from_s, until_s, _ in self._batches if until_s > now_s]
        if dates:
            return max(0.0, min(dates) - now_s)
        return NEVER_S if self.is_asking or self._is_short or self._again_s > now_s else 0.0

    @property
    def is_without_tokens(self) -> bool:
        """True if the home does not answer, and no share is known that could be made here."""
        return self._is_lost and self._own is None

    def weigh(self, weight: int) -> None:
        self.weight = weight

    # ---- for CapHomes ----

    def ask(self) -> CapAsk:
        """Return the ask to its home."""
        in_hand_count = self.in_hand_count
        is_wanted = self._is_short or self._is_used
        ask = CapAsk(
            self.key, self.rate, max(0, self._target - in_hand_count) if is_wanted else 0,
            self._held_count + in_hand_count, self._unused_count, self.weight, self._is_short,
        )  # fmt: skip
        self._unused_count, self._is_short, self._is_used, self._asked = 0, False, False, ask
        self._has_part = self._has_part or not ask.is_for_nothing
        return ask

    def granted(self, grant: CapGrant, sent_s: float, now_s: float) -> None:
        """Take the home's answer."""
        asked, self._asked = self._asked, None
        self.is_asking, self._is_lost, self._own = False, False, None
        self._share = grant.share
        if asked is not None and asked.is_for_nothing:
            self._has_part = False
        ends_s = sent_s + grant.ends_ms / 1000
        self._until_s = max(self._until_s, ends_s) if self._batches else ends_s
        # Returned tokens are available sooner than a token that is not valid yet.
        is_ahead_of_unused = self._unused_count > 0 and grant.after_ms > 0
        if grant.granted_count and ends_s > now_s and not is_ahead_of_unused:
            self._batches.append((now_s + grant.after_ms / 1000, ends_s, grant.granted_count))
            return
        self._note_unused(grant.granted_count, now_s)
        if asked is not None and asked.wanted_count:
            self._is_short = self._is_short or asked.is_short
            if not grant.granted_count:
                self._again_s = ends_s

    def came_late(self, grant: CapGrant, now_s: float) -> None:
        """Return the tokens of an answer that came too late, or is for the cap before."""
        if self.is_over:
            self._pass_on(grant.granted_count, now_s)
        else:
            self._note_unused(grant.granted_count, now_s)

    def missed(self, now_s: float) -> None:
        """Note that the home has not answered."""
        self._not_answered(now_s)
        self._fall_back(now_s)

    def unaided(self, now_s: float) -> None:
        """Make an equal share of the tokens here, because the home is of an older build and grants none."""
        self._not_answered(now_s)
        self._share, self._has_part = 0.0, False
        rate = self.rate / max(1, self._homes.hosts_count)
        if self._own is None or self._own.rate != rate:
            self._batches = []
            self._own = TokenBucket(rate, now_s, 0.0, self._held_count)

    def lapse(self, now_s: float) -> bool:
        """Handle the time that has passed. Returns True if an ask is to be sent."""
        self._follow(now_s)
        self._drop_old(now_s)
        if self._own is not None and not self._is_lost:
            return False  # It is alone.
        if self._is_lost:
            self._fall_back(now_s)
            return self._is_used or self._is_short or self._has_part
        return self._is_short or self._unused_count > 0 or (self._has_part and now_s >= self._until_s)

    def _not_answered(self, now_s: float) -> None:
        asked, self._asked = self._asked, None
        self.is_asking, self._is_lost, self._again_s = False, True, now_s + RETRY_MS / 1000
        if asked is not None:
            self._is_short = self._is_short or asked.is_short
            self._is_used = self._is_used or asked.wanted_count > 0

    def _follow(self, now_s: float) -> None:
        homes = self._homes
        if self._version == homes.version:
            return
        self._version = homes.version
        if homes.hosts_count < 2:
            if self._own is None or self._is_lost:
                self._own = TokenBucket(self.rate, now_s, 1.0, self._held_count)
            self.home, self._share, self._is_lost, self._batches = "", 0.0, False, []
            self._has_part, self._unused_count = False, 0
        elif (home := homes.home_of(self.key)) != self.home:
            if self._has_part:
                homes.left(self.home, CapAsk(self.key, self.rate, 0, 0, 0, self.weight, is_short=False))
                self._has_part = False
            self.home, self._share, self._is_lost, self._own = home, 0.0, False, None
            self._unused_count, self._again_s = 0, now_s

    def _take_granted(self, count: int, now_s: float) -> int:
        self._drop_old(now_s)
        left_count = count
        rest: list[tuple[float, float, int]] = []
        for from_s, until_s, some in self._batches:
            used_count = min(some, left_count) if from_s <= now_s else 0
            left_count -= used_count
            if used_count < some:
                rest.append((from_s, until_s, some - used_count))
        self._batches = rest
        if left_count:
            self._is_short = True
            self._target = min(self._target_max, max(2 * self._target, left_count))
        if 2 * self.in_hand_count <= self._target:
            self._ask_soon(now_s)
        return count - left_count

    def _ask_soon(self, now_s: float) -> None:
        """Ask the home, unless an ask is under way or it is too soon; `check_s` then has the time of the next check."""
        if not self.is_asking and now_s >= self._again_s:
            self.is_asking = True
            self._homes.wants(self)

    def _drop_old(self, now_s: float) -> None:
        if not self._batches:
            return
        kept = [batch for batch in self._batches if batch[1] > now_s]
        if len(kept) < len(self._batches):
            ended_count = sum([count for _, until_s, count in self._batches if until_s <= now_s])
            self._target = max(1, self._target - ended_count)
            self._batches = kept
            self._note_unused(ended_count, now_s)

    def _note_unused(self, count: int, now_s: float) -> None:
        """Note tokens that return to the home.

        Tokens that are not valid yet return with them, because the home can grant the unused ones in their place,
        sooner.
        """
        if count:
            self._unused_count += count + sum([some for from_s, _, some in self._batches if from_s > now_s])
            self._batches = [batch for batch in self._batches if batch[0] <= now_s]

    def _fall_back(self, now_s: float) -> None:
        """Make the share here, once the granted tokens have ended. Until then the home has not reserved it."""
        if self._own is None and self._share > 0 and now_s >= self._until_s:
            self._batches = []
            self._own = TokenBucket(self._share, now_s, 0.0, self._held_count)
