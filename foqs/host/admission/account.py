"""The quota of one namespace on one host: tokens to spend, and the items admitted during the last minute.

The tokens come from the namespace's book, which all hosts share (foqs.model.grants). If the meta database is
unreachable and gives none, hosts admit as many items as in the minute before. Pure: times are milliseconds of the
host's monotonic clock, and come in as arguments.
"""

from __future__ import annotations

from bisect import insort
from collections import deque
from operator import attrgetter

from foqs.model import grants, limits
from foqs.model.grants import BUCKET_MS, Ask, Grant

WAIT_MS_MAX = 300
"""Longest wait of a call for tokens that its book does not have yet."""
SLOW_MS_MAX = 1 * limits.SECOND_MS
"""Longest wait of a call for an answer of the book, which other hosts can be asking at the same time."""
STOCK_MS = WAIT_MS_MAX
"""A host asks for the tokens that its callers need in this time."""
STOCK_PLENTY_MS = 2 * limits.SECOND_MS
"""The same while less than half of all tokens are in use."""
STOCK_PLENTY_PART = 2_000
"""While tokens are plenty, a host asks for the limit divided by this number at least."""
FAST_MS = 100
"""An answer of the book within this time is fast, and does not raise the bounds of an account."""
SLOW_ANSWER_MS_MAX = 1_500
"""Bounds of an account grow with the time of answers beyond FAST_MS, up to this much."""
SLOW_ANSWERS_STOCK = 2
"""Slow times of an answer that a host adds to the time of its stock, and to the longest wait of its callers."""
SLOW_ANSWERS_AWAY = 4
"""Slow times of an answer that callers wait longer while no answer comes at all."""
DEMAND_MS = 300
"""Time over which the demand of callers is averaged, roughly."""
RETURN_MS = limits.SECOND_MS
"""Unspent tokens are returned after this time if the host has nothing else to ask; scarce ones are returned at once."""
REPLAY_PERCENT = 5
"""The percentage of the limit that the live hosts together can always admit while the meta database is unreachable,
even if each admitted less before.
"""

_expires_ms = attrgetter("expires_ms")


class Bucket:
    """Items that were admitted within BUCKET_MS."""

    __slots__ = ("count", "start_ms", "unreported_count")

    def __init__(self, start_ms: int) -> None:
        self.start_ms = start_ms
        self.count = 0
        self.unreported_count = 0
        """Items without tokens that were not reported to the book yet."""


class MinuteWindow:
    """The items of one namespace that were admitted in the last minute."""

    __slots__ = ("admitted_count", "buckets")

    def __init__(self) -> None:
        self.buckets: deque[Bucket] = deque()
        self.admitted_count = 0

    def admit(self, count: int, limit: int, now_ms: int) -> int:
        """Count the items if they fit, and return 0; else return the milliseconds until they would fit.

        A count over the limit never fits, and returns a whole minute.
        """
        self.forget(now_ms)
        excess = self.admitted_count + count - limit
        if excess > 0:
            return self._leave_ms(excess, now_ms)
        self.note(count, now_ms)
        return 0

    def note(self, count: int, now_ms: int) -> Bucket:
        """Count the items, and return their bucket."""
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
        """Return the items of buckets that began after `since_ms` and are not forgotten."""
        return sum([bucket.count for bucket in self.buckets if bucket.start_ms > since_ms])

    def take_back(self, bucket: Bucket, count: int) -> None:
        """Stop counting up to `count` items of a bucket, if they still count."""
        part = min(bucket.count, count)
        bucket.count -= part
        self.admitted_count -= part

    def forget(self, now_ms: int) -> None:
        """Forget the buckets that are older than a minute."""
        buckets, old_ms = self.buckets, now_ms - grants.QUOTA_WINDOW_MS - BUCKET_MS
        while buckets and buckets[0].start_ms <= old_ms:
            bucket = buckets.popleft()
            self.admitted_count -= bucket.count
            bucket.count = 0

    def _leave_ms(self, excess: int, now_ms: int) -> int:
        """Return the milliseconds until `excess` items will have left the window."""
        for bucket in self.buckets:
            excess -= bucket.count
            if excess <= 0:
                return max(1, bucket.start_ms + grants.QUOTA_WINDOW_MS + BUCKET_MS - now_ms)
        return grants.QUOTA_WINDOW_MS


class Lot:
    """The tokens of one grant."""

    __slots__ = ("date_ms", "era", "expires_ms", "is_in_hand", "left", "spent")

    def __init__(self, count: int, expires_ms: int, date_ms: int, era: int) -> None:
        self.left = count
        self.expires_ms = expires_ms
        """Time of their expiry by the host's clock."""
        self.date_ms = date_ms
        """Time of their expiry by the book's clock."""
        self.era = era
        self.spent = 0
        self.is_in_hand = True


