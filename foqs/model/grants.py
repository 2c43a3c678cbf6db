"""The book of one namespace's quota: tokens with dates, which all hosts of a cluster get from it.

A token admits one item, on the host that has it and until its date. It counts in the minute of its date, even if it was
spent earlier, and leaves the book a minute after it. So all tokens spent in (a, a + 60 s] have dates after a, and were
granted at a + 60 s at the latest, when the book held them all: no more than the limit. No action or omission of a host
can change that (docs/decisions/0032-dated-tokens.md).

Pure: times are milliseconds of the clock of the meta database's server, and come in as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from foqs.model import limits

QUOTA_WINDOW_MS = limits.MINUTE_MS
BUCKET_MS = 100
"""Granularity of dates. Tokens leave the book later by this much than necessary, because clocks differ in speed."""
VALID_MS = 2 * limits.SECOND_MS
"""The usual validity of tokens."""
VALID_SCARCE_MS = 600
"""The validity of tokens while hosts want nearly all of the limit."""
VALID_PLENTY_MS = 10 * limits.SECOND_MS
"""The validity of tokens while less than half of the limit is in use."""
SCARCE_PERCENT = 90
PLENTY_PERCENT = 50
SLOW_ANSWERS_VALID = 1
"""Validity added to tokens, in multiples of the time that answers of the book take: tokens are that old on arrival."""
SLOW_ANSWERS_KEPT = 3
"""Time added to the keeping of demand, in multiples of the same time, because hosts then ask less often."""
DEMAND_KEPT_MS = limits.SECOND_MS
"""A host that has not asked for this long has no share of a scarce limit."""
HOLD_MS = 6 * limits.SECOND_MS
"""After an outage of the meta database, nothing is granted for this long, so that every host can report the items it
admitted without tokens. That can take until the answer to a statement that hangs.
"""
STEP_MS = limits.SECOND_MS
"""A clock that is behind its last reading by more than this was stepped."""
HOSTS_KEPT_MAX = 300
"""Hosts whose demand the book keeps. Beyond it, it forgets the hosts that asked longest ago."""
BOOK_BYTES_MAX = 8_192
"""The size of the column that holds a book, in bytes."""
_COUNT_MAX = (1 << 32) - 1

_FORMAT = 1
_HEAD = Struct("<BIQQHQ")
"""The format; the book's era, its time, and the end of its hold; the number of dates, and the first date."""
_TOKENS_BYTES = 6
"""The date in buckets after the first one, of two bytes, and the count, of four: first all dates, then all counts."""
_DEMAND = Struct("<IHI")
"""The host, the age of its ask in milliseconds, and its demand in items per second."""
_DATES_MAX = (QUOTA_WINDOW_MS + VALID_PLENTY_MS) // BUCKET_MS + 3

assert _HEAD.size + _DATES_MAX * _TOKENS_BYTES + HOSTS_KEPT_MAX * _DEMAND.size <= BOOK_BYTES_MAX


class Ask(NamedTuple):
    """The report of one host to the book, and its request for tokens."""

    wanted_count: int = 0
    """Tokens that the host could use now."""
    need: int = 0
    """Tokens that the first waiting call lacks. A smaller grant is of no use to it."""
    demand_per_s: int = 0
    """Items a second that its callers want to enqueue."""
    era: int = 0
    """The era of the book that granted the returned tokens; 0 if the host knows none."""
    returned: Sequence[tuple[int, int]] = ()
    """Tokens that the host will not spend, as dates and counts."""
    spent: Sequence[tuple[int, int]] = ()
    """Items that it admitted without tokens: their minimum age in milliseconds, and their count."""
    was_away: bool = False
    """True if the meta database was unreachable for this host. Others can then have admitted items without tokens."""
    slow_ms: int = 0
    """Extra time that an answer of the book takes because the meta database is far away."""


