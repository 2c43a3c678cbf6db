"""The quota of one namespace on one host: tokens to spend, and the items let in during the last minute.

The tokens come from the namespace's book, which all hosts share (foqs.model.grants). Where they have none because the
meta database is away, hosts let in what they let in a minute ago. Pure: times are milliseconds of the host's monotonic
clock, and come in as arguments.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from foqs.model import grants, limits
from foqs.model.grants import BUCKET_MS, Ask, Grant

WAIT_MS_MAX = 300
"""How long a call waits for tokens that its book does not have yet."""
SLOW_MS_MAX = 1 * limits.SECOND_MS
"""How long it waits for an answer of the book, which other hosts may be asking at the same time."""
STOCK_MS = WAIT_MS_MAX
"""A host asks for what its callers enqueue in so long."""
STOCK_PLENTY_MS = 2 * limits.SECOND_MS
"""The same while less than half of all tokens are in use."""
STOCK_PLENTY_PART = 2_000
"""While there is plenty, a host asks for one in so many of the limit's tokens at least."""
FAST_MS = 100
"""An answer of the book that takes no longer is as good as one that takes no time."""
SLOW_ANSWER_MS_MAX = 1_500
"""Bounds of an account grow with what answers take beyond FAST_MS, up to this."""
SLOW_ANSWERS_STOCK = 2
"""A host asks for what its callers enqueue in so many answers more, and they wait for so many more."""
SLOW_ANSWERS_AWAY = 4
"""They wait for so many times longer for an answer that does not come at all."""
DEMAND_MS = 300
"""The demand of callers is averaged over about so long."""
RETURN_MS = limits.SECOND_MS
"""Tokens that were not spent are given back after so long, if the host has nothing else to ask; at once when they are
scarce.
"""
REPLAY_PERCENT = 5
"""While the meta database is away, the hosts that live may let in this part of the limit among them, however little
each of them let in before.
"""

_expires_ms = attrgetter("expires_ms")


class Bucket:
    """Items that were let in within BUCKET_MS."""

    __slots__ = ("count", "start_ms", "untold")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.count = 0
        self.untold = 0
        """Items without tokens of which the book does not know."""


class MinuteWindow:
    """The items that one namespace was admitted with in the last minute."""

    __slots__ = ("admitted_count", "buckets")

    def __init__(self) -> None:
        self.buckets: deque[Bucket] = deque()
        self.admitted_count = 0

    def admit(self, count: int, limit: int, now_ms: int) -> int:
        """Count the items if they fit, and return 0; else return the milliseconds until they would fit.

        A count over the limit never fits; then the answer is a whole minute.
        """
        self.forget(now_ms)
        excess = self.admitted_count + count - limit
        if excess > 0:
            return self._leave_ms(excess, now_ms)
        self.note(count, now_ms)
        return 0

    def note(self, count: int, now_ms: int) -> Bucket:
        """Count the items, and return where."""
        buckets = self.buckets
        start_ms = now_ms - now_ms % BUCKET_MS
        if not buckets or buckets[-1].start_ms < start_ms:
            self.forget(now_ms)
            buckets.append(Bucket(start_ms))
        bucket = buckets[-1]
        bucket.count += count
        self.admitted_count += count
        return bucket

    def count_since(self, since_ms: int) -> int:
        """Items of buckets that began after that time, as far as they are not forgotten."""
        return sum([bucket.count for bucket in self.buckets if bucket.start_ms > since_ms])

    def take_back(self, bucket: Bucket, count: int) -> None:
        """Count so many of the items counted there no more, as far as they still count."""
        part = min(bucket.count, count)
        bucket.count -= part
        self.admitted_count -= part

    def forget(self, now_ms: int) -> None:
        """Let go of what is older than a minute."""
        buckets, old_ms = self.buckets, now_ms - grants.QUOTA_WINDOW_MS - BUCKET_MS
        while buckets and buckets[0].start_ms <= old_ms:
            bucket = buckets.popleft()
            self.admitted_count -= bucket.count
            bucket.count = 0

    def _leave_ms(self, excess: int, now_ms: int) -> int:
        """When so many will have left the window."""
        for bucket in self.buckets:
            excess -= bucket.count
            if excess <= 0:
                return max(1, bucket.start_ms + grants.QUOTA_WINDOW_MS + BUCKET_MS - now_ms)
        return grants.QUOTA_WINDOW_MS


