"""The book of one namespace's quota: tokens with dates, which all hosts of a cluster get from it.

A token lets one item in, on the host that has it and until its date. It counts in the minute of its date, whenever it
was spent before, and leaves the book a minute after it. So all tokens that are spent in (a, a + 60 s] have dates after
a, and were granted at a + 60 s at the latest, when the book held them all: no more than the limit. Nothing that a host
does or leaves undone can change that (docs/decisions/0032-dated-tokens.md).

Pure: times are milliseconds of the clock of the meta database's server, and come in as arguments.
"""

from __future__ import annotations

from collections.abc import Sequence
from struct import Struct, pack, unpack_from
from typing import NamedTuple

from foqs.model import limits

QUOTA_WINDOW_MS = limits.MINUTE_MS
BUCKET_MS = 100
"""Dates are multiples of it. Tokens leave the book so much later than need be: clocks are not equally fast."""
VALID_MS = 2 * limits.SECOND_MS
"""How long tokens are valid as a rule."""
VALID_SCARCE_MS = 600
"""How long they are valid while hosts want nearly all there are."""
VALID_PLENTY_MS = 10 * limits.SECOND_MS
"""How long they are valid while less than half of them are in use."""
SCARCE_PERCENT = 90
PLENTY_PERCENT = 50
SLOW_ANSWERS_VALID = 1
"""Tokens are valid for longer by so many times what answers of the book take: they are so old when they come."""
SLOW_ANSWERS_KEPT = 3
"""Demand is kept for longer by so many times that: hosts ask less often."""
DEMAND_KEPT_MS = limits.SECOND_MS
"""A host that has not asked for so long has no part in what is scarce."""
HOLD_MS = 6 * limits.SECOND_MS
"""After the meta database was away, nothing is granted until every host has had the time to say what it spent without
tokens. That may take the answer to a statement that hangs.
"""
STEP_MS = limits.SECOND_MS
"""A clock that shows so much less than before was stepped."""
HOSTS_KEPT_MAX = 300
"""Hosts whose demand the book keeps. Beyond it, it forgets those that asked first."""
BOOK_BYTES_MAX = 8_192
"""The size of the column that holds a book, in bytes."""
_COUNT_MAX = (1 << 32) - 1

_FORMAT = 1
_HEAD = Struct("<BIQQHQ")
"""The format; the book's era, time, and when it grants again; how many tokens there are, and the first date."""
_TOKENS_BYTES = 6
"""The date in buckets after the first one, of two bytes, and the count, of four: first all dates, then all counts."""
_DEMAND = Struct("<IHI")
"""The host, how many milliseconds ago it asked, and its demand in items per second."""
_DATES_MAX = (QUOTA_WINDOW_MS + VALID_PLENTY_MS) // BUCKET_MS + 3

assert _HEAD.size + _DATES_MAX * _TOKENS_BYTES + HOSTS_KEPT_MAX * _DEMAND.size <= BOOK_BYTES_MAX


class Ask(NamedTuple):
    """The report of one host to the book, and its wish for tokens."""

    wanted_count: int = 0
    """Tokens that it could use now."""
    need: int = 0
    """Tokens that the call lacks that waits first. Fewer of them are no use to it."""
    demand_per_s: int = 0
    """Items a second that its callers want to enqueue."""
    era: int = 0
    """The era of the book in which it got the tokens that it gives back; 0 when it knows none."""
    returned: Sequence[tuple[int, int]] = ()
    """Tokens that it has not spent and will not spend, as dates and counts."""
    spent: Sequence[tuple[int, int]] = ()
    """Items that it let in without tokens: how long ago at least, in milliseconds, and how many."""
    was_away: bool = False
    """The meta database was away for this host: others may have let in items without tokens as well."""
    slow_ms: int = 0
    """The time that an answer of the book takes longer than where the meta database is near."""


class Grant(NamedTuple):
    """The answer of the book."""

    now_ms: int
    era: int
    limit: int
    granted_count: int
    date_ms: int
    """The tokens may be spent until then."""
    hold_ms: int
    """Nothing is granted for so long."""
    is_scarce: bool
    is_plenty: bool
    excess: int
    """Tokens in the book less the limit."""
    tokens: Sequence[tuple[int, int]]
    """The dates of all tokens in the book, and their counts. Not told when there is plenty."""

    def wait_ms(self, count: int) -> int:
        """When so many more tokens will fit, in milliseconds from `now_ms`; a whole minute if they never will.

        Where the book did not tell, it is soon: whoever asks again knows more.
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
    """The tokens of a namespace by their dates, and what hosts wanted of late.

    Its row in the meta database is unpacked, asked by one host, and packed again, in one transaction at a time.
    """

    def __init__(self, era: int) -> None:
        """A book that knows of nothing. `era` tells hosts that it is none that they have tokens of; it is not 0."""
        self.era = era
        self.at_ms = 0
        self._hold_until_ms = 0
        self._tokens: dict[int, int] = {}
        self._demands: dict[int, tuple[int, int]] = {}
        """When each host asked, by its number, and its demand. Who asked first comes first."""

    @property
    def count(self) -> int:
        return sum(self._tokens.values())

    def ask(self, host: int, ask: Ask, limit: int, now_ms: int) -> Grant:
        """Take what the host gives back and tells, and grant what it may have."""
        self._move_to(now_ms, ask.slow_ms)
        now_ms = self.at_ms
        if ask.era == self.era:
            for date_ms, count in ask.returned:
                if date_ms in self._tokens:  # Else they have left the book, and the host stood still meanwhile.
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
        is_told = count < ask.wanted_count or not is_plenty
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
            sorted(self._tokens.items()) if is_told else (),
        )

    def pack(self) -> bytes:
        """The row, of BOOK_BYTES_MAX bytes at most."""
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
        """Raises ValueError for what no `pack` of this format made."""
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
        """Let go of tokens whose minute is over, and of demand of long ago.

        A clock that was stepped back takes all times with it, as if it had stood still: tokens stay too long rather
        than too short. Hosts cannot give back any from before that.
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
        self._demands = {host: told for host, told in self._demands.items() if told[0] > old_ms}

    def _add(self, date_ms: int, count: int) -> int:
        """Count tokens at the last bucket that is not after their date, which is returned."""
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
        """The host's part of the room: as its demand is to all demands, of which none counts above a fair level.

        The level is the one up to which all demands can be met by what the limit gives a second (max-min fairness).
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