class Grant(NamedTuple):
    now_ms: int
    era: int
    limit: int
    granted_count: int
    date_ms: int
    """The last time at which the tokens can be spent."""
    hold_ms: int
    """Nothing is granted for this long."""
    is_scarce: bool
    is_plenty: bool
    excess: int
    """Tokens in the book less the limit."""
    tokens: Sequence[tuple[int, int]]
    """The dates of all tokens in the book, and their counts; empty if the limit is plenty and the request is met."""

    def wait_ms(self, count: int) -> int:
        """Return when `count` more tokens will fit, in milliseconds from `now_ms`; a whole minute if they never will.

        Without the dates of the tokens it is BUCKET_MS, because the next answer will have them.
        """
        excess = self.excess + count
        if excess <= 0:
            return 0
        for date_ms, leaving_count in self.tokens:
            excess -= leaving_count
            if excess <= 0:
                return date_ms + QUOTA_WINDOW_MS + BUCKET_MS - self.now_ms
        return QUOTA_WINDOW_MS if self.tokens else BUCKET_MS


class GrantBook:
    """The tokens of a namespace by their dates, and the recent demand of hosts.

    Its row in the meta database is unpacked, asked by one host, and packed again, in one transaction at a time.
    """

    def __init__(self, era: int) -> None:
        """Start an empty book. `era` is not 0; it differs from earlier books, so that hosts know their tokens are not
        of it.
        """
        self.era = era
        self.at_ms = 0
        self._hold_until_ms = 0
        self._tokens: dict[int, int] = {}
        self._demands: dict[int, tuple[int, int]] = {}
        """The time of each host's last ask and its demand, by host number, the oldest ask first."""

    @property
    def count(self) -> int:
        return sum(self._tokens.values())

    def ask(self, host: int, ask: Ask, limit: int, now_ms: int) -> Grant:
        """Apply the host's returned tokens and its report, and grant it tokens."""
        self._move_to(now_ms, ask.slow_ms)
        now_ms = self.at_ms
        if ask.era == self.era:
            for date_ms, count in ask.returned:
                if date_ms in self._tokens:  # Else they have left the book, because the host stood still.
                    self._tokens[date_ms] = max(0, self._tokens[date_ms] - count)
        for age_ms, count in ask.spent:
            if age_ms < QUOTA_WINDOW_MS:
                self._add(now_ms - age_ms + BUCKET_MS - 1, count)
        if ask.was_away:
            self._hold_until_ms = max(self._hold_until_ms, now_ms + HOLD_MS + ask.slow_ms)
        self._note(host, ask.demand_per_s)
        held = self.count
        per_s = sum([demand for _, demand in self._demands.values()])
        wanted = per_s * QUOTA_WINDOW_MS // limits.SECOND_MS
        count = 0
        if now_ms >= self._hold_until_ms:
            is_scarce = 100 * max(held, wanted) > SCARCE_PERCENT * limit
            count = self._granted(host, ask, limit, limit - held, is_scarce=is_scarce)
        is_scarce = 100 * max(held + count, wanted) > SCARCE_PERCENT * limit
        is_plenty = 100 * max(held + count, wanted) < PLENTY_PERCENT * limit
        valid_ms = VALID_SCARCE_MS if is_scarce else VALID_PLENTY_MS if is_plenty else VALID_MS
        valid_ms = min(valid_ms + SLOW_ANSWERS_VALID * ask.slow_ms, VALID_PLENTY_MS)
        date_ms = self._add(now_ms + valid_ms, count)
        is_listed = count < ask.wanted_count or not is_plenty
        return Grant(
            now_ms,
            self.era,
            limit,
            count,
            date_ms,
            max(0, self._hold_until_ms - now_ms),
            is_scarce,
            is_plenty,
            held + count - limit,
            sorted(self._tokens.items()) if is_listed else (),
        )

    def pack(self) -> bytes:
        """Return the row, of BOOK_BYTES_MAX bytes at most."""
        dates = sorted(self._tokens)
        first_ms, count = dates[0] if dates else 0, len(dates)
        parts = [
            _HEAD.pack(_FORMAT, self.era, self.at_ms, self._hold_until_ms, count, first_ms),
            pack(f"<{count}H", *[(date_ms - first_ms) // BUCKET_MS for date_ms in dates]),
            pack(f"<{count}I", *map(self._tokens.__getitem__, dates)),
        ]
        parts += [
            _DEMAND.pack(host, self.at_ms - at_ms, min(demand, _COUNT_MAX))
            for host, (at_ms, demand) in self._demands.items()
        ]
        return b"".join(parts)

    @classmethod
    def unpack(cls, packed: bytes) -> GrantBook:
        """Read a row. Raises ValueError if no `pack` of this format made it."""
        if len(packed) < _HEAD.size or packed[0] != _FORMAT:
            raise ValueError(
                f"a book of a quota has format {packed[:1].hex() or 'none'}, and this host knows {_FORMAT}"
            )
        _, era, at_ms, hold_until_ms, count, first_ms = _HEAD.unpack_from(packed)
        book = cls(era)
        book.at_ms, book._hold_until_ms = at_ms, hold_until_ms
        middle = _HEAD.size + count * _TOKENS_BYTES
        if middle > len(packed) or (len(packed) - middle) % _DEMAND.size:
            raise ValueError(f"a book of a quota has {len(packed)} bytes, which are not {count} tokens and some hosts")
        tokens = unpack_from(f"<{count}H{count}I", packed, _HEAD.size)
        dates = [first_ms + at * BUCKET_MS for at in tokens[:count]]
        book._tokens = dict(zip(dates, tokens[count:], strict=True))
        demands = _DEMAND.iter_unpack(memoryview(packed)[middle:])
        book._demands = {host: (at_ms - ago_ms, demand) for host, ago_ms, demand in demands}
        return book

    def _move_to(self, now_ms: int, slow_ms: int = 0) -> None:
        """Drop tokens whose minute is over, and old demand.

        A clock that was stepped back moves all times back with it, as if it had stood still, because tokens must rather
        stay too long than too short. Hosts cannot return tokens from before the step.
        """
        if now_ms < self.at_ms - STEP_MS:
            back_ms = (self.at_ms - now_ms) // BUCKET_MS * BUCKET_MS
            self.era = self.era % _COUNT_MAX + 1
            self._tokens = {date_ms - back_ms: count for date_ms, count in self._tokens.items()}
            self._hold_until_ms -= min(back_ms, self._hold_until_ms)
            self._demands = {}
            self.at_ms = now_ms
        self.at_ms = max(self.at_ms, now_ms)
        gone_ms = self.at_ms - QUOTA_WINDOW_MS - BUCKET_MS
        self._tokens = {date_ms: count for date_ms, count in self._tokens.items() if count and date_ms > gone_ms}
        old_ms = self.at_ms - DEMAND_KEPT_MS - SLOW_ANSWERS_KEPT * slow_ms
        self._demands = {host: demand for host, demand in self._demands.items() if demand[0] > old_ms}

    def _add(self, date_ms: int, count: int) -> int:
        """Count tokens at the last bucket that is not after their date. Returns that bucket."""
        date_ms -= date_ms % BUCKET_MS
        if count:
            self._tokens[date_ms] = min(self._tokens.get(date_ms, 0) + count, _COUNT_MAX)
        return date_ms

    def _note(self, host: int, demand_per_s: int) -> None:
        self._demands.pop(host, None)
        if demand_per_s:
            self._demands[host] = (self.at_ms, demand_per_s)
            while len(self._demands) > HOSTS_KEPT_MAX:
                del self._demands[next(iter(self._demands))]

    def _granted(self, host: int, ask: Ask, limit: int, room: int, *, is_scarce: bool) -> int:
        if room <= 0 or ask.need > room:
            return 0
        if not is_scarce:
            return min(ask.wanted_count, room)
        return min(ask.wanted_count, max(ask.need, self._part_of(host, limit, room)))

    def _part_of(self, host: int, limit: int, room: int) -> int:
        """Return the host's part of the room: its demand in proportion to all demands, each capped at a fair level.

        The level is the one up to which the limit's items per second can meet all demands (max-min fairness).
        """
        demands = sorted([demand for _, demand in self._demands.values()])
        if len(demands) < 2 or host not in self._demands:
            return room
        left = max(1, limit * limits.SECOND_MS // QUOTA_WINDOW_MS)
        level = demands[-1]
        for at, demand in enumerate(demands):
            fair = -(-left // (len(demands) - at))
            if demand >= fair:
                level = fair
                break
            left -= demand
        mine = min(self._demands[host][1], level)
        return -(-room * mine // sum([min(demand, level) for demand in demands]))