class Lot:
    """Tokens of one grant that are in hand."""

    __slots__ = ("date_ms", "era", "expires_ms", "is_in_hand", "left", "spent")

    def __init__(self, count: int, expires_ms: int, date_ms: int, era: int) -> None:
        self.left = count
        self.expires_ms = expires_ms
        """The host's clock then."""
        self.date_ms = date_ms
        """The book's clock then."""
        self.era = era
        self.spent = 0
        self.is_in_hand = True


class Charge:
    """The items of one call that were let in. What they do not come to is given back."""

    __slots__ = ("_account", "_bucket", "_lot")

    def __init__(self, account: Account, bucket: Bucket, lot: Lot | None) -> None:
        """`lot` is that of the first tokens that were spent; None when the items needed none."""
        self._account = account
        self._bucket = bucket
        self._lot = lot

    def give_back(self, count: int) -> None:
        """Count so many of the items no more: they were not let in after all, or were there already."""
        if count:
            self._account.give_back(count, self._bucket, self._lot)


class Account:
    """One host's tokens of one namespace, and what it spent. foqs.host.admission.quotas has one for each that has
    calls.
    """

    def __init__(self, namespace: int) -> None:
        self.namespace = namespace
        self.window = MinuteWindow()
        self.limit_seen = 0
        """The limit by which the tokens in hand were asked for."""
        self.arrived_count = 0
        """Items that callers wanted to enqueue since the last ask."""
        self.refill_below = 0
        """The tokens in hand below which it is time to ask for more."""
        self.in_hand = 0
        self._lots: list[Lot] = []
        """The lots of tokens, in the order in which they expire."""
        self._returned: dict[int, int] = {}
        """Tokens to give back, by date."""
        self._returned_since_ms = 0
        self._era = 0
        self._demand_per_s = 0.0
        self._asked_ms = 0
        self._untold_count = 0
        self._told: list[tuple[Bucket, int]] = []
        """The items without tokens that the ask under way tells the book of, by bucket."""
        self.answer_ms = 0.0
        """What an answer of the book takes on the average, with the tries that found it locked."""
        self._grant: Grant | None = None
        self._granted_ms = 0
        """When the last grant was asked for."""
        self._replay_max: int | None = None
        """The items without tokens that a minute may have while the meta database is away; None while it is there."""
        self._hold_until_ms = 0
        self._held_max = 0
        """The items that a minute may have until then, by what the book knew when it was asked last."""
        self._has_lost_book = False
        """The book that it had tokens of is gone, and the new one does not know yet what was spent."""

    # --- bounds that grow with what an answer takes ---

    @property
    def slow_ms(self) -> int:
        """The time that an answer takes longer than where the meta database is near."""
        return max(0, min(int(self.answer_ms) - FAST_MS, SLOW_ANSWER_MS_MAX))

    @property
    def wait_ms_max(self) -> int:
        """How long a call waits for tokens."""
        return WAIT_MS_MAX + SLOW_ANSWERS_STOCK * self.slow_ms

    @property
    def no_answer_ms_max(self) -> int:
        """How long a call waits while the book does not answer at all."""
        return SLOW_MS_MAX + SLOW_ANSWERS_AWAY * self.slow_ms

    # --- calls ---

    def spend(self, count: int, now_ms: int) -> Charge | None:
        """Let in the items of a call, if there are tokens for all of them."""
        lots = self._lots
        if lots and lots[0].expires_ms <= now_ms:
            self.expire(now_ms)
        if self.in_hand < count:
            return None
        self.in_hand -= count
        lot = lots[0]
        charge = Charge(self, self.window.note(count, now_ms), lot)
        if lot.left > count:
            lot.left -= count
            lot.spent += count
            return charge
        while count:
            lot = lots[0]
            part = min(lot.left, count)
            lot.left -= part
            lot.spent += part
            count -= part
            if not lot.left:
                lot.is_in_hand = False
                del lots[0]
        return charge

    def replay(self, count: int, now_ms: int) -> Charge | int:
        """Let in the items without tokens, or tell in how many milliseconds they would fit.

        While the book holds, they have to fit into the room that it told as well: others let in items without tokens,
        and have told since.
        """
        assert self._replay_max is not None, "the meta database is there"
        most = min(self._replay_max, self._held_max) if self.holds(now_ms) else self._replay_max
        wait_ms = self.window.admit(count, most, now_ms)
        if wait_ms:
            return wait_ms
        bucket = self.window.buckets[-1]
        bucket.untold += count
        self._untold_count += count
        return Charge(self, bucket, None)

    def give_back(self, count: int, bucket: Bucket, lot: Lot | None) -> None:
        """Undo a part of a charge. What is beyond the first lot of a call counts all the same."""
        self.window.take_back(bucket, count)
        if lot is None:
            untold = min(count, bucket.untold)
            bucket.untold -= untold
            self._untold_count -= untold
            return
        part = min(count, lot.spent)
        lot.spent -= part
        if lot.is_in_hand:
            lot.left += part
            self.in_hand += part
        else:
            self._return(lot, part)

    def wait_ms(self, count: int, now_ms: int) -> int:
        """When there will be room for so many, by the last answer of the book."""
        if self._grant is None:
            return BUCKET_MS
        wait_ms = self._granted_ms + self._grant.wait_ms(count - self.in_hand) - now_ms
        return max(wait_ms, BUCKET_MS)

    def is_over(self, count: int) -> bool:
        """Whether so many did not fit when the book was asked last."""
        return self._grant is not None and self._grant.excess + count > self.in_hand

    def is_answered_since(self, since_ms: int) -> bool:
        """Whether the book was asked after that time, and has answered."""
        return self._grant is not None and self._granted_ms >= since_ms

    # --- the meta database is away ---

    def begin_replay(self, limit: int, hosts_count: int, since_ms: int, now_ms: int) -> None:
        """Let in without tokens what was let in during the minute before `since_ms`, when the meta database went away.

        At least it is the host's part of a few percent. A host that is alone has nobody to share the limit with. Tokens
        in hand would come on top of it.
        """
        if self._replay_max is None:
            self.drop_tokens(now_ms)
            part = limit if hosts_count <= 1 else limit * REPLAY_PERCENT // (100 * hosts_count)
            self._replay_max = min(limit, max(self.window.count_since(since_ms - grants.QUOTA_WINDOW_MS), part))

    def holds(self, now_ms: int) -> bool:
        """Whether the book grants nothing yet, because it does not know what was let in while it was away."""
        return now_ms < self._hold_until_ms

    def hold(self, until_ms: int) -> None:
        """Expect nothing of the book until then: there is none."""
        self._hold_until_ms, self._held_max = until_ms, self.limit_seen

    # --- the book ---

    def expire(self, now_ms: int) -> None:
        """Put aside tokens whose time is over."""
        lots = self._lots
        while lots and lots[0].expires_ms <= now_ms:
            self._put_aside(lots.pop(0), now_ms)

    def drop_tokens(self, now_ms: int) -> None:
        """Put aside all tokens: they are not wanted any more, or are of another limit."""
        for lot in self._lots:
            self._put_aside(lot, now_ms)
        self._lots.clear()

    def is_due(self, now_ms: int) -> bool:
        """Whether it is time to ask the book, though no call waits."""
        if self._untold_count:
            return now_ms - self._asked_ms >= STOCK_MS
        stock_ms = STOCK_MS + SLOW_ANSWERS_STOCK * self.slow_ms
        if self.arrived_count and self._lots and self._lots[-1].expires_ms - now_ms < stock_ms:
            return True
        is_scarce = self._grant is not None and self._grant.is_scarce
        return bool(self._returned) and (is_scarce or now_ms - self._returned_since_ms >= RETURN_MS)

    @property
    def is_busy(self) -> bool:
        """Whether there is something that time alone changes."""
        return bool(self._lots or self._returned or self._untold_count)

    def is_idle(self, now_ms: int) -> bool:
        """Whether nothing is lost when it is forgotten."""
        self.window.forget(now_ms)
        return not (self.is_busy or self.window.buckets)

    def make_ask(self, limit: int, waiting_count: int, first_count: int, now_ms: int, *, was_away: bool) -> Ask:
        """The ask for the book; `first_count` are the items of the call that waits first."""
        self.expire(now_ms)
        self._measure(now_ms)
        self.limit_seen = limit
        grant = self._grant
        stock = self._demand_per_s * self._stock_ms(is_plenty=False) / limits.SECOND_MS
        if grant is None or grant.is_plenty:
            plenty = self._demand_per_s * self._stock_ms(is_plenty=True) / limits.SECOND_MS
            stock = max(plenty, limit / STOCK_PLENTY_PART)
        wanted = waiting_count + int(stock) - self.in_hand if waiting_count or self._demand_per_s >= 1 else 0
        returned, self._returned = self._returned, {}
        self._told = [(bucket, bucket.untold) for bucket in self.window.buckets if bucket.untold]
        self._untold_count = 0
        for bucket, _ in self._told:
            bucket.untold = 0
        return Ask(
            max(0, wanted),
            max(0, first_count - self.in_hand),
            int(self._demand_per_s),
            self._era,
            sorted(returned.items()),
            [(now_ms - bucket.start_ms - BUCKET_MS, count) for bucket, count in self._told],
            was_away or self._has_lost_book,
            self.slow_ms,
        )

    def take(self, ask: Ask, grant: Grant, asked_ms: int) -> None:
        """Go on with what the book has answered to an ask of `asked_ms`.

        The book read its clock after that, so the tokens are valid for as long from then on at least.
        """
        self._told = []
        self._has_lost_book = self._era not in (0, grant.era)
        if self._has_lost_book:
            self._forget_book(asked_ms)
        self._era, self._grant, self._granted_ms = grant.era, grant, asked_ms
        self._hold_until_ms = asked_ms + grant.hold_ms if grant.hold_ms else 0
        self.window.forget(asked_ms)
        self._held_max = self.window.admitted_count + max(0, -grant.excess - self._untold_count)
        if not grant.hold_ms and not self._has_lost_book:
            self._replay_max = None
        if grant.granted_count and self._has_lost_book:
            self._returned[grant.date_ms] = grant.granted_count
        elif grant.granted_count:
            # One less: the host's clock was rounded down as well.
            expires_ms = asked_ms + grant.date_ms - grant.now_ms - 1
            insort(self._lots, Lot(grant.granted_count, expires_ms, grant.date_ms, grant.era), key=_expires_ms)
            self.in_hand += grant.granted_count
        stock_ms = self._stock_ms(is_plenty=grant.is_plenty)
        self.refill_below = (
            0 if grant.granted_count < ask.wanted_count else int(self._demand_per_s * stock_ms / 2 / limits.SECOND_MS)
        )

    def fail(self) -> None:
        """Nobody knows whether the book has got the last ask.

        Tokens that were given back with it are not given back again, nor those used that it may have brought; items
        without tokens are told once more.
        """
        for bucket, count in self._told:
            bucket.untold += count
            self._untold_count += count
        self._told = []

    def refused(self, ask: Ask) -> None:
        """Certainly nothing was done with the last ask: all that it had is as before."""
        self.fail()
        if ask.era == self._era:
            for date_ms, count in ask.returned:
                self._returned[date_ms] = self._returned.get(date_ms, 0) + count

    def answered_after(self, took_ms: float) -> None:
        """Note how long the book took for an answer."""
        self.answer_ms += (took_ms - self.answer_ms) / 3

    def _stock_ms(self, *, is_plenty: bool) -> int:
        return (STOCK_PLENTY_MS if is_plenty else STOCK_MS) + SLOW_ANSWERS_STOCK * self.slow_ms

    def _measure(self, now_ms: int) -> None:
        """Average the demand of callers."""
        since_ms = min(max(now_ms - self._asked_ms, BUCKET_MS), limits.SECOND_MS)
        rate_per_s = self.arrived_count * limits.SECOND_MS / since_ms
        self._demand_per_s += (rate_per_s - self._demand_per_s) * since_ms / (since_ms + DEMAND_MS)
        self.arrived_count, self._asked_ms = 0, now_ms

    def _put_aside(self, lot: Lot, now_ms: int) -> None:
        lot.is_in_hand = False
        self.in_hand -= lot.left
        if lot.left:
            if not self._returned:
                self._returned_since_ms = now_ms
            self._return(lot, lot.left)
            lot.left = 0

    def _return(self, lot: Lot, count: int) -> None:
        if count and lot.era == self._era:
            self._returned[lot.date_ms] = self._returned.get(lot.date_ms, 0) + count

    def _forget_book(self, now_ms: int) -> None:
        """The book is another one, which knows nothing of this host: it is told all of the last minute."""
        self.drop_tokens(now_ms)
        self._returned = {}
        for bucket in self.window.buckets:
            bucket.untold = bucket.count
        self._untold_count = self.window.admitted_count