class Charge:
    """The admitted items of one call. Tokens of items that were not written are refunded."""

    __slots__ = ("_account", "_bucket", "_lot")

    def __init__(self, account: Account, bucket: Bucket, lot: Lot | None) -> None:
        """`lot` is that of the first spent tokens, or None if the items needed no tokens."""
        self._account = account
        self._bucket = bucket
        self._lot = lot

    def refund(self, count: int) -> None:
        """Stop counting `count` of the items, because they were not written or were repeats."""
        if count:
            self._account.refund(count, self._bucket, self._lot)


class Account:
    """One host's tokens and spending for one namespace. foqs.host.admission.quotas has one for each with calls."""

    def __init__(self, namespace: int) -> None:
        self.namespace = namespace
        self.window = MinuteWindow()
        self.limit_seen = 0
        """The limit at which the tokens in hand were asked for."""
        self.arrived_count = 0
        """Items that callers wanted to enqueue since the last ask."""
        self.refill_below = 0
        """The number of tokens in hand below which the host asks for more."""
        self.in_hand = 0
        self._lots: list[Lot] = []
        """The lots in hand, in the order of their expiry."""
        self._returned: dict[int, int] = {}
        """Tokens to return, by the date of their lot."""
        self._returned_since_ms = 0
        self._era = 0
        self._demand_per_s = 0.0
        self._asked_ms = 0
        self._unreported_count = 0
        self._reporting: list[tuple[Bucket, int]] = []
        """Items without tokens that the current ask reports to the book, by bucket."""
        self.answer_ms = 0.0
        """Average time of an answer of the book in milliseconds, with the attempts that found it locked."""
        self._grant: Grant | None = None
        self._granted_ms = 0
        """The time of the ask for the last grant."""
        self._replay_max: int | None = None
        """Items without tokens that are admitted per minute during an outage of the meta database, else None."""
        self._hold_until_ms = 0
        self._held_max = 0
        """Items that are admitted per minute until then, by the last answer of the book."""
        self._has_lost_book = False
        """True if the book of its tokens was lost, and the new one does not know its spending yet."""

    # --- bounds that grow with the time of an answer ---

    @property
    def slow_ms(self) -> int:
        """Time of an answer beyond that of a nearby meta database, in milliseconds."""
        return max(0, min(int(self.answer_ms) - FAST_MS, SLOW_ANSWER_MS_MAX))

    @property
    def wait_ms_max(self) -> int:
        """Longest wait of a call for tokens."""
        return WAIT_MS_MAX + SLOW_ANSWERS_STOCK * self.slow_ms

    @property
    def no_answer_ms_max(self) -> int:
        """Longest wait of a call while the book does not answer at all."""
        return SLOW_MS_MAX + SLOW_ANSWERS_AWAY * self.slow_ms

    # --- calls ---

    def spend(self, count: int, now_ms: int) -> Charge | None:
        """Admit the items of a call if all have tokens; else return None."""
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
        """Admit the items without tokens, or return the milliseconds until they would fit.

        While the book holds, they must also fit into the room that it reported, because other hosts admitted items
        without tokens and have reported these since.
        """
        assert self._replay_max is not None, "the meta database is there"
        most = min(self._replay_max, self._held_max) if self.holds(now_ms) else self._replay_max
        wait_ms = self.window.admit(count, most, now_ms)
        if wait_ms:
            return wait_ms
        bucket = self.window.buckets[-1]
        bucket.unreported_count += count
        self._unreported_count += count
        return Charge(self, bucket, None)

    def refund(self, count: int, bucket: Bucket, lot: Lot | None) -> None:
        """Undo a part of a charge. Tokens beyond the first lot of the call stay spent."""
        self.window.take_back(bucket, count)
        if lot is None:
            unreported_count = min(count, bucket.unreported_count)
            bucket.unreported_count -= unreported_count
            self._unreported_count -= unreported_count
            return
        part = min(count, lot.spent)
        lot.spent -= part
        if lot.is_in_hand:
            lot.left += part
            self.in_hand += part
        else:
            self._return(lot, part)

    def wait_ms(self, count: int, now_ms: int) -> int:
        """Return the milliseconds until `count` items will fit, by the last answer of the book."""
        if self._grant is None:
            return BUCKET_MS
        wait_ms = self._granted_ms + self._grant.wait_ms(count - self.in_hand) - now_ms
        return max(wait_ms, BUCKET_MS)

    def is_over(self, count: int) -> bool:
        """True if `count` items did not fit at the last answer of the book."""
        return self._grant is not None and self._grant.excess + count > self.in_hand

    def is_answered_since(self, since_ms: int) -> bool:
        """True if the book has answered an ask made at that time or later."""
        return self._grant is not None and self._granted_ms >= since_ms

    # --- outages of the meta database ---

    def begin_replay(self, limit: int, hosts_count: int, since_ms: int, now_ms: int) -> None:
        """Begin to admit, without tokens, as many items per minute as in the minute before `since_ms`.

        At `since_ms` the outage began. The minimum is the host's part of REPLAY_PERCENT; a single host has the whole
        limit, because it shares it with no other host. The tokens in hand are dropped, because they would come on top.
        """
        if self._replay_max is None:
            self.drop_tokens(now_ms)
            part = limit if hosts_count <= 1 else limit * REPLAY_PERCENT // (100 * hosts_count)
            self._replay_max = min(limit, max(self.window.count_since(since_ms - grants.QUOTA_WINDOW_MS), part))

    def holds(self, now_ms: int) -> bool:
        """True if the book grants nothing yet, because it does not know the items admitted during its outage."""
        return now_ms < self._hold_until_ms

    def hold(self, until_ms: int) -> None:
        """Expect no grants until `until_ms`, because the book does not exist."""
        self._hold_until_ms, self._held_max = until_ms, self.limit_seen

    # --- the book ---

    def expire(self, now_ms: int) -> None:
        """Put expired tokens aside, to be returned."""
        lots = self._lots
        while lots and lots[0].expires_ms <= now_ms:
            self._put_aside(lots.pop(0), now_ms)

    def drop_tokens(self, now_ms: int) -> None:
        """Put all tokens aside, because they are not wanted any more or are of another limit."""
        for lot in self._lots:
            self._put_aside(lot, now_ms)
        self._lots.clear()

    def is_due(self, now_ms: int) -> bool:
        """True if the book must be asked although no call waits."""
        if self._unreported_count:
            return now_ms - self._asked_ms >= STOCK_MS
        stock_ms = STOCK_MS + SLOW_ANSWERS_STOCK * self.slow_ms
        if self.arrived_count and self._lots and self._lots[-1].expires_ms - now_ms < stock_ms:
            return True
        is_scarce = self._grant is not None and self._grant.is_scarce
        return bool(self._returned) and (is_scarce or now_ms - self._returned_since_ms >= RETURN_MS)

    @property
    def is_busy(self) -> bool:
        """True if it has state that changes with time alone."""
        return bool(self._lots or self._returned or self._unreported_count)

    def is_idle(self, now_ms: int) -> bool:
        """True if it can be forgotten without loss."""
        self.window.forget(now_ms)
        return not (self.is_busy or self.window.buckets)

    def make_ask(self, limit: int, waiting_count: int, first_count: int, now_ms: int, *, was_away: bool) -> Ask:
        """Make the ask for the book. `first_count` is the number of items of the first waiting call, and `was_away` is
        true if the meta database was unreachable.
        """
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
        self._reporting = [
            (bucket, bucket.unreported_count) for bucket in self.window.buckets if bucket.unreported_count
        ]
        self._unreported_count = 0
        for bucket, _ in self._reporting:
            bucket.unreported_count = 0
        return Ask(
            max(0, wanted),
            max(0, first_count - self.in_hand),
            int(self._demand_per_s),
            self._era,
            sorted(returned.items()),
            [(now_ms - bucket.start_ms - BUCKET_MS, count) for bucket, count in self._reporting],
            was_away or self._has_lost_book,
            self.slow_ms,
        )

    def take(self, ask: Ask, grant: Grant, asked_ms: int) -> None:
        """Take the book's answer to an ask of `asked_ms`.

        The book read its clock after that time, so the tokens are valid at least as long from `asked_ms` on.
        """
        self._reporting = []
        self._has_lost_book = self._era not in (0, grant.era)
        if self._has_lost_book:
            self._forget_book(asked_ms)
        self._era, self._grant, self._granted_ms = grant.era, grant, asked_ms
        self._hold_until_ms = asked_ms + grant.hold_ms if grant.hold_ms else 0
        self.window.forget(asked_ms)
        self._held_max = self.window.admitted_count + max(0, -grant.excess - self._unreported_count)
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
        """Note that the last ask failed with an unknown outcome.

        Tokens that were returned with it are not returned again, and tokens that it possibly granted are not used.
        Items without tokens are reported again.
        """
        for bucket, count in self._reporting:
            bucket.unreported_count += count
            self._unreported_count += count
        self._reporting = []

    def refused(self, ask: Ask) -> None:
        """Restore the state before the last ask, which certainly had no effect."""
        self.fail()
        if ask.era == self._era:
            for date_ms, count in ask.returned:
                self._returned[date_ms] = self._returned.get(date_ms, 0) + count

    def answered_after(self, took_ms: float) -> None:
        """Note the time of an answer of the book, in milliseconds."""
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
        """Drop the tokens of a lost book, and report all items of the last minute to the new one."""
        self.drop_tokens(now_ms)
        self._returned = {}
        for bucket in self.window.buckets:
            bucket.unreported_count = bucket.count
        self._unreported_count = self.window.admitted_count
